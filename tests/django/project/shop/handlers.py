"""The handlers of the shop, which its workers find by themselves."""

from __future__ import annotations

import os

from django.db import connection, transaction

from mx_rmq.django import mq, produce_on_commit
from tests.django.project.shop.models import Order


@mq.handler("order.placed", result_ttl=600)
def ship(order: int) -> str:
    with transaction.atomic():
        Order.objects.filter(pk=order).update(state="shipped")
        produce_on_commit("order.shipped", order)
    return f"{order} shipped"


@mq.handler("order.shipped")
async def tell(order: int) -> None:
    await Order.objects.filter(pk=order).aupdate(state="told")


@mq.handler("order.refused")
def refuse(order: int) -> None:
    Order.objects.filter(pk=order).update(state="refused")
    raise ValueError("refused")


@mq.handler("connection", result_ttl=600)
def which_connection(_: None) -> list[int]:
    """Say which process this is, and whether its connection was open before."""
    was_open = connection.connection is not None
    Order.objects.count()
    return [os.getpid(), int(was_open)]
