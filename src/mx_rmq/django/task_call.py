"""A call of a task: what its message contains."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import msgspec
from django.apps import apps
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from mx_rmq.core.outcome import Reject
from mx_rmq.django.task_api import Task


class TaskCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a message that is a task."""

    task: str  # module and name
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    priority: int = 0
    run_after: datetime | None = None


def with_zone(at: datetime | None) -> datetime | None:
    """Return a time of Django's with its zone, which it lacks if USE_TZ is off."""
    return at if at is None or timezone.is_aware(at) else timezone.make_aware(at)


def django_time(at: datetime | None) -> datetime | None:
    """Return a time as Django shows it: without its zone if USE_TZ is off."""
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)


def check_module(path: str) -> None:
    """Refuse to import a module only because a message names it: an import runs code.

    Allowed are modules of the project and of its apps, and those that are already imported.
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
        priority=call.priority,
        queue_name=queue,
        run_after=django_time(call.run_after),
        backend=alias,
    )
