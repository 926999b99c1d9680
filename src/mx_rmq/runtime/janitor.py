"""The janitor: trims archives and histories, and recounts the bytes of archives.

Scripts that add to an archive trim it, too. This is for archives to which nothing is added. Results
live shorter than dead letters, so they are trimmed more often. So are the histories of busy topics:
only here is their size in bytes known.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from mx_rmq.core.message import ARCHIVES, State
from mx_rmq.runtime.loop import FailureLog, Loop, each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mx_rmq.store import Store

# Seconds
EVERY: Final = 3600.0  # between two rounds through all topics, or down to half of that
OFTEN: Final = 10.0  # between two rounds through histories that are written to, and our results
RESULTS_EVERY: Final = 60.0  # between two rounds through the results of all topics


class Janitor:
    """Trims the archives of the topics that a worker serves or looks after."""

    def __init__(
        self,
        store: Store,
        topics: Callable[[], Iterable[str]],
        keeping: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`keeping`: the topics among these whose handler keeps results."""
        self._store = store
        self._topics = topics
        self._keeping = keeping
        self._failures = FailureLog("janitor")
        self._round_at = float("-inf")  # when the next round through all topics begins
        self._results_at = float("-inf")  # the same for their results
        self.loop = Loop("janitor", self.step)

    async def step(self) -> float:
        active, self._store.active = self._store.active, set()
        if time.monotonic() >= self._round_at:
            await each(self._topics(), self._trim, self._failures)
            self._round_at = time.monotonic() + EVERY * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
            self._results_at = time.monotonic() + RESULTS_EVERY
            return OFTEN
        await each(active, self._store.trim_history, self._failures)
        if time.monotonic() < self._results_at:
            await each(self._keeping(), self._trim_results, self._failures)
        else:
            await each(self._topics(), self._trim_results, self._failures)
            self._results_at = time.monotonic() + RESULTS_EVERY
        return OFTEN

    async def _trim_results(self, topic: str) -> None:
        if await self._store.views.result_ttl(topic) is not None:
            while await self._store.trim_archive(topic, State.COMPLETED):
                pass

    async def _trim(self, topic: str) -> None:
        for state in ARCHIVES:
            while await self._store.trim_archive(topic, state):
                pass
        await self._store.trim_history(topic)
