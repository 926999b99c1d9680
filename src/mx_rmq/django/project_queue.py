"""The one queue of a Django project, made from `settings.MX_RMQ`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from mx_rmq.core.errors import InvalidInput
from mx_rmq.django.connections import FreshConnections, fresh_connections
from mx_rmq.django.queue import DjangoQueue
from mx_rmq.settings import QueueOptions, WorkerSettings

OPTIONS: Final = ("url", *QueueOptions.__annotations__, "middleware", "lifespan")


def queue_from(given: Any, **overrides: Any) -> DjangoQueue:
    """Return a queue made from settings.MX_RMQ. Overrides that are None are ignored."""
    if not isinstance(given, Mapping):  # not shown: it may be a URL with a password
        raise ImproperlyConfigured(
            f"settings.MX_RMQ is of type {type(given).__name__}, not a dict of the options of "
            'MessageQueue, such as {"url": "redis://localhost:6379/0"}'
        )
    for name in given:
        _check_name(name)
    options = {**given, **{name: one for name, one in overrides.items() if one is not None}}
    given_middleware = options.pop("middleware", ())
    if isinstance(given_middleware, str) or not isinstance(given_middleware, list | tuple):
        raise ImproperlyConfigured(
            f'settings.MX_RMQ["middleware"]={given_middleware!r:.80} is not a list of classes'
        )
    middleware = [_made(_imported("middleware", one)) for one in given_middleware]
    lifespan = _imported("lifespan", options.pop("lifespan", None))
    try:
        mq = DjangoQueue(middleware=[FreshConnections(), *middleware], lifespan=lifespan, **options)
    except InvalidInput as error:
        raise ImproperlyConfigured(f"settings.MX_RMQ: {error}") from error
    mq.thread_scope = fresh_connections
    return mq


def _check_name(name: Any) -> None:
    if name in OPTIONS:
        return
    if name in {one.name for one in fields(WorkerSettings)}:
        why = (
            f"{name!r} is a setting of workers: pass it to `manage.py mx_rmq worker`, or set "
            f"MX_RMQ_{name.upper()} in the environment"
        )
    elif isinstance(name, str) and name.lower() in OPTIONS:
        why = f"{name!r} is not an option; did you mean {name.lower()!r}?"
    else:
        why = f"{name!r:.80} is not an option; the options are {', '.join(OPTIONS)}"
    raise ImproperlyConfigured(f"settings.MX_RMQ: {why}")


def _imported(option: str, value: Any) -> Any:
    """Import a dotted path; return anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise ImproperlyConfigured(f'settings.MX_RMQ["{option}"]: {error}') from error


def _made(middleware: Any) -> Any:
    return middleware() if isinstance(middleware, type) else middleware


class _Shared:
    """The one queue of this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._mq: DjangoQueue | None = None

    def get(self) -> DjangoQueue:
        if self._mq is None:  # else no lock: a process may fork while another thread has it
            with self._lock:
                if self._mq is None:
                    mq = queue_from(getattr(settings, "MX_RMQ", {}))
                    _ = mq.sync  # made once, before any thread asks for it
                    self._mq = mq
        return self._mq


shared_queue = _Shared().get
