"""The signals that stop a worker."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_stop_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Call back in this event loop on SIGTERM and SIGINT; restore the old handlers afterwards.

    Outside the main thread it does nothing: only there can Python handle signals.
    """
    loop = asyncio.get_running_loop()
    before = {}
    with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
        for number in STOP_SIGNALS:
            before[number] = signal.getsignal(number)
            loop.add_signal_handler(number, callback)
    try:
        yield
    finally:
        for number, handler in before.items():
            if loop.remove_signal_handler(number) and handler is not None:
                signal.signal(number, handler)
