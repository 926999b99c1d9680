"""A small shop: the example behind `mx-rmq demo`. Read it, copy it, change it.

It also runs on its own: `mx-rmq server` in one terminal, `mx-rmq worker mx_rmq_demo.shop` in
another, then `mx-rmq produce orders …`. Where a real shop would work, it sleeps.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mx_rmq import Delivery, MessageQueue, Middleware, Reject, Retry

if TYPE_CHECKING:
    from mx_rmq.core.middleware import Handle

journal = logging.getLogger(__name__)


class Journal(Middleware):
    """Logs what each handler really did, independently of the queue. The demo trusts only this."""

    async def handle(self, delivery: Delivery, call_next: Handle) -> Any:
        """Wrap every handler call."""
        journal.info("started %s %s", delivery.topic, delivery.id)
        try:
            result = await call_next(delivery)
        except BaseException:
            journal.info("failed %s %s", delivery.topic, delivery.id)
            raise
        journal.info("done %s %s", delivery.topic, delivery.id)
        return result


mq = MessageQueue(
    os.environ.get("MX_RMQ_URL", "embedded://./mx-rmq-data"),
    lease=3,  # seconds until a silent worker's messages go to another one; the default is 30
    middleware=[Journal()],
)


# The payloads. A message whose payload does not fit is quarantined; no handler sees it.


@dataclass
class Order:
    number: int
    item: str
    to: str = "someone@example.org"


@dataclass
class Mail:
    to: str
    text: str


@dataclass
class Payment:
    order: int
    card: str


@dataclass
class Reminder:
    order: int


@dataclass
class Report:
    pages: int


# The handlers.


@mq.handler("orders", timeout=10)
async def pack(order: Order) -> None:
    """Pack an order and send a mail. The custom id makes it one mail, even if this runs twice."""
    await asyncio.sleep(0.4)
    mail = Mail(order.to, f"Your {order.item} is on its way.")
    await mq.produce("mails", mail, id=f"mail-{order.number}", priority="low")


@mq.handler("mails")
def send(mail: Mail) -> None:
    """Send a mail. A plain function may block: it runs in a thread."""
    time.sleep(0.2)


@mq.handler("payments", max_attempts=3, retry=[0.5, 1])
async def charge(payment: Payment, delivery: Delivery) -> None:
    """Charge a card. The exception decides what happens to the message."""
    await asyncio.sleep(0.2)
    if payment.card == "stolen":
        raise Reject("the card is stolen")  # dead at once
    if payment.card == "busy" and delivery.attempt == 1:
        raise Retry(delay=1, reason="the bank is busy")  # again in one second
    if payment.card == "void":
        raise ConnectionError("the bank does not answer")  # three attempts, then dead


@mq.handler("reminders")
async def remind(reminder: Reminder) -> None:
    """Remind a customer some seconds after the order: the message was produced with a delay."""
    await asyncio.sleep(0.1)


@mq.handler("reports", result_ttl=600)
async def write(report: Report, delivery: Delivery) -> str:
    """Write a report, and tell how far it is. What it returns is kept for ten minutes."""
    for page in range(1, report.pages + 1):
        await asyncio.sleep(0.2)
        delivery.progress(page / report.pages, f"page {page} of {report.pages}")
    return f"{report.pages} pages about teapots"
