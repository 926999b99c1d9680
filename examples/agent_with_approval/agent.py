"""The agent. Each call that costs money or changes something outside is a step.

mx-rmq worker agent_with_approval.agent:mq
"""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mx_rmq import Delivery, MessageQueue, Reject

mq = MessageQueue(os.environ.get("MX_RMQ_URL", "embedded://./mx-rmq-data"), lease=2)

CALLS = Path(os.environ.get("AGENT_CALLS", "calls.log"))
"""One line per call that the agent makes, so that you can see which ones it repeats."""


@dataclass
class Ticket:
    number: int
    text: str


@dataclass
class Approval:
    by: str
    granted: bool


@mq.handler("ticket", result_ttl=3600)
async def fix(ticket: Ticket, delivery: Delivery) -> str:
    """Fix a bug. This runs again after each wait, retry or crash; finished steps do not."""
    files = await delivery.step("1 find the files", ask_model, f"Which files? {ticket.text}")
    plan = await delivery.step("2 plan", ask_model, f"How to fix it in {files}?")
    patch = await delivery.step("3 write the patch", ask_model, f"Write it: {plan}")
    tests = await delivery.step("4 run the tests", call, f"tests of {patch}")

    approval = await delivery.wait("approval", timeout=7 * 86_400, type=Approval)
    if not approval.granted:
        raise Reject(f"{approval.by} said no")

    merged = await delivery.step("5 merge", call, f"merge after {tests}")
    image = await delivery.step("6 build", call, f"build {merged}")
    delivery.progress(0.9, "7 deploy")
    await delivery.step("7 deploy", deploy, image)
    delivery.produce("mail", f"ticket {ticket.number} is fixed, approved by {approval.by}")
    return f"ticket {ticket.number}: deployed"


@mq.handler("mail")
async def send(text: str) -> None:
    note(f"mail: {text}")


async def ask_model(prompt: str) -> str:
    """Stand in for a slow and expensive model."""
    note(f"model: {prompt}")
    await asyncio.sleep(0.2)
    return f"answer to {len(prompt)} characters"


async def call(what: str) -> Any:
    """Stand in for another service."""
    note(f"call: {what}")
    return {"done": what[:20]}


async def deploy(image: Any) -> str:
    """Deploy. A crash in the middle repeats it, so it must be safe to repeat."""
    note(f"deploy: {image['done']}")
    await asyncio.sleep(2)
    return "deployed"


def note(line: str) -> None:
    with CALLS.open("a") as file:
        file.write(f"worker {os.getpid()}: {line}\n")
