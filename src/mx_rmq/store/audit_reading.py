"""What an audit has read of a topic, and which messages and lines look wrong in it. No I/O."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from mx_rmq.store.lines import id_in_line, key_in_line
from mx_rmq.store.wait_faults import wait_suspects


class Places(NamedTuple):
    """How many places of each kind hold an id, in the order of inspect_message.lua."""

    record: int
    pending: int
    delayed: int
    lease: int
    deadline: int
    dead_index: int
    dead_letter: int
    quarantine_index: int
    quarantined_bytes: int
    result_index: int
    result: int
    expiry: int
    astray: int  # whether it is marked as cancelled in a list that it is not in

    def wrongs(self, *, aged: bool = False) -> list[str]:
        """Return what is wrong with a message in these places.

        An aged one may be left only in an index: the server drops old contents on its own.
        """
        live = {"pending": self.pending, "delayed": self.delayed, "processing": self.lease}
        archived = {
            "dead": self.dead_letter or (self.dead_index and not aged),
            "quarantined": self.quarantined_bytes or (self.quarantine_index and not aged),
        }
        states = [state for state, count in {**live, **archived}.items() if count]
        wrongs = [f"{count} times {state}" for state, count in live.items() if count > 1]
        if len(states) > 1:
            wrongs.append("in several states: " + ", ".join(states))
        if any(live.values()) and not self.record:
            wrongs.append("a state without a record: " + ", ".join(states))
        if self.record and not any(live.values()):
            wrongs.append("a record without a state")
        if self.lease and not self.deadline:
            wrongs.append("a lease without a deadline")
        if self.deadline and not self.lease:
            wrongs.append("a deadline without a lease")
        if not aged and bool(self.dead_index) != bool(self.dead_letter):
            wrongs.append("dead letters: index and contents disagree")
        if not aged and bool(self.quarantine_index) != bool(self.quarantined_bytes):
            wrongs.append("quarantine: index and contents disagree")
        if not aged and bool(self.result_index) != bool(self.result):
            wrongs.append("results: index and contents disagree")
        if self.expiry and not (self.pending or self.delayed):
            wrongs.append("an expiry time, but it is not waiting")
        if self.astray:
            wrongs.append("marked as cancelled in the pending list, but not there")
        return wrongs


class Waiting:
    """The ids in the pending lists, and the cancelled ids, whose one place does not count.

    `before` holds the cancelled ids from before the lists were read, `after` those from afterwards.
    An id in only one of them was cancelled or skipped in between.
    """

    def __init__(self) -> None:
        self.places: Counter[bytes] = Counter()
        self.before: set[bytes] = set()
        self.after: set[bytes] = set()

    def count(self, id: bytes) -> int:
        return max(0, self.places[id] - (id in self.before or id in self.after))

    def is_astray(self, id: bytes) -> bool:
        """Return whether an id is marked as cancelled but in no list."""
        return not self.places[id] and id in self.before and id in self.after


class Reading:
    """Everything that was read, key by key. The reads see different moments."""

    def __init__(self) -> None:
        self.records: set[bytes] = set()
        self.waiting = Waiting()
        self.delayed: Counter[bytes] = Counter()
        self.leases: dict[bytes, bytes] = {}
        self.deadlines: set[bytes] = set()
        self.dead_index: set[bytes] = set()
        self.dead_letters: set[bytes] = set()
        self.quarantine_index: set[bytes] = set()
        self.quarantined_bytes: set[bytes] = set()
        self.result_index: set[bytes] = set()
        self.results: set[bytes] = set()
        self.expiries: set[bytes] = set()
        self.places: dict[bytes, bytes] = {}
        self.lines: set[bytes] = set()
        self.ring: set[bytes] = set()
        self.blocked: set[bytes] = set()
        self.running: set[bytes] = set()
        self.parked: set[bytes] = set()
        self.awaited: set[bytes] = set()
        self.signalled: set[bytes] = set()
        self.aged: set[bytes] = set()
        """Archived messages over their age limit: not trimmed yet, or dropped by the server."""

    def suspects(self) -> list[bytes]:
        ids = self.records.union(
            self.waiting.places,
            self.waiting.after,
            self.delayed,
            self.leases,
            self.deadlines,
            self.dead_index,
            self.dead_letters,
            self.quarantine_index,
            self.quarantined_bytes,
            self.result_index,
            self.results,
            self.expiries,
        )
        return [id for id in ids if self.wrongs(id, self._places(id))]

    def line_suspects(self) -> list[tuple[str, bytes]]:
        """Return what looks wrong about lines, as repair_lines takes it."""
        found = []
        for member in self.lines:
            id = id_in_line(member)
            if id not in self.places or self.places[id] + id != member:
                found.append(("place", member))
        waiting = {key_in_line(member) for member in self.lines}
        found += [
            ("key", key)
            for key in (waiting | self.ring | self.blocked) - {b""}
            if (key in waiting) != (key in self.ring) + (key in self.blocked)
        ]
        for member in self.running:
            id = id_in_line(member)
            there = id in self.leases or id in self.delayed
            if not there or self.places.get(id, b"") + id != member:
                found.append(("running", member))
        for field in self.places:
            if field.startswith(b"!"):
                live = b" " in self.leases.get(field[1:], b"")
            else:
                live = field in self.records
            if field != b"!" and not live:
                found.append(("keyed", field))
        return found

    def wait_suspects(self) -> list[bytes]:
        """Return messages whose waits or signals look wrong, as repair_waits takes them."""
        existing = self.records | self.dead_letters | self.quarantined_bytes
        return wait_suspects(
            self.parked, self.awaited, self.signalled, delayed=self.delayed, existing=existing
        )

    def wrongs(self, id: bytes, places: Places) -> list[str]:
        return places.wrongs(aged=id in self.aged)

    def _places(self, id: bytes) -> Places:
        return Places(
            id in self.records,
            self.waiting.count(id),
            self.delayed[id],
            id in self.leases,
            id in self.deadlines,
            id in self.dead_index,
            id in self.dead_letters,
            id in self.quarantine_index,
            id in self.quarantined_bytes,
            id in self.result_index,
            id in self.results,
            id in self.expiries,
            self.waiting.is_astray(id),
        )
