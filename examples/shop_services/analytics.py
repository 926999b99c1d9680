"""Analytics. It is fast, and gives up after two attempts.

mx-rmq worker shop_services.analytics:mq
"""

from mx_rmq import MessageQueue
from shop_services.order import TOPIC, URL, Order, record

mq = MessageQueue(URL, lease=2)


@mq.handler(TOPIC, subscription="analytics", max_attempts=2)
async def count(order: Order) -> None:
    record("analytics", order.number)
