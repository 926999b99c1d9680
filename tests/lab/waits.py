"""What messages wait for, and the signals that have arrived: the part of the model for `waiting`,
`awaited` and `signals` (see `keys.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field

NEVER = 253_402_300_799_000
"""When a message without a timeout is due, in ms."""


@dataclass
class Waits:
    """The messages of one topic that wait for signals."""

    since: dict[str, int] = field(default_factory=dict)
    missing: set[tuple[str, str]] = field(default_factory=set)
    """Id and name of each missing signal."""
    came: dict[tuple[str, str], str] = field(default_factory=dict)
    """Id and name of each stored signal, and its value."""

    def park(self, id: str, names: list[str], now: int) -> bool:
        """Park a message; return whether any signal is missing."""
        missing = {(id, name) for name in names if (id, name) not in self.came}
        self.missing |= missing
        if missing:
            self.since[id] = now
        return bool(missing)

    def keep(self, id: str, name: str, value: str) -> bool:
        """Store a signal; return whether it was the last one that its message waited for."""
        self.came[id, name] = value
        was_missing = (id, name) in self.missing
        self.missing.discard((id, name))
        return was_missing and id not in {one for one, _ in self.missing}

    def end(self, id: str) -> bool:
        """End a message's wait; return whether it waited."""
        self.missing = {one for one in self.missing if one[0] != id}
        return self.since.pop(id, None) is not None

    def forget(self, id: str) -> None:
        """Drop the signals of a message that has ended."""
        self.came = {one: value for one, value in self.came.items() if one[0] != id}

    def signals_of(self, id: str) -> dict[str, str]:
        return {name: value for (one, name), value in self.came.items() if one == id}
