"""The janitor: trims archives and histories, and recounts the bytes of archives.

Scripts that add to an archive trim it, too. This is for archives to which nothing is added.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from mx_rmq.core.message import State
from mx_rmq.runtime.loop import FailureLog, Loop, each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mx_rmq.store import Store

EVERY: Final = 3600.0  # seconds between two rounds, or down to half of that


class Janitor:
    """Trims the archives of the topics that a worker serves or looks after."""

    def __init__(self, store: Store, topics: Callable[[], Iterable[str]]) -> None:
        self._store = store
        self._topics = topics
        self._failures = FailureLog("janitor")
        self.loop = Loop("janitor", self.step)

    async def step(self) -> float:
        await each(self._topics(), self._trim, self._failures)
        return EVERY * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    async def _trim(self, topic: str) -> None:
        for state in (State.DEAD, State.QUARANTINED, State.COMPLETED):
            while await self._store.trim_archive(topic, state):
                pass
