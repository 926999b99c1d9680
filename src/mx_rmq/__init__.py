"""mx-rmq: a message queue for Python on Redis and Valkey."""

from mx_rmq.core.errors import (
    DecodeError,
    EmbeddedServerError,
    InvalidInput,
    MissingRights,
    MxRmqError,
    OutcomeUnknown,
    PayloadTooLarge,
    ProduceUnknown,
    QueueFull,
    ScriptFailed,
    ServerFull,
    ServerUnavailable,
    UnsafeServer,
    WrongType,
)

__all__ = [
    "DecodeError",
    "EmbeddedServerError",
    "InvalidInput",
    "MissingRights",
    "MxRmqError",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "ProduceUnknown",
    "QueueFull",
    "ScriptFailed",
    "ServerFull",
    "ServerUnavailable",
    "UnsafeServer",
    "WrongType",
]
