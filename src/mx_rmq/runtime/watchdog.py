"""The watchdog: restarts parts of a worker that ended unexpectedly.

A part may be cancelled by application code that cancels all tasks, or die of a bug, or of a lack of
memory, threads or file descriptors. A worker without it would be half dead, so the part is
restarted, with growing pauses. If that does not help, the worker fails: it stops, and `Worker.run`
raises.

The watchdog is a timer, not a task, so cancelling all tasks does not cancel it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from mx_rmq.core.events import PartDied, PartRestarted, WorkerFailed
from mx_rmq.core.text import named
from mx_rmq.runtime.loop import all_are_cancelled
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from mx_rmq.runtime.event_bus import Events

logger = get_logger(__name__)

CHECK_EVERY: Final = 0.25  # seconds

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds between two restarts of a part, doubled each time. The first one comes at once."""

LONG_LIFE: Final = 60.0  # seconds after which a restarted part counts as healthy again
MAX_RESTARTS: Final = 10  # without a long life in between; after that the worker fails
ENDING: Final = 3  # checks to skip while all tasks are cancelled: the event loop is probably ending


class Part(Protocol):
    """Something that must run as long as the worker does."""

    @property
    def name(self) -> str: ...

    def down(self) -> str:
        """Return why it does not run; empty: it does, or it was told to end."""

    def start(self) -> None:
        """Start it again. Raises if it cannot."""


@dataclass(slots=True)
class _Record:
    """What happened to a part that was down at least once."""

    why: str = ""
    down_since: float | None = None
    up_since: float = 0.0
    restarts: int = 0
    restart_at: float = 0.0


class Watchdog:
    """Watches the parts of one worker."""

    def __init__(
        self,
        worker: str,
        bus: Events,
        *,
        on_check: Callable[[], None],
        on_change: Callable[[], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._worker = worker
        self._bus = bus
        self._on_check = on_check
        self._on_change = on_change
        self._on_failed = on_failed
        self._parts: dict[Part, None] = {}
        self._records: dict[Part, _Record] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._ending = 0
        self._end: AsyncGenerator[None, None] | None = None
        self._failed = False

    def watch(self, *parts: Part) -> None:
        """Watch these parts as well."""
        self._parts.update(dict.fromkeys(parts))

    async def start(self) -> None:
        self._end = self._until_the_loop_ends()
        await anext(self._end)
        self._timer = self._loop.call_later(CHECK_EVERY, self._on_timer)

    async def stop(self) -> None:
        self._cancel()
        if self._end is not None:
            await self._end.aclose()

    def down(self) -> dict[str, str]:
        """Return the parts that are down now, each with the reason."""
        return {
            part.name: record.why
            for part, record in self._records.items()
            if record.down_since is not None
        }

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """Stop with the event loop: `asyncio.run` closes all asynchronous generators at its end."""
        try:
            yield
        finally:
            self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        try:
            self.check()
        except Exception:
            logger.exception("the watchdog failed; it continues")
        finally:
            if self._timer is not None:
                self._timer = self._loop.call_later(CHECK_EVERY, self._on_timer)

    def check(self) -> None:
        """Check every part once."""
        down = {part: why for part in self._parts if (why := part.down())}
        if down and all_are_cancelled() and self._ending < ENDING:
            self._ending += 1
            return
        self._ending = 0
        before = self.down()
        now = time.monotonic()
        for part in self._records.keys() - down.keys():
            self._note_up(part, now)
        for part, why in down.items():
            self._restart(part, why, now)
        if self.down() != before:
            self._on_change()
        self._on_check()

    def _note_up(self, part: Part, now: float) -> None:
        """Report a part that is back; forget its restarts once it has run for long."""
        record = self._records[part]
        if record.down_since is not None:
            seconds, record.down_since, record.up_since = now - record.down_since, None, now
            self._bus.emit(PartRestarted(self._worker, part.name, seconds, record.restarts))
        elif now - record.up_since >= LONG_LIFE:
            del self._records[part]

    def _restart(self, part: Part, why: str, now: float) -> None:
        """Report a part that is down and restart it when its pause is over, or give up."""
        record = self._records.setdefault(part, _Record())
        if record.down_since is None:
            record.down_since, record.why = now, why
            self._bus.emit(PartDied(self._worker, part.name, why))
        if now < record.restart_at or self._failed:
            return
        if record.restarts == MAX_RESTARTS:
            self._failed = True
            times = f"{MAX_RESTARTS} times"
            reason = f"the {part.name} was restarted {times} and is down again: {record.why}"
            self._bus.emit(WorkerFailed(self._worker, reason))
            self._on_failed(reason)
            return
        record.restarts += 1
        record.restart_at = now + min(FIRST_PAUSE * 2 ** (record.restarts - 1), LONGEST_PAUSE)
        try:
            part.start()
        except Exception as error:  # noqa: BLE001 - the next try comes soon
            record.why = named(error)
