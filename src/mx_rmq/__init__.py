"""mx-rmq: a message queue for Python on Redis and Valkey."""

from mx_rmq.core import events
from mx_rmq.core.delivery import Delivery
from mx_rmq.core.errors import (
    DecodeError,
    EmbeddedServerError,
    InvalidInput,
    MissingRights,
    MxRmqError,
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
from mx_rmq.core.outcome import HandlerTimeout, Reject, Retry
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
