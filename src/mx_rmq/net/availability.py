"""Is the server reachable? Every call reports its result; each change is announced once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

AWAY_AFTER: Final = 1.0  # seconds of nothing but failures after which the server counts as away
GAP: Final = 0.5  # seconds without an answer after which the server may have been unreachable


class Link:
    """Whether one site is reachable."""

    def __init__(self) -> None:
        self._failing_since: float | None = None
        self._asked_at: float | None = None  # when the oldest unanswered call was made
        self.is_away = False  # `on_lost` was called, and `on_back` not yet
        self.answered_at = float("-inf")  # when a call was last answered, on the monotonic clock
        self.answered_since = float("inf")  # since when answers have come without a gap
        self.back_at = float("-inf")  # when the server last came back after it was away
        self.late_at = float("-inf")  # when it last answered after a long silence without failures
        self.on_lost: Callable[[str], None] | None = None
        self.on_back: Callable[[float], None] | None = None

    @property
    def is_failing(self) -> bool:
        """Whether calls fail right now: the last one failed, or one has waited too long."""
        late = self._asked_at is not None and time.monotonic() - self._asked_at > AWAY_AFTER
        return late or self._failing_since is not None

    def is_known(self, moment: float) -> bool:
        """Whether calls show that the server was reachable for the last `moment` seconds."""
        now = time.monotonic()
        answers = now - self.answered_at <= GAP and now - self.answered_since >= moment
        return answers and not self.is_failing

    def asked(self) -> None:
        if self._asked_at is None:
            self._asked_at = time.monotonic()

    def failed(self, error: Exception) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif not self.is_away and now - self._failing_since >= AWAY_AFTER:
            self.is_away = True
            if self.on_lost is not None:
                self.on_lost(str(error))

    def answered(self) -> None:
        now = time.monotonic()
        if now - self.answered_at > GAP:
            self.answered_since = now
        self.answered_at = now
        if self._asked_at is not None and now - self._asked_at > AWAY_AFTER:
            self.late_at = now
        self._asked_at = None
        if self._failing_since is None:
            return
        seconds = now - self._failing_since
        self._failing_since = None
        if self.is_away:
            self.is_away = False
            self.back_at = now
            if self.on_back is not None:
                self.on_back(seconds)


class Links(dict[int, Link]):
    """The links of all sites. Announces the first loss, and the return of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self._lost = 0
        self.on_lost: Callable[[str], None] | None = None
        self.on_back: Callable[[float], None] | None = None

    def __missing__(self, site: int) -> Link:
        link = self[site] = Link()
        link.on_lost, link.on_back = self._one_lost, self._one_back
        return link

    def lost(self) -> list[int]:
        return [site for site, link in self.items() if link.is_away] if self._lost else []

    def _one_lost(self, error: str) -> None:
        self._lost += 1
        if self._lost == 1 and self.on_lost is not None:
            self.on_lost(error)

    def _one_back(self, seconds: float) -> None:
        self._lost -= 1
        if self._lost == 0 and self.on_back is not None:
            self.on_back(seconds)
