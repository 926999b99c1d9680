"""The audit log: who did what, and when. One line of JSON each, and the latest ones for a page."""

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
"""Entries that the page can show, and refusals, which do not displace them."""

REFUSED: Final = 60
SPAN: Final = 60.0
"""At most REFUSED refusals are recorded per SPAN seconds, counted separately for strangers and
operators; of the rest, only how many there were."""

LONGEST: Final = 300
"""Characters kept of foreign text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One action, or an attempt at one."""

    at: float
    who: str
    where: str
    """The address it came from."""
    did: str
    topic: str = ""
    id: str = ""
    about: str = ""
    outcome: str


class AuditLog:
    """Everything that was done through this dashboard, in this process."""

    def __init__(self) -> None:
        self._entries: deque[AuditEntry] = deque(maxlen=KEPT)
        self._refused: deque[AuditEntry] = deque(maxlen=KEPT_REFUSED)
        self._quotas = {True: Quota(), False: Quota()}

    def refused(
        self, did: str, why: str, *, who: str, where: str, topic: str = "", id: str = ""
    ) -> None:
        """Record a refused action, within the quota."""
        quota = self._quotas[bool(who)]
        left_out = quota.take()
        if left_out is None:
            return
        about = f"{left_out:,} more were refused before this, and not recorded" if left_out else ""
        entry = AuditEntry(
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
        """Record an action and its outcome."""
        entry = AuditEntry(
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
    def _write(entry: AuditEntry, kept: deque[AuditEntry]) -> None:
        kept.append(entry)
        fields = {name: value for name, value in asdict(entry).items() if value != ""}
        logger.info("%s", json.dumps(fields))  # plain ASCII on one line, whatever is in it

    def latest(self, limit: int = KEPT) -> Sequence[AuditEntry]:
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
    """At most REFUSED per SPAN seconds."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._taken = self._left_out = 0

    def take(self) -> int | None:
        """Return how many were left out since the last one; None: this one is left out, too."""
        now = time.monotonic()
        if now - self._began > SPAN:
            self._began, self._taken = now, 0
        if self._taken >= REFUSED:
            self._left_out += 1
            return None
        self._taken += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
