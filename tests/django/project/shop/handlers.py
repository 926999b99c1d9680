"""The handlers of the shop, which its workers find by themselves."""

from __future__ import annotations

import asyncio
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


@mq.handler("export", result_ttl=600)
async def export(_: None) -> int:
    """Read rows while other handlers begin, more than a second after this one."""
    await Order.objects.abulk_create([Order(item="pen") for _ in range(101)])
    count = 0
    async for _row in Order.objects.aiterator(chunk_size=100):
        if not count:
            await asyncio.sleep(1.1)
            for id in await mq.produce_many("connection", [None] * 4):
                await mq.result("connection", id)
        count += 1
    return count


@mq.handler("transaction", result_ttl=600)
def leave_a_transaction_open(_: None) -> None:
    transaction.atomic().__enter__()


@mq.handler("connection", result_ttl=600)
def which_connection(_: None) -> list[int]:
    """Say which process this is, and whether its connection was open before."""
    was_open = connection.connection is not None or connection.in_atomic_block
    Order.objects.count()
    return [os.getpid(), int(was_open)]
