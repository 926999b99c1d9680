"""Tasks of every kind."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import django

from mx_rmq import Reject
from tests.django.project.shop.models import Order

if TYPE_CHECKING or django.VERSION < (6, 0):
    from django_tasks import TaskContext, task
else:
    from django.tasks import TaskContext, task


class Refused(Exception):
    pass


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task(queue_name="slow")
async def add_async(a: int, b: int = 0) -> int:
    return a + b


@task
def count_orders() -> int:
    return Order.objects.count()


@task(takes_context=True)
def attempts(context: TaskContext, needed: int) -> list[Any]:
    if context.attempt < needed:
        raise Refused(f"attempt {context.attempt}")
    return [context.attempt, len(context.task_result.errors), context.task_result.id]


@task
def fail() -> None:
    raise Refused("no")


@task
async def fail_async() -> None:
    raise Refused("no")


@task(backend="once")
def fail_once() -> None:
    raise Refused("no")


@task
def reject() -> None:
    raise Reject("not for us")


@task
def not_json() -> object:
    return object()


@task
def repeat(text: str, times: int) -> str:
    return text * times


@task(takes_context=True)
def crash_once(context: TaskContext) -> int:
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return context.attempt


__all__ = ["task"]

not_a_task = len
