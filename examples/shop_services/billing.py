"""Billing. A payment must succeed in the end, so it gets many attempts.

mx-rmq worker shop_services.billing:mq
"""

import asyncio

from mx_rmq import MessageQueue
from shop_services.order import TOPIC, URL, Order, record

mq = MessageQueue(URL, lease=2)


@mq.handler(TOPIC, subscription="billing", max_attempts=10)
async def bill(order: Order) -> None:
    await asyncio.sleep(0.02)  # a real one passes the order's number as the idempotency key
    record("billing", order.number)
