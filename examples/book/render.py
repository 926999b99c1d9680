"""The handlers.

mx-rmq worker book.render:mq
"""

import asyncio
import os

from mx_rmq import Delivery, MessageQueue

mq = MessageQueue(os.environ.get("MX_RMQ_URL", "embedded://./mx-rmq-data"))


@mq.handler("page", timeout=30)
async def render(number: int) -> str:
    await asyncio.sleep(0.01 * (number % 5))  # render it
    return f"page {number}"


@mq.handler("book", result_ttl=3600)
async def bind(title: str, delivery: Delivery) -> str:
    """Bind the pages. It runs when all have completed; `results` has the order of `after`."""
    pages = delivery.results
    delivery.produce("mail", f"{title!r} is ready")
    return f"{title}: {len(pages)} pages, from {pages[0]!r} to {pages[-1]!r}"


@mq.handler("mail")
async def send(text: str) -> None:
    print("mail:", text)
