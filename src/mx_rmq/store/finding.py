"""What the doctor finds: one thing that was looked at, how much it matters, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    SKIP = "skip"
    """It could not be looked at, because this user may not."""
    WARN = "warn"
    """Somebody should look at it."""
    BAD = "bad"
    """Messages are lost, stuck or refused, or will be."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    severity: Severity
    what: str
    cure: str = ""
    """What to do about it."""

    def __str__(self) -> str:
        return f"{self.what}. {self.cure}" if self.cure else self.what
