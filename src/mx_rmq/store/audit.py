"""Is every message in exactly one state? (G2)

The audit reads a topic in small steps, so it can run beside live traffic. The steps see different
moments, so a message that moves meanwhile looks wrong. So suspects are checked again a few times.
For those that are left, a script looks at all places of the message atomically. Only what is wrong
there is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq.core.errors import WrongType
from mx_rmq.core.message import State
from mx_rmq.settings import SECOND_NET
from mx_rmq.store.audit_reading import Places, Reading, Waiting
from mx_rmq.store.line_faults import LineFault
from mx_rmq.store.lines import id_in_line
from mx_rmq.store.script import load
from mx_rmq.store.wait_faults import WaitFault

if TYPE_CHECKING:
    from collections import Counter

    from mx_rmq.net.connection import Value
    from mx_rmq.store.keys import TopicKeys
    from mx_rmq.store.store import Store

STEP: Final = 200
"""Elements read at a time: in a set of a million, each costs the server a cache miss."""

SUSPECTS: Final = 100  # suspects checked in one call

CHECKS: Final = 3
"""How often suspects are checked before the lists are walked for the rest: a message that keeps
moving may look wrong twice."""


@dataclass(frozen=True, slots=True)
class Violation:
    topic: str
    id: str  # the message, or '' for the topic itself
    what: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.id or '(topic)'}: {self.what}"


class Examined(NamedTuple):
    """What is wrong with a topic, and what a repair needs to know."""

    violations: list[Violation]
    ids: list[bytes]  # the messages to repair, including those with an invalid lease
    token: int  # the highest token of a lease
    wrong_types: bool = False
    """Some keys have a wrong type. Nothing else was checked, and a person must decide what to do
    with the contents."""
    miscounted: bool = False  # whether the recorded bytes of an archive are wrong
    lines: tuple[LineFault, ...] = ()  # what is wrong about the lines of keys
    waits: tuple[WaitFault, ...] = ()  # what is wrong about messages that wait, or about signals


class Audit:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._caller = store.caller

    async def topic(self, topic: str) -> list[Violation]:
        """Return every violation in a topic; empty: the topic is clean."""
        return (await self.examine(topic)).violations

    async def examine(self, topic: str) -> Examined:
        """Return every violation in a topic, and what a repair needs to know."""
        keys = self._store.keys.of(topic)
        try:
            reading = await self._read(keys)
            wrongs = await self._wrong_counters(keys, reading)
            for _ in range(CHECKS):
                miscounts = await self._miscounts(keys)
                if not miscounts:
                    break
        except WrongType:
            wrongs = await self._wrong_types(keys)
            return Examined([Violation(topic, "", one) for one in wrongs], [], 0, wrong_types=True)
        found = [Violation(topic, "", wrong) for wrong in (*wrongs, *miscounts)]
        suspects = reading.suspects()
        for _ in range(CHECKS):
            suspects = await self._still_wrong(keys, reading, suspects)
        for id in suspects:  # atomically now; that walks the lists, so one at a time
            (walked,) = await self._inspect(keys, [id], walk=True)
            shown = id.decode("utf-8", "backslashreplace")
            found += [Violation(topic, shown, what) for what in reading.wrongs(id, walked)]
        lines = await self._wrong_lines(topic, reading)
        found += [Violation(topic, one.id, one.wrong) for one in lines]
        waits = await self._wrong_waits(topic, reading)
        for fault in waits:
            shown = fault.id.decode("utf-8", "backslashreplace")
            found += [Violation(topic, shown, what) for what in fault.wrongs]
        tokens = {id: _token(lease) for id, lease in reading.leases.items()}
        broken = [id for id, token in tokens.items() if token is None and id not in suspects]
        highest = max((t or 0 for t in tokens.values()), default=0)
        return Examined(
            found,
            suspects + broken,
            highest,
            miscounted=bool(miscounts),
            lines=lines,
            waits=waits,
        )

    async def _wrong_lines(self, topic: str, reading: Reading) -> tuple[LineFault, ...]:
        """Return what is wrong about lines; each suspect is checked at one moment."""
        suspects = sorted(reading.line_suspects())
        codes = await self._store.repair_lines(topic, suspects, dry_run=True)
        checked = zip(suspects, codes, strict=True)
        return tuple(LineFault(*one, code) for one, code in checked if code)

    async def _wrong_waits(self, topic: str, reading: Reading) -> tuple[WaitFault, ...]:
        """Return what is wrong about waits and signals; each suspect is checked at one moment."""
        suspects = reading.wait_suspects()
        codes = await self._store.repair_waits(topic, suspects, dry_run=True)
        checked = zip(suspects, codes, strict=True)
        return tuple(WaitFault(id, code) for id, code in checked if code)

    async def _still_wrong(
        self, keys: TopicKeys, reading: Reading, suspects: list[bytes]
    ) -> list[bytes]:
        """Check suspects again; return those that still look wrong.

        To tell whether they are pending, the script would have to walk the lists. So the lists are
        read again instead.
        """
        waiting = await self._waiting(keys) if suspects else Waiting()
        wrong: list[bytes] = []
        for start in range(0, len(suspects), SUSPECTS):
            chunk = suspects[start : start + SUSPECTS]
            for id, places in zip(chunk, await self._inspect(keys, chunk), strict=True):
                now = places._replace(pending=waiting.count(id), astray=waiting.is_astray(id))
                if reading.wrongs(id, now):
                    wrong.append(id)
        return wrong

    async def _wrong_types(self, keys: TopicKeys) -> list[str]:
        wrongs = []
        for name, wanted in keys.types().items():
            kind = (await self._caller.command("TYPE", name)).decode()
            if kind not in ("none", wanted):
                wrongs.append(f"key {name} holds a {kind}, not a {wanted}")
        return wrongs

    async def _read(self, keys: TopicKeys) -> Reading:
        # Records first: then a message that finishes meanwhile is cleared without walking a list.
        reading = Reading()
        reading.records = await self._fields(keys.payload)
        reading.waiting = await self._waiting(keys)
        for key in (keys.delay_tasks_high, keys.delay_tasks, keys.delay_tasks_low):
            reading.delayed.update(await self._members(key))
        reading.expiries = await self._members(keys.expiry)
        reading.leases = dict(await self._scan("HSCAN", keys.processing))
        reading.places = dict(await self._scan("HSCAN", keys.keyed))
        reading.lines = await self._members(keys.lines)
        reading.ring = await self._members(keys.ring)
        reading.blocked = await self._members(keys.blocked)
        reading.running = await self._members(keys.running)
        reading.parked = await self._members(keys.waiting)
        reading.awaited = await self._members(keys.awaited)
        reading.signalled = await self._signalled(keys)
        reading.deadlines = await self._members(keys.expire_monitor)
        now, limits = await self._store.time(keys.payload), self._store.limits
        result_ttl = (await self._store.views.result_ttl(keys.topic) or 0) / 1000
        for index, ids, ttl in (
            (keys.dlq, reading.dead_index, limits.dlq_ttl),
            (keys.error_parse_queue, reading.quarantine_index, limits.quarantine_ttl),
            (keys.results, reading.result_index, result_ttl),
        ):
            for id, at in await self._scan("ZSCAN", index):
                ids.add(id)
                ages = [ttl] * bool(ttl) + [SECOND_NET] * self._store.hexpire
                if any(at <= now - seconds * 1000 for seconds in ages):
                    reading.aged.add(id)
        reading.dead_letters = await self._fields(keys.dlq_payload)
        reading.quarantined_bytes = await self._fields(keys.error_parse_payload)
        reading.results = await self._fields(keys.results_payload)
        return reading

    async def _waiting(self, keys: TopicKeys) -> Waiting:
        waiting = Waiting()
        waiting.before = set(await self._scan("SSCAN", keys.cancelled))
        for key in (keys.pending_high, keys.pending, keys.pending_low):
            await self._list(key, waiting.places)
        waiting.places.update(map(id_in_line, await self._members(keys.lines)))
        waiting.after = set(await self._scan("SSCAN", keys.cancelled))
        return waiting

    async def _fields(self, key: str) -> set[bytes]:
        script = load("scan_fields")
        fields: set[bytes] = set()
        cursor = b"0"
        while True:
            args = script.arguments({"cursor": cursor, "step": STEP})
            cursor, *found = await self._caller.run(script, [key], args)
            fields.update(found)
            if cursor == b"0":
                return fields

    async def _signalled(self, keys: TopicKeys) -> set[bytes]:
        """Return the ids of messages that have signals."""
        script = load("scan_signals")
        ids: set[bytes] = set()
        last = b""
        while True:
            args = script.arguments({"start": last, "step": STEP})
            found = await self._caller.run(script, [keys.signals], args)
            ids.update(found)
            if len(found) < STEP:
                return ids
            last = found[-1]

    async def _members(self, key: str) -> set[bytes]:
        """Return the members of a sorted set."""
        return {member for member, _ in await self._scan("ZSCAN", key)}

    async def _scan(self, command: str, key: str) -> list[Any]:
        """Return the members of a set, or the pairs of a sorted set or hash."""
        members: list[Any] = []
        cursor = 0
        while True:
            cursor, found = await self._caller.command(command, key, cursor, "COUNT", STEP)
            members += found.items() if isinstance(found, dict) else found
            if cursor == 0:
                return members

    async def _list(self, key: str, seen: Counter[bytes]) -> None:
        """Count a list's elements. A push meanwhile shifts the rest: some are read twice."""
        start = 0
        last: list[bytes] = []
        while chunk := await self._caller.command("LRANGE", key, start, start + STEP - 1):
            start += len(chunk)
            shifted = chunk.index(last[-1]) + 1 if last and last[-1] in chunk else 0
            if chunk[:shifted] != last[len(last) - shifted :]:
                shifted = 0  # not a shift: the id is there twice
            last = chunk
            # Count the last of the overlap again: the id may be there twice in a row.
            seen.update(chunk[max(0, shifted - 1) :])

    async def _wrong_counters(self, keys: TopicKeys, reading: Reading) -> list[str]:
        wrongs = []
        counter = await self._caller.command("HGET", keys.meta, "token") or b"0"
        if not counter.isdigit():
            return [f"the token counter is {counter!r}, not a number"]
        token = int(counter)
        for id, lease in reading.leases.items():
            held_by = _token(lease)
            shown = id.decode("utf-8", "backslashreplace")
            if held_by is None:
                wrongs.append(f"the lease of {shown} is {lease!r}, not token:worker")
            elif held_by > token:
                wrongs.append(f"the token counter is {token}, behind the lease of {shown}")
        for command, key in (  # the counts do not matter, a wrong type raises
            ("ZCARD", keys.recent),
            ("HLEN", keys.limits),
            ("ZCARD", keys.buckets),
            ("HLEN", keys.totals),
            ("HLEN", keys.archive_bytes),
            ("XLEN", keys.history),
        ):
            await self._caller.command(command, key)
        wrongs += await self._stray_schedules(keys)
        for doorbell in (keys.doorbell, keys.doorbell_delay):
            rings = int(await self._caller.command("LLEN", doorbell))
            if rings > 1:
                wrongs.append(f"{doorbell} holds {rings} rings")
        return wrongs

    async def _stray_schedules(self, keys: TopicKeys) -> list[str]:
        """Report pauses and ticks of schedules that do not exist. The topic's cron has no name."""
        fields = await self._fields(keys.schedules)
        wrongs = []
        for field in sorted(fields):
            kind, name = field[:1], field[1:]
            if kind not in (b"!", b"@") or not name or name in fields:
                continue
            there = await self._caller.command("HMGET", keys.schedules, field, name)
            if there[0] is not None and there[1] is None:  # not just removed
                shown = name.decode("utf-8", "backslashreplace")
                what = "pause" if kind == b"!" else "last tick"
                wrongs.append(f"schedule {shown} has a {what}, but no definition")
        return wrongs

    async def _miscounts(self, keys: TopicKeys) -> list[str]:
        """Return the archives whose recorded bytes are wrong.

        Only where the record is final and did not change while the archive was read. An archive
        that is being counted again, or will be at the next call, is fine.
        """
        wrongs = []
        for state, arrived in (
            (State.DEAD, "died"),
            (State.QUARANTINED, "quarantined"),
            (State.COMPLETED, "kept"),
        ):
            _, contents = keys.archive_of(state)
            fields = [f"{state}{part}" for part in ("", ":seal", ":upto")]
            before = await self._caller.command("HMGET", keys.archive_bytes, *fields)
            noted, seal, upto = before
            if noted is None or upto:
                continue
            held = await self._caller.command("HLEN", contents)
            ever = await self._caller.command("HGET", keys.totals, arrived) or b"0"
            if seal != b"%d %s" % (held, ever):
                continue
            size = 0
            ids = [*await self._fields(contents)]
            weigh = load("weigh_fields")
            for start in range(0, len(ids), STEP):
                chunk: list[Value] = [*ids[start : start + STEP]]
                size += sum(await self._caller.run(weigh, [contents], chunk))
            if await self._caller.command("HMGET", keys.archive_bytes, *fields) != before:
                continue
            if int(noted) != size:
                wrongs.append(
                    f"{state} messages: {int(noted):,} bytes are recorded, {size:,} are there"
                )
        return wrongs

    async def _inspect(
        self, keys: TopicKeys, ids: list[bytes], *, walk: bool = False
    ) -> list[Places]:
        named: dict[str, Value] = {"walk": int(walk)}
        reply = await self._store.run("inspect_message", keys.topic, named, ids)
        return [Places(*(code - ord("0") for code in counts)) for counts in reply]


def _token(lease: bytes) -> int | None:
    """Return the token of a lease; None: the lease is invalid."""
    number, colon, _ = lease.partition(b":")
    return int(number) if colon and number.isdigit() else None
