"""Shared by the commands that measure: a signal ends them, after they have cleaned up."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import click

from mx_rmq.cli.program import INTERRUPTED
from mx_rmq.runtime.loop import loop_factory

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

T = TypeVar("T")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_unless_stopped(work: Coroutine[Any, Any, T]) -> T:
    """Run a measurement and return what it found; after a signal, end the program."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        found = runner.run(_unless_stopped(work))
    if not found:
        click.echo("stopped; nothing is left behind", err=True)
        sys.exit(INTERRUPTED)
    return found[0]


async def _unless_stopped(work: Coroutine[Any, Any, T]) -> list[T]:
    running = asyncio.create_task(work, name="mx-rmq measuring")
    told = asyncio.Event()

    def on_signal() -> None:
        if not told.is_set():  # once: a second one must not interrupt the cleanup
            told.set()
            running.cancel()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    with suppress(asyncio.CancelledError):
        return [await running]
    return []
