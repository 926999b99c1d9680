"""The janitor: trims archives and histories, and recounts the bytes of archives.

Scripts that add to an archive trim it, too. This is for archives to which nothing is added. The
histories of busy topics are trimmed often: only here is their size in bytes known.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from mx_rmq.core.message import ARCHIVES
from mx_rmq.runtime.loop import FailureLog, Loop, each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mx_rmq.store import Store

# Seconds
EVERY: Final = 3600.0  # between two rounds through all topics, or down to half of that
HISTORY_EVERY: Final = 10.0  # between two rounds through the histories that are written to


class Janitor:
    """Trims the archives of the topics that a worker serves or looks after."""

    def __init__(self, store: Store, topics: Callable[[], Iterable[str]]) -> None:
        self._store = store
        self._topics = topics
        self._failures = FailureLog("janitor")
        self._round_at = float("-inf")  # when the next round through all topics begins
        self.loop = Loop("janitor", self.step)

    async def step(self) -> float:
        active, self._store.active = self._store.active, set()
        if time.monotonic() < self._round_at:
            await each(active, self._store.trim_history, self._failures)
        else:
            await each(self._topics(), self._trim, self._failures)
            self._round_at = time.monotonic() + EVERY * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        return HISTORY_EVERY

    async def _trim(self, topic: str) -> None:
        for state in ARCHIVES:
            while await self._store.trim_archive(topic, state):
                pass
        await self._store.trim_history(topic)
