"""The audit log: who did what, and when. A line of JSON each, and the last ones for a page."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = get_logger("mx_rmq.dashboard.audit")

KEPT: Final = 1000
KEPT_REFUSED: Final = 200
"""Entries that the page can show, and refusals: they do not displace the others."""

REFUSED: Final = 60
SPAN: Final = 60.0
"""Refusals that are written down in so many seconds, those of strangers and those of operators
each; of the rest, how many there were."""

LONGEST: Final = 300
"""Characters of what somebody else has written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that somebody did, or tried to do."""

    at: float
    who: str
    where: str
    """The address it came from."""
    did: str
    topic: str = ""
    id: str = ""
    about: str = ""
    outcome: str


class Journal:
    """Everything that was done through this dashboard, in this process."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self._refused: deque[Entry] = deque(maxlen=KEPT_REFUSED)
        self._quotas = {True: Quota(), False: Quota()}

    def refused(
        self, did: str, why: str, *, who: str, where: str, topic: str = "", id: str = ""
    ) -> None:
        """Write down what was not done, and why; not more of it than one can read."""
        quota = self._quotas[bool(who)]
        left_out = quota.take()
        if left_out is None:
            return
        about = f"{left_out:,} more were refused before, and not written down" if left_out else ""
        entry = Entry(
            at=time.time(),
            who=who,
            where=where,
            did=did,
            topic=topic[:LONGEST],
            id=id[:LONGEST],
            about=about,
            outcome=f"refused: {why[:LONGEST]}",
        )
        self._write(entry, self._refused)

    def note(
        self,
        did: str,
        outcome: str,
        *,
        who: str,
        where: str,
        topic: str = "",
        id: str = "",
        about: str = "",
    ) -> None:
        """Write down what was done and what became of it."""
        entry = Entry(
            at=time.time(),
            who=who,
            where=where,
            did=did,
            topic=topic,
            id=id,
            about=about,
            outcome=outcome,
        )
        self._write(entry, self._entries)

    @staticmethod
    def _write(entry: Entry, kept: deque[Entry]) -> None:
        kept.append(entry)
        fields = {name: value for name, value in asdict(entry).items() if value != ""}
        logger.info("%s", json.dumps(fields))  # plain ASCII on one line, whatever is in it

    def latest(self, limit: int = KEPT) -> Sequence[Entry]:
        """Return the entries, newest first."""
        both = sorted([*self._entries, *self._refused], key=lambda one: one.at, reverse=True)
        return both[:limit]


class Throttle(logging.Filter):
    """A filter for log handlers: limits the lines of each kind, and says how many were left out.

    Anyone can cause thousands of lines per second with malformed requests. Lines are of one kind if
    the same line of code wrote them. The audit log has its own quota.
    """

    def __init__(self) -> None:
        super().__init__()
        self._quotas: dict[tuple[str, int], Quota] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == logger.name:
            return True
        left_out = self._quotas.setdefault((record.pathname, record.lineno), Quota()).take()
        if left_out is None:
            return False
        if left_out:
            more = f"{left_out:,} more lines like this were left out"
            record.msg, record.args = f"{record.getMessage()} ({more})", None
        return True


class Quota:
    """So many in a span of time."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._taken = self._left_out = 0

    def take(self) -> int | None:
        """Return how many were left out since the last one; None: this one is, too."""
        now = time.monotonic()
        if now - self._began > SPAN:
            self._began, self._taken = now, 0
        if self._taken >= REFUSED:
            self._left_out += 1
            return None
        self._taken += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
