"""Which message this code runs for, and in which worker, so that logs and traces can name them.

Set by the worker. Visible only to the handler and to the threads and tasks that it starts.
"""

from __future__ import annotations

from asyncio import CancelledError
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.threads import Interrupted

if TYPE_CHECKING:
    from mx_rmq.runtime.held import HeldBatch, HeldMessage, Stopped

message: Final[ContextVar[HeldMessage | HeldBatch | None]] = ContextVar(
    "mx_rmq.message", default=None
)
"""The message, or the batch of messages, that is being handled."""

worker: Final[ContextVar[str | None]] = ContextVar("mx_rmq.worker", default=None)
"""The name of the worker; None outside of one."""


def stopped(error: BaseException) -> Stopped | None:
    """Return why the worker interrupted the handler; None: the error is the handler's own."""
    held = message.get()
    interrupted = isinstance(error, CancelledError | Interrupted)
    return held.stopped if held is not None and interrupted else None
