"""The reports: what an order says, and how a report is written. The worker needs only this file."""

import asyncio
import os
from dataclasses import dataclass
from typing import Final

from mx_rmq import Delivery, MessageQueue

PAGE_SECONDS: Final = 0.2  # a real report would query a database here

mq = MessageQueue(os.environ.get("MX_RMQ_URL", "embedded://./mx-rmq-data"))


@dataclass
class Order:
    title: str
    pages: int = 20


@dataclass
class Report:
    title: str
    pages: list[str]


reports = mq.topic("report.ordered", Order, result=Report)


@reports.handler(result_ttl=3600, timeout=600)
async def write(order: Order, delivery: Delivery) -> Report:
    """Write a report page by page. What it returns is kept for an hour."""
    pages = []
    for number in range(1, order.pages + 1):
        await asyncio.sleep(PAGE_SECONDS)
        pages.append(f"Page {number} of {order.title}")
        delivery.progress(number / order.pages, f"page {number} of {order.pages}")
    return Report(order.title, pages)
