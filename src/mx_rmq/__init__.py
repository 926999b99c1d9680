"""mx-rmq: a message queue for Python on Redis and Valkey.

The names are imported when they are first used: `import mx_rmq` alone loads neither asyncio nor
the Redis client.
"""

import sys as _sys
import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from mx_rmq.core import events
    from mx_rmq.core.batch import Batch, ItemFailed
    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.dependencies import Depends
    from mx_rmq.core.errors import (
        AlreadyDone,
        DecodeError,
        DuplicateMessage,
        EmbeddedServerError,
        InvalidInput,
        MessageDied,
        MissingRights,
        MxRmqError,
        NewerLayout,
        NewerRecord,
        NotConfirmed,
        NotOpen,
        OutcomeUnknown,
        PartlyProduced,
        PayloadTooLarge,
        ProduceUnknown,
        QueueFull,
        ResultTimeout,
        ResultUnknown,
        ScriptFailed,
        ServerFull,
        ServerUnavailable,
        StaleDelivery,
        UnsafeServer,
        WorkerBroken,
        WrongType,
    )
    from mx_rmq.core.limits import Limit, Rate
    from mx_rmq.core.message import Priority, State
    from mx_rmq.core.middleware import Middleware
    from mx_rmq.core.outcome import HandlerTimeout, NotAwaited, Reject, Retry, Snooze
    from mx_rmq.core.outgoing import Outgoing
    from mx_rmq.core.retry import ByError, Delays, Exponential
    from mx_rmq.core.status import Status
    from mx_rmq.flow import Flow
    from mx_rmq.queue import MessageQueue
    from mx_rmq.router import Router
    from mx_rmq.topic import Topic
    from mx_rmq.worker import Drained, Worker

__all__ = [
    "AlreadyDone",
    "Batch",
    "ByError",
    "DecodeError",
    "Delays",
    "Delivery",
    "Depends",
    "Drained",
    "DuplicateMessage",
    "EmbeddedServerError",
    "Exponential",
    "Flow",
    "HandlerTimeout",
    "InvalidInput",
    "ItemFailed",
    "Limit",
    "MessageDied",
    "MessageQueue",
    "Middleware",
    "MissingRights",
    "MxRmqError",
    "NewerLayout",
    "NewerRecord",
    "NotAwaited",
    "NotConfirmed",
    "NotOpen",
    "OutcomeUnknown",
    "Outgoing",
    "PartlyProduced",
    "PayloadTooLarge",
    "Priority",
    "ProduceUnknown",
    "QueueFull",
    "Rate",
    "Reject",
    "ResultTimeout",
    "ResultUnknown",
    "Retry",
    "Router",
    "ScriptFailed",
    "ServerFull",
    "ServerUnavailable",
    "Snooze",
    "StaleDelivery",
    "State",
    "Status",
    "Topic",
    "UnsafeServer",
    "Worker",
    "WorkerBroken",
    "WrongType",
    "events",
]

if not _typing.TYPE_CHECKING:  # a type checker would then accept any name
    _MODULES = {
        "Batch": "core.batch",
        "ItemFailed": "core.batch",
        "Delivery": "core.delivery",
        "Depends": "core.dependencies",
        "Limit": "core.limits",
        "Rate": "core.limits",
        "Priority": "core.message",
        "State": "core.message",
        "Middleware": "core.middleware",
        "Outgoing": "core.outgoing",
        "HandlerTimeout": "core.outcome",
        "NotAwaited": "core.outcome",
        "Reject": "core.outcome",
        "Retry": "core.outcome",
        "Snooze": "core.outcome",
        "ByError": "core.retry",
        "Delays": "core.retry",
        "Exponential": "core.retry",
        "Status": "core.status",
        "Flow": "flow",
        "MessageQueue": "queue",
        "Router": "router",
        "Topic": "topic",
        "Drained": "worker",
        "Worker": "worker",
    }
    """Name -> its module; every other name of __all__ is an error."""

    def __getattr__(name: str) -> object:
        """Import a name; point users of the other mx-rmq on PyPI to the migration page."""
        if name == "events":
            found = _import_module("mx_rmq.core.events")
        elif name in __all__:
            found = getattr(_import_module(f"mx_rmq.{_MODULES.get(name, 'core.errors')}"), name)
        elif name in ("MQConfig", "RedisMessageQueue"):
            text = (
                f"{name} belongs to mx-rmq 1.6.2, another project with the same name."
                " In this one it is MessageQueue(url): see docs/migration.md"
            )
            if _sys._getframe(1).f_code.co_name == "_handle_fromlist":  # from mx_rmq import name
                raise ImportError(text)
            raise AttributeError(text)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
