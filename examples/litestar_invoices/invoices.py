"""The invoices: what a run says, and how it is done. The worker needs only this file."""

import asyncio
import os
from dataclasses import dataclass
from typing import Final

from mx_rmq import Delivery, MessageQueue

INVOICE_SECONDS: Final = 0.2  # a real run would render a PDF here

mq = MessageQueue(os.environ.get("MX_RMQ_URL", "embedded://./mx-rmq-data"))


@dataclass
class Run:
    month: str
    customers: int = 20


@dataclass
class Invoices:
    month: str
    numbers: list[str]


runs = mq.topic("invoices.due", Run, result=Invoices)


@runs.handler(result_ttl=3600, timeout=600)
async def write(run: Run, delivery: Delivery) -> Invoices:
    """Write one invoice per customer."""
    numbers = []
    for customer in range(1, run.customers + 1):
        await asyncio.sleep(INVOICE_SECONDS)
        numbers.append(f"{run.month}-{customer:04}")
        delivery.progress(customer / run.customers, f"invoice {customer} of {run.customers}")
    return Invoices(run.month, numbers)
