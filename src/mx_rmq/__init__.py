"""mx-rmq: a message queue for Python on Redis and Valkey."""

import typing as _typing

from mx_rmq.core import events
from mx_rmq.core.delivery import Delivery
from mx_rmq.core.errors import (
    DecodeError,
    EmbeddedServerError,
    InvalidInput,
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
    ScriptFailed,
    ServerFull,
    ServerUnavailable,
    UnsafeServer,
    WorkerBroken,
    WrongType,
)
from mx_rmq.core.message import Priority, State
from mx_rmq.core.middleware import Middleware, Outgoing
from mx_rmq.core.outcome import HandlerTimeout, NotAwaited, Reject, Retry
from mx_rmq.core.retry import ByError, Delays, Exponential
from mx_rmq.queue import MessageQueue
from mx_rmq.worker import Drained, Worker

__all__ = [
    "ByError",
    "DecodeError",
    "Delays",
    "Delivery",
    "Drained",
    "EmbeddedServerError",
    "Exponential",
    "HandlerTimeout",
    "InvalidInput",
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
    "Reject",
    "Retry",
    "ScriptFailed",
    "ServerFull",
    "ServerUnavailable",
    "State",
    "UnsafeServer",
    "Worker",
    "WorkerBroken",
    "WrongType",
    "events",
]

if not _typing.TYPE_CHECKING:  # a type checker would then accept any name

    def __getattr__(name: str) -> object:
        """Point users of the other mx-rmq on PyPI to the migration page."""
        if name in ("MQConfig", "RedisMessageQueue"):
            raise ImportError(
                f"{name} belongs to mx-rmq 1.6.2, another project with the same name."
                " In this one it is MessageQueue(url): see docs/migration.md"
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
