"""What the doctor finds: one thing that was checked, how much it matters, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    SKIP = "skip"
    """It could not be checked, because this user lacks the rights."""
    WARN = "warn"
    """Needs attention, but can wait until morning."""
    BAD = "bad"
    """Messages are lost, stuck or refused, or will be."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    severity: Severity
    what: str
    cure: str = ""
    """What to do about it."""
    topic: str = ""
    """The topic it is about; empty: a server, a worker or the whole queue."""
    state: str = ""
    """Which messages of the topic to look at."""

    @property
    def bad(self) -> bool:
        """Whether messages are lost, stuck or refused, or will be."""
        return self.severity is Severity.BAD

    @property
    def title(self) -> str:
        """What was found, with the topic it is about."""
        return f"topic {self.topic}: {self.what}" if self.topic else self.what

    def __str__(self) -> str:
        return f"{self.title}. {self.cure}" if self.cure else self.title
