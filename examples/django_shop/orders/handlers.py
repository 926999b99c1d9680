"""What workers do with orders. `manage.py mx_rmq worker` finds this file by its name."""

from django.db import transaction

from mail.tasks import send_receipt
from mx_rmq.django import mq, produce_on_commit
from orders.models import Order


@mq.handler("order.placed", result_ttl=3600)
def ship(number: int) -> str:
    """Ship an order once, however often this runs."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=number)
        if order.state == "placed":
            order.state = "shipped"
            order.save()
            produce_on_commit("order.shipped", order.pk, id=f"shipped-{order.pk}")
    return str(order.state)


@mq.handler("order.shipped")
async def thank(number: int) -> None:
    """An async handler uses Django's async ORM, and awaits what it enqueues."""
    order = await Order.objects.aget(pk=number)
    await send_receipt.aenqueue(order.email, f"Your {order.item} is on its way")
