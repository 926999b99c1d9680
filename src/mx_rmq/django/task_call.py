"""A call of a task: what its message contains."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from django.apps import apps
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from mx_rmq.core.outcome import Reject
from mx_rmq.django.task_api import Task

if TYPE_CHECKING:
    from collections.abc import Sequence


class TaskCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a message that is a task."""

    task: str  # module and name
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    priority: int = 0
    run_after: datetime | None = None


def call_of(task: Task[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> TaskCall:
    return TaskCall(
        task=task.module_path,
        args=list(args),
        kwargs=kwargs,
        priority=task.priority,
        run_after=due_time(task.run_after),
    )


def due_time(run_after: datetime | None) -> datetime | None:
    """Return the time with its zone, which it lacks if USE_TZ is off."""
    if run_after is None or timezone.is_aware(run_after):
        return run_after
    return timezone.make_aware(run_after)


def local(at: datetime | None) -> datetime | None:
    """Return a time as Django shows it: without its zone if USE_TZ is off."""
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)


def check_module(path: str) -> None:
    """Refuse to import a module just because a message names it: importing runs code.

    Only modules of the project and its apps are imported, and those that already are.
    """
    module = path.rpartition(".")[0]
    project = [getattr(settings, name, None) for name in ("SETTINGS_MODULE", "ROOT_URLCONF")]
    if (
        module not in sys.modules
        and module.partition(".")[0] not in {one.partition(".")[0] for one in project if one}
        and apps.get_containing_app_config(module) is None
    ):
        raise ImportError(
            f"{path:.200} is not in the project nor in an app of INSTALLED_APPS: "
            "import its module in a handlers.py"
        )


def task_of(call: TaskCall, *, alias: str, queue: str) -> Task[..., Any]:
    """Import the task of a call, or refuse a name that is no task."""
    check_module(call.task)
    found = import_string(call.task)
    if not isinstance(found, Task):
        raise Reject(f"{call.task} is a {type(found).__name__}, not a task")
    return found.using(
        priority=call.priority, queue_name=queue, run_after=local(call.run_after), backend=alias
    )
