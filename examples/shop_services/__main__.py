"""Run the three services, kill one in the middle, and check that each gets every order."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable

from mx_rmq import MessageQueue
from shop_services.order import RECORDS, TOPIC, URL, Order, recorded

SERVICES = ("billing", "search", "analytics")
ORDERS = 200


async def main() -> None:
    for service in SERVICES:
        (RECORDS / f"{service}.log").unlink(missing_ok=True)
    async with MessageQueue(URL) as mq:
        env = {**os.environ, "MX_RMQ_URL": mq.settings.url}
        workers = {service: await start(service, env) for service in SERVICES}
        await until_declared(mq)
        print("three services run, each in its own process")

        await mq.produce_many(TOPIC, orders(range(1, ORDERS // 2 + 1)))
        await until_handled("search", ORDERS // 10)
        workers["search"].send_signal(signal.SIGKILL)
        await workers["search"].wait()
        print(f"killed search with SIGKILL after {handled('search')} orders")

        await mq.produce_many(TOPIC, orders(range(ORDERS // 2 + 1, ORDERS + 1)))
        await until_handled("billing", ORDERS)
        await until_handled("analytics", ORDERS)
        print(f"billing and analytics have all {ORDERS} orders; search has {handled('search')}")

        workers["search"] = await start("search", env)
        print("started search again")
        await until_handled("search", ORDERS)
        for worker in workers.values():
            worker.terminate()
            await worker.wait()
    for service in SERVICES:
        twice = len(recorded(service)) - handled(service)
        print(f"{service}: {handled(service)} of {ORDERS} orders, {twice} of them twice")


async def start(service: str, env: dict[str, str]) -> asyncio.subprocess.Process:
    words = ["-m", "mx_rmq.cli", "worker", f"shop_services.{service}:mq"]
    quiet = asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(
        sys.executable, *words, env=env, stdout=quiet, stderr=quiet
    )


def orders(numbers: Iterable[int]) -> list[Order]:
    return [Order(number=number, total=9.5) for number in numbers]


async def until_declared(mq: MessageQueue) -> None:
    """Wait until every subscription exists: it gets only what is produced from then on."""
    while True:
        if TOPIC in await mq.admin.topics():
            names = {one.name for one in await mq.admin.subscriptions(TOPIC)}
            if names >= {*SERVICES}:
                return
        await asyncio.sleep(0.05)


async def until_handled(service: str, count: int) -> None:
    while handled(service) < count:  # noqa: ASYNC110 - another process writes the file
        await asyncio.sleep(0.02)


def handled(service: str) -> int:
    return len({*recorded(service)})


asyncio.run(main())
