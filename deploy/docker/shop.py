"""An application to try the image with. Replace it with yours."""

import logging

from mx_rmq import MessageQueue

logger = logging.getLogger("shop")
mq = MessageQueue()  # MX_RMQ_URL says where


@mq.handler("order.created")
async def ship(order: dict) -> None:
    logger.info("shipping %s", order.get("id"))


@mq.cron("*/5 * * * *")
async def report() -> None:
    logger.info("five minutes have passed")
