"""How far a message must have come before a produce returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mx_rmq.core.errors import InvalidInput


class Level(StrEnum):
    """What is confirmed of a message."""

    STORED = "stored"
    """The primary has it: in memory, and in its append-only file as its `appendfsync` says."""
    REPLICATED = "replicated"
    """Replicas have it, too, in memory (WAIT)."""
    FSYNCED = "fsynced"
    """It is on the disk of the primary and of replicas (WAITAOF)."""


def check_level(level: str) -> Level:
    """Return a level, or refuse what is none."""
    try:
        return Level(level)
    except ValueError:
        raise InvalidInput(f"confirm={level!r:.80} is not one of {', '.join(Level)}") from None


@dataclass(frozen=True, slots=True)
class Confirm:
    """What a produce waits for."""

    level: Level
    replicas: int
    """How many replicas must have it."""
    within: float
    """Seconds to wait for them."""

    @property
    def command(self) -> tuple[str | int, ...]:
        """The command that waits for it, on the connection that has written."""
        ms = round(self.within * 1000)
        if self.level is Level.FSYNCED:
            return ("WAITAOF", 1, self.replicas, ms)
        return ("WAIT", self.replicas, ms)

    def missing(self, reply: int | list[int]) -> str:
        """Say what is missing of it after that command's reply; nothing: it is confirmed."""
        local, replicas = reply if isinstance(reply, list) else (1, reply)
        lacks = []
        if not local:
            lacks.append("the primary has not written it to its disk")
        if replicas < self.replicas:
            lacks.append(f"{replicas} of {self.replicas} replicas have confirmed it")
        return " and ".join(lacks)
