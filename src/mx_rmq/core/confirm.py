"""How safe a message must be before a produce returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mx_rmq.core.errors import InvalidInput


class Level(StrEnum):
    """How safe a message is."""

    STORED = "stored"
    """The primary has it: in memory, and in its append-only file as its `appendfsync` says."""
    REPLICATED = "replicated"
    """Replicas have it in memory, too (WAIT)."""
    FSYNCED = "fsynced"
    """It is on the disk of the primary and of replicas (WAITAOF)."""


def check_level(level: str) -> Level:
    try:
        return Level(level)
    except ValueError:
        raise InvalidInput(f"confirm={level!r:.80} is not one of {', '.join(Level)}") from None


@dataclass(frozen=True, slots=True)
class Confirm:
    """What a produce waits for."""

    level: Level
    replicas: int  # how many replicas must have it
    within: float  # seconds to wait for them
