"""The shop's pages: a plain view and an async one. Neither opens the queue."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import aget_object_or_404
from django.views.decorators.csrf import csrf_exempt

from mx_rmq import ResultTimeout
from mx_rmq.django import mq, produce_on_commit
from orders.models import Order


@csrf_exempt
@transaction.atomic
def place(request: HttpRequest) -> JsonResponse:
    """Place an order; a worker ships it once this transaction has committed."""
    order = Order.objects.create(item=request.POST["item"], email=request.POST["email"])
    produce_on_commit("order.placed", order.pk, id=f"order-{order.pk}")
    return JsonResponse({"number": order.pk}, status=201)


async def show(request: HttpRequest, number: int) -> JsonResponse:
    """Show an order; wait five seconds for it to be shipped."""
    order = await aget_object_or_404(Order, pk=number)
    try:
        state = await mq.result("order.placed", f"order-{order.pk}", timeout=5)
    except ResultTimeout:
        state = order.state
    return JsonResponse({"item": order.item, "state": state})
