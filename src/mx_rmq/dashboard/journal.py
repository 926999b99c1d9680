"""The audit log: who did what, and when. A line of JSON each, and the last ones for a page."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("mx_rmq.dashboard.audit")

KEPT: Final = 1000
"""Entries that the page can show."""


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
        self._entries.append(entry)
        fields = {name: value for name, value in asdict(entry).items() if value != ""}
        logger.info("%s", json.dumps(fields))  # plain ASCII on one line, whatever is in it

    def latest(self, limit: int = KEPT) -> Sequence[Entry]:
        """Return the entries, newest first."""
        return list(reversed(self._entries))[:limit]
