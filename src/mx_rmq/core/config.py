"""The limits that a store keeps, validated at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from mx_rmq.core.errors import InvalidInput

DAY: Final = 86_400.0

SECOND_NET: Final = 3600
"""Seconds after its age limit at which the server itself drops an archived field (HEXPIRE)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be stored, how much of it and for how long. Times in seconds; 0 switches off."""

    max_payload: int = 1_048_576
    """Bytes of one encoded payload."""
    max_pending: int = 0
    """Messages of a topic that may wait (pending or delayed) before produce is refused."""
    dedup: float = 120.0
    """How long a caller's own id stays taken after its produce, also when it has finished."""
    dlq_max: int = 100_000
    """Dead letters kept per topic: the newest ones."""
    dlq_ttl: float = 90 * DAY
    """Age at which a dead letter is dropped."""
    quarantine_max: int = 10_000
    """Quarantined messages kept per topic: the newest ones."""
    quarantine_ttl: float = 30 * DAY
    """Age at which a quarantined message is dropped."""
    quarantine_bytes: int = 4 * 1_048_576
    """Bytes kept of one quarantined record. A longer one is cut, its length noted."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidInput(f"{field.name}={value!r} is not a number")
            if field.type == "int" and not isinstance(value, int):
                raise InvalidInput(f"{field.name}={value!r} is not a whole number")
            if not 0 <= value < 2**53 / 1000:
                raise InvalidInput(f"{field.name}={value!r} is not between 0 and 2^53 / 1000")
        if self.max_payload == 0:
            raise InvalidInput("max_payload=0 would refuse every payload")
