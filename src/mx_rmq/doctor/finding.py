"""A finding: what one check found, how much it matters, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Severity(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    SKIP = "skip"  # not checked, because this user lacks the rights
    WARN = "warn"  # needs attention, but can wait until morning
    BAD = "bad"  # messages are lost, stuck or refused, or will be


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    severity: Severity
    what: str
    cure: str = ""  # what to do about it
    topic: str = ""  # empty: it is about a server, a worker or the whole queue
    state: str = ""  # which messages of the topic to look at
    note: str = ""  # the same in a few words, for the table of `mx-rmq stats`

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


ok = partial(Finding, Severity.OK)
skip = partial(Finding, Severity.SKIP)
warn = partial(Finding, Severity.WARN)
bad = partial(Finding, Severity.BAD)
