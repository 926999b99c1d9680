"""mx-rmq: a flow, and a handler with steps."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.flows.job import CHILDREN, CONCURRENCY, URL, WAIT, ask, page
from bench.flows.roles import play
from mx_rmq import Delivery, MessageQueue, Worker

# begin flow
mq = MessageQueue(URL)


@mq.handler("page")
async def render(number: int) -> int:
    return await page(number)


@mq.handler("book", result_ttl=3600)
async def bind(title: str, delivery: Delivery) -> int:
    return sum(delivery.results)


async def book() -> object:
    async with mq.flow() as flow:
        pages = [flow.produce("page", number) for number in range(CHILDREN)]
        id = flow.produce("book", "The Whale", after=pages)
    return await mq.result("book", id, timeout=WAIT)


# begin steps
@mq.handler("ticket", result_ttl=3600)
async def fix(text: str, delivery: Delivery) -> Any:
    plan = await delivery.step("plan", ask, text)
    patch = await delivery.step("patch", ask, plan)
    return await delivery.step("deploy", ask, patch)


async def ticket() -> object:
    id = await mq.produce("ticket", "bug")
    return await mq.result("ticket", id, timeout=WAIT)


# end


async def work() -> None:
    async with mq:
        await Worker(mq, concurrency=CONCURRENCY).run()


if __name__ == "__main__":
    play(lambda: asyncio.run(work()), book, ticket, mq)
