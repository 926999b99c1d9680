"""What an outbox reports: how many rows wait, and those that cannot be sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutboxCounts:
    """How many rows an outbox has; more than 100,000 are not counted."""

    waiting: int
    """Rows that are committed and not sent yet."""
    oldest: float
    """How long the first of them has waited, in seconds."""
    parked: int
    """Rows that can never be sent as they are."""


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row that cannot be sent, and why. The rows behind it were sent."""

    id: str
    topic: str
    payload: str
    error: str
    age: float
    """Seconds since it was written."""
