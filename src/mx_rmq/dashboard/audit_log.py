"""The audit log: who did what, and when. One line of JSON each, and the latest ones for a page."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final

from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = get_logger("mx_rmq.dashboard.audit")

KEPT: Final = 1000  # entries that the page can show
KEPT_REFUSED: Final = 200  # refusals, which never push out entries

REFUSED: Final = 60
SPAN: Final = 60.0
"""At most REFUSED refusals are recorded per SPAN seconds, counted separately for strangers and
operators. The rest is only counted."""

LONGEST: Final = 300  # characters kept of a stranger's text


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One action, or an attempt at one: the fields of a line of JSON."""

    at: float = field(default_factory=time.time)
    who: str
    where: str  # the client's address
    did: str
    topic: str = ""
    id: str = ""
    about: str = ""
    outcome: str


class Quota:
    """At most REFUSED per SPAN seconds."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._taken = self._left_out = 0

    def take(self) -> int | None:
        """Return how many were left out since the last one; None: leave this one out, too."""
        now = time.monotonic()
        if now - self._began > SPAN:
            self._began, self._taken = now, 0
        if self._taken >= REFUSED:
            self._left_out += 1
            return None
        self._taken += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class AuditLog:
    """Everything that was done through this dashboard, in this process."""

    def __init__(self) -> None:
        self._entries: deque[AuditEntry] = deque(maxlen=KEPT)
        self._refused: deque[AuditEntry] = deque(maxlen=KEPT_REFUSED)
        self._quotas = {True: Quota(), False: Quota()}  # operators, strangers

    def add(self, entry: AuditEntry) -> None:
        self._write(entry, self._entries)

    def add_refused(self, entry: AuditEntry) -> None:
        """Record a refused action, within the quota. Its outcome says why it was refused."""
        left_out = self._quotas[bool(entry.who)].take()
        if left_out is None:
            return
        short = replace(
            entry,
            topic=entry.topic[:LONGEST],
            id=entry.id[:LONGEST],
            about=f"{left_out:,} earlier refusals were not recorded" if left_out else "",
            outcome=f"refused: {entry.outcome[:LONGEST]}",
        )
        self._write(short, self._refused)

    @staticmethod
    def _write(entry: AuditEntry, kept: deque[AuditEntry]) -> None:
        kept.append(entry)
        fields = {name: value for name, value in asdict(entry).items() if value != ""}
        logger.info("%s", json.dumps(fields))  # plain ASCII on one line, whatever is in it

    def latest(self, limit: int | None = None) -> Sequence[AuditEntry]:
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
