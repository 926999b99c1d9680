"""Loggers that never raise: an exception in a handler, filter or formatter must not stop a worker.

The library gets its loggers here. Ruff bans `logging.getLogger` elsewhere, except in `cli`, `bench`
and `demo`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

REPORT_EVERY: Final = 60.0  # seconds between two reports of lost log calls on stderr


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that swallows whatever its handlers, filters and formatters raise.

    The first lost call is reported on stderr, later ones at most once per minute.
    """

    def __init__(
        self, logger: logging.Logger, losses: _Losses, extra: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(logger, extra)
        self._losses = losses

    def about(self, extra: Mapping[str, Any]) -> SafeLogger:
        """Return the same logger with fields that go into every record."""
        return SafeLogger(self.logger, self._losses, extra)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller, not this line
        try:
            super().log(level, msg, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - from a handler that is not ours
            self._losses.add(self.logger.name, error)
            defer_exit(error)


class _Losses:
    """Counts lost log calls and reports them without logging."""

    def __init__(self) -> None:
        self._count = 0
        self._report_at = float("-inf")

    def add(self, name: str, error: BaseException) -> None:
        self._count += 1
        if time.monotonic() < self._report_at:
            return
        self._report_at = time.monotonic() + REPORT_EVERY
        with suppress(BaseException):  # not even this may fail
            stream = sys.__stderr__ or sys.stderr
            stream.write(
                f"mx-rmq: logging failed ({type(error).__name__}: {error}); "
                f"{self._count} log calls of {name} are lost so far\n"
            )
            stream.flush()


def get_logger(name: str) -> SafeLogger:
    """Return the logger of this name. Its calls never raise."""
    return SafeLogger(logging.getLogger(name), _Losses())  # noqa: TID251 - the one place


def defer_exit(error: BaseException) -> None:
    """Let SystemExit and KeyboardInterrupt end the program, but not in the middle of our work.

    In an event loop they are raised from a separate callback, which ends the loop. Elsewhere
    they are raised here. Any other exception is dropped: the caller has reported it.
    """
    if not isinstance(error, SystemExit | KeyboardInterrupt):
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise error from None
    loop.call_soon(_raise, error)


def _raise(error: BaseException) -> NoReturn:
    raise error
