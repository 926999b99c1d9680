"""The topics of a Tasks backend, one per queue name, and the options of their handler."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.utils.module_loading import import_string

from mx_rmq.core.errors import InvalidInput
from mx_rmq.django.project_queue import shared_queue

if TYPE_CHECKING:
    from collections.abc import Iterable

OPTIONS: Final = (
    "concurrency",
    "limit",
    "max_attempts",
    "max_crashes",
    "result_ttl",
    "retry",
    "timeout",
    "ttl",
)
"""What OPTIONS of a backend may contain: options of `mq.handler`."""

RESULT_TTL: Final = 86_400.0  # seconds for which a result is kept, unless OPTIONS says otherwise

_declaring: Final = threading.Lock()


def topic_of(alias: str, queue: str) -> str:
    """Return the topic of a backend's queue: `tasks:default`, or `tasks:ALIAS:QUEUE`."""
    return f"tasks:{queue}" if alias == "default" else f"tasks:{alias}:{queue}"


def declare(alias: str, queues: Iterable[str], options: Any) -> None:
    """Declare the handler of each queue, once per process; ValueError if something is wrong."""
    from mx_rmq.django.task_handler import TaskHandler

    where = f"TASKS[{alias!r}]"
    names = sorted(queues)
    if not names:
        raise ValueError(f"{where}: QUEUES is empty: workers must know the names of the queues")
    if not isinstance(options, dict):
        raise ValueError(f"{where}: OPTIONS={options!r:.80} is not a dict")
    if unknown := next((name for name in options if name not in OPTIONS), None):
        raise ValueError(
            f"{where}: OPTIONS has no {unknown!r}; the options are {', '.join(OPTIONS)}"
        )
    mq = shared_queue()
    for queue in names:
        topic = topic_of(alias, queue)
        with _declaring:
            if topic in mq.handlers:
                continue
            try:
                mq.handler(topic, **{"result_ttl": RESULT_TTL, **options})(
                    TaskHandler(alias, queue).run
                )
            except InvalidInput as error:
                raise ValueError(f"{where}: {error}") from error


def declare_configured() -> None:
    """Declare the handlers of every backend in `settings.TASKS` that is ours."""
    for alias, params in getattr(settings, "TASKS", {}).items():
        if _is_ours(params.get("BACKEND", "")):
            from mx_rmq.django.task_api import task_backends

            _ = task_backends[alias]


def _is_ours(path: str) -> bool:
    try:
        found = import_string(path)
    except ImportError:  # Django says so when the backend is used
        return False
    return isinstance(found, type) and any(
        one.__module__ == "mx_rmq.django.task_backend" for one in found.__mro__
    )
