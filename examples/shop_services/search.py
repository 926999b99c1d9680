"""Search. Its index is slow, so at most five messages run at a time.

mx-rmq worker shop_services.search:mq
"""

import asyncio

from mx_rmq import Limit, MessageQueue
from shop_services.order import TOPIC, URL, Order, record

mq = MessageQueue(URL, lease=2)


@mq.handler(TOPIC, subscription="search", limit=Limit(running=5))
async def index(order: Order) -> None:
    await asyncio.sleep(0.1)
    record("search", order.number)
