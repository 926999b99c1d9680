"""mx-rmq: a message queue for Python on Redis and Valkey."""

from mx_rmq.core.errors import (
    DecodeError,
    InvalidInput,
    MxRmqError,
    OutcomeUnknown,
    PayloadTooLarge,
    ProduceUnknown,
    QueueFull,
    ServerFull,
    ServerUnavailable,
    UnsafeServer,
)

__all__ = [
    "DecodeError",
    "InvalidInput",
    "MxRmqError",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "ProduceUnknown",
    "QueueFull",
    "ServerFull",
    "ServerUnavailable",
    "UnsafeServer",
]
