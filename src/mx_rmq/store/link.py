"""Is the server there? Every call says what it saw; whoever cares is told of each change, once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

AWAY_AFTER: Final = 1.0
"""Seconds of nothing but failures after which the server counts as away. A blip does not."""

GAP: Final = 0.5
"""Seconds without an answer after which nobody knows whether the server was there."""


class Link:
    """The state of the way to one site."""

    def __init__(self) -> None:
        self._failing_since: float | None = None
        self._asked_at: float | None = None
        """When the oldest call was made that was not answered."""
        self._away = False
        self.heard_at = float("-inf")
        """When a call was last answered, on the monotonic clock."""
        self.heard_since = float("inf")
        """Since when answers come again and again."""
        self.back_at = float("-inf")
        """When the server was last heard again after it was away."""
        self.late_at = float("-inf")
        """When it was last heard again after it was silent for long, though no call failed."""
        self.on_lost: Callable[[str], None] | None = None
        self.on_back: Callable[[float], None] | None = None

    @property
    def is_away(self) -> bool:
        """Whether it was told to be lost, and not to be back."""
        return self._away

    @property
    def is_failing(self) -> bool:
        """Whether calls do not get through now: the last one failed, or one has waited for long."""
        late = self._asked_at is not None and time.monotonic() - self._asked_at > AWAY_AFTER
        return late or self._failing_since is not None

    def is_known(self, moment: float) -> bool:
        """Whether the server was there all the time for so many seconds, as far as calls tell."""
        now = time.monotonic()
        is_heard = now - self.heard_at <= GAP and now - self.heard_since >= moment
        return is_heard and not self.is_failing

    def asked(self) -> None:
        """A call is made."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()

    def failed(self, error: Exception) -> None:
        """A call did not get through."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif not self._away and now - self._failing_since >= AWAY_AFTER:
            self._away = True
            if self.on_lost is not None:
                self.on_lost(str(error))

    def answered(self) -> None:
        """A call got through."""
        now = time.monotonic()
        if now - self.heard_at > GAP:
            self.heard_since = now
        self.heard_at = now
        if self._asked_at is not None and now - self._asked_at > AWAY_AFTER:
            self.late_at = now
        self._asked_at = None
        if self._failing_since is None:
            return
        seconds = now - self._failing_since
        self._failing_since = None
        if self._away:
            self._away = False
            self.back_at = now
            if self.on_back is not None:
                self.on_back(seconds)


class Links(dict[int, Link]):
    """The links of all sites. Whether any of them is lost is told once."""

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
        """Return the sites that are lost."""
        return [site for site, link in self.items() if link.is_away] if self._lost else []

    def _one_lost(self, error: str) -> None:
        self._lost += 1
        if self._lost == 1 and self.on_lost is not None:
            self.on_lost(error)

    def _one_back(self, seconds: float) -> None:
        self._lost -= 1
        if self._lost == 0 and self.on_back is not None:
            self.on_back(seconds)
