"""Views that produce and wait, sync and async."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.views.decorators.csrf import csrf_exempt

from mx_rmq.django import mq, produce_on_commit
from tests.django.project.shop.models import Order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@csrf_exempt
def order(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        made = Order.objects.create(item=request.POST["item"])
        produce_on_commit("order.placed", made.pk, id=f"order-{made.pk}")
    return JsonResponse({"id": f"order-{made.pk}"})


@csrf_exempt
async def order_async(request: HttpRequest) -> JsonResponse:
    made = await Order.objects.acreate(item=request.POST["item"])
    return JsonResponse({"id": await mq.produce("order.placed", made.pk)})


async def result_async(request: HttpRequest, id: str) -> JsonResponse:
    return JsonResponse({"result": await mq.result("order.placed", id, timeout=30)})


async def watch_async(request: HttpRequest, id: str) -> HttpResponse | StreamingHttpResponse:
    async def states() -> AsyncIterator[str]:
        async for status in mq.watch("order.placed", id):
            yield f"{status.state}\n"

    return HttpResponse("".join([one async for one in states()]))
