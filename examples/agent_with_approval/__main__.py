"""Run the agent, approve its patch, kill its worker at step 7, and see which calls are repeated."""

import asyncio
import os
import signal
import sys

from agent_with_approval.agent import CALLS, Approval, Ticket, mq

WORKER = [sys.executable, "-m", "mx_rmq.cli", "worker", "agent_with_approval.agent:mq"]


async def main() -> None:
    CALLS.unlink(missing_ok=True)
    async with mq:
        env = {**os.environ, "MX_RMQ_URL": mq.settings.url}
        worker = await start(env)
        id = await mq.produce("ticket", Ticket(number=7, text="the total is wrong"))

        await until(id, "waiting")
        print("the patch is ready; no worker holds the message while it waits for an approval")
        await mq.signal("ticket", id, "approval", Approval(by="kim", granted=True))

        await until_called("deploy:")
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
        print("killed the worker with SIGKILL, in the middle of step 7")

        second = await start(env)
        print(await mq.result("ticket", id, timeout=60))
        await until_called("mail:")
        second.terminate()
        await second.wait()
    for line in calls().splitlines():
        who = "first" if f"worker {worker.pid}:" in line else "second"
        print(f"{who} worker  {line.partition(': ')[2]}")


async def start(env: dict[str, str]) -> asyncio.subprocess.Process:
    quiet = asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(*WORKER, env=env, stdout=quiet, stderr=quiet)


async def until(id: str, state: str) -> None:
    async for status in mq.watch("ticket", id):
        if status.state == state:
            return


async def until_called(what: str) -> None:
    while what not in calls():  # noqa: ASYNC110 - another process writes the file
        await asyncio.sleep(0.05)


def calls() -> str:
    return CALLS.read_text() if CALLS.exists() else ""


asyncio.run(main())
