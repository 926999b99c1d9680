"""What the scripts must do, in plain Python: the random walk compares the server with it.

`Model.apply` takes a call as it is sent to the server and returns the reply that the server must
give; `Model.snapshot` is what the server must then hold. The model also keeps a ledger, for
guarantees that no single call shows: no message is completed twice, tokens only grow, and nothing
that was acknowledged disappears.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha1
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.lab.fairness import TOPIC, Witness
from tests.lab.lines import NUMBERS, UNSET, InForce, Line, Lines, Place, enqueue
from tests.lab.snapshot import Snapshot
from tests.lab.waits import NEVER, Waits

if TYPE_CHECKING:
    from collections.abc import Container

LEVELS = ("high", "normal", "low")


OVERHEAD = 200
"""Bytes that an archived message counts for, besides its contents."""

SET_BACK = 60_000
"""Milliseconds by which a last tick may be ahead; if it is further, the clock was set back."""


class Call(NamedTuple):
    """One script call, by name."""

    script: str
    lane: str
    """'' if the script leaves no receipt."""
    named: dict[str, Any]
    items: list[tuple[str, ...]]


class Lease(NamedTuple):
    token: int
    worker: str


class Mark(NamedTuple):
    """Where the new record of a message in processing will go."""

    priority: str
    due: int | None
    expires: int | None

    def __str__(self) -> str:
        times = ("" if at is None else str(at) for at in (self.due, self.expires))
        return " ".join([self.priority, *times])


class How(NamedTuple):
    """What a produce says about a message's id, and its priority."""

    own: bool
    maker: int
    priority: str
    ttl: int | None
    dedup: int | None
    asks: bool
    cost: int | None
    key: str


SUPERSEDED = object()
"""The reply to a late copy whose lane has moved on: any."""


@dataclass
class Model:
    """A topic. Lists are in the order in which dispatch takes them."""

    records: dict[str, bytes] = field(default_factory=dict)
    pending: dict[str, list[str]] = field(default_factory=lambda: {x: [] for x in LEVELS})
    cancelled: set[str] = field(default_factory=set)
    """Ids that have one pending place that does not count."""
    lines: Lines = field(default_factory=Lines)
    """The lines of messages with a key, and what may start."""
    delayed: dict[str, dict[str, int]] = field(default_factory=lambda: {x: {} for x in LEVELS})
    waits: Waits = field(default_factory=Waits)
    """The delayed messages that wait for signals, and the signals that have arrived."""
    expiries: dict[str, int] = field(default_factory=dict)
    """When messages expire: only those that wait and have a ttl."""
    leases: dict[str, Lease] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    """Messages in processing that have been replaced."""
    deadlines: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    dead_letters: dict[str, bytes] = field(default_factory=dict)
    quarantine: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, bytes] = field(default_factory=dict)
    kept_at: dict[str, int] = field(default_factory=dict)
    results: dict[str, bytes] = field(default_factory=dict)
    result_ttl: int | None = None
    progress: dict[str, str] = field(default_factory=dict)
    recent: dict[str, int] = field(default_factory=dict)
    receipts: dict[str, tuple[int, str]] = field(default_factory=dict)
    token: int = 0
    turn: int = 0
    dispatched: bool = False
    tick: int | None = None
    schedules: dict[str, str] = field(default_factory=dict)
    """Stored schedules, as in keys.py; the last ticks are in `ticks`."""
    ticks: dict[str, int] = field(default_factory=dict)
    paused: bool = False
    rung: bool = False
    rung_delay: bool = False

    copies: dict[str, Model] = field(default_factory=dict)
    """The messages of each subscription that was ever declared."""
    subscribed: list[tuple[str, int]] = field(default_factory=list)
    unsubscribed: list[tuple[str, int]] = field(default_factory=list)
    """The subscriptions, and since when; also the removed ones."""

    # the ledger
    owed: dict[str, set[str]] = field(default_factory=dict)
    """The subscriptions that existed when a message was produced, by its id."""
    completed: set[str] = field(default_factory=set)
    highest: dict[str, int] = field(default_factory=dict)
    witness: Witness = field(default_factory=Witness)
    at_work: set[str] = field(default_factory=set)
    """Messages that were dispatched and are not settled, whichever worker holds them."""

    def apply(self, call: Call) -> Any:
        """Do what the server must do; return the reply that it must give.

        A late copy whose lane has moved on must change nothing; no one reads its reply.
        """
        if call.lane and (receipt := self.receipts.get(call.lane)):
            last, answer = receipt
            if last > call.named["call"]:
                return SUPERSEDED
            if last == call.named["call"]:
                if call.script.startswith("dispatch"):
                    return self._still_held(call, answer)
                return answer.replace("1", "2")
        return getattr(self, call.script)(call)

    def snapshot(self) -> Snapshot:
        meta = {"token": str(self.token)} if self.token else {}
        if self.dispatched:
            meta["turn"] = str(self.turn)
        if self.paused:
            meta["paused"] = "1"
        if self.tick is not None:
            meta["tick"] = str(self.tick)
        meta |= self.lines.noted
        removed = [(f"-{name}", since) for name, since in self.unsubscribed]
        if listed := [*self.subscribed, *removed]:
            meta["subscriptions"] = " ".join(f"{name} {since}" for name, since in listed)
        if self.result_ttl is not None:
            meta["result_ttl"] = str(self.result_ttl)
        return Snapshot(
            records=self.records,
            high=self.pending["high"],
            normal=self.pending["normal"],
            low=self.pending["low"],
            cancelled=self.cancelled,
            lines=self.lines.members(),
            ring=self.lines.ring,
            blocked=self.lines.blocked,
            keyed=self.lines.keyed(),
            running={f"{self.lines.places[id]}{id}" for id in self.lines.running},
            limits=self.lines.limits,
            buckets=self.lines.buckets,
            delayed_high=self.delayed["high"],
            delayed=self.delayed["normal"],
            delayed_low=self.delayed["low"],
            waiting=self.waits.since,
            awaited={f"{id}\t{name}" for id, name in self.waits.missing},
            signals={f"{id}\t{name}\t{value}" for (id, name), value in self.waits.came.items()},
            expiries=self.expiries,
            leases={id: self._lease_of(id) for id in self.leases},
            deadlines=self.deadlines,
            dead=self.dead,
            dead_letters=self.dead_letters,
            quarantine=self.quarantine,
            quarantined=self.quarantined,
            completed=self.kept_at,
            results=self.results,
            rung=self.rung,
            rung_delay=self.rung_delay,
            meta=meta,
            recent=self.recent,
            schedules={
                **self.schedules,
                **{f"@{name}": str(tick) for name, tick in self.ticks.items()},
            },
        )

    def _lease_of(self, id: str) -> str:
        token, worker = self.leases[id]
        mark = f" {self.marks[id]}" if id in self.marks else ""
        return f"{token}:{worker}{mark}"

    def live(self) -> int:
        return len(self.records)

    def knows(self, id: str, since: int) -> bool:
        """Return whether a message is in any state; a result counts if stored after a time."""
        if any(id in one for one in (self.records, self.dead, self.quarantine)):
            return True
        return self.kept_at.get(id, since) > since

    # new -> pending, delayed

    def produce_normal_message(self, call: Call) -> Any:
        fresh, answer = self._new(call)
        for id, how, record in fresh:
            self._store(call, id, record, _how(how).ttl)
            self._place(id, how)
        ready = self._join(call, [(id, _how(how).priority) for id, how, _ in fresh], wake=False)
        self.rung |= ready and "" not in self.lines.blocked
        return answer

    def _place(self, id: str, how: str) -> None:
        """Note the key and the cost of a new message."""
        said = _how(how)
        self.lines.place(id, said.priority, said.cost, said.key)

    def _join(
        self,
        call: Call,
        messages: list[tuple[str, str]],
        *,
        wake: bool,
        turn: float | None = None,
    ) -> bool:
        """Make messages pending; return whether one of them may start."""
        in_line = [id for id, _ in messages if self.lines.has_line(id)]
        for id, priority in messages:
            if id not in in_line:
                self.pending[priority].append(id)
        ready = self.lines.join(in_line, call.named["now_ms"], wake=wake, turn=turn)
        return ready or len(in_line) < len(messages)

    def produce_delay_message(self, call: Call) -> Any:
        fresh, answer = self._new(call)
        earliest = self._earliest()
        for id, how, record, delay, at in fresh:
            self._store(call, id, record, _how(how).ttl)
            self._place(id, how)
            due = int(at) if at else call.named["now_ms"] + int(delay)
            self.delayed[_how(how).priority][id] = due
            self.rung_delay |= earliest is None or due < earliest
        return answer

    def produce_cron_message(self, call: Call) -> Any:
        now, id, tick = call.named["now_ms"], call.named["id"], call.named["tick_ms"]
        name, generation = call.named["name"], call.named["generation"]
        fired = 0
        last = self.ticks.get(name) if name else self.tick
        if last is not None and last > now + SET_BACK:
            last = None
        state = "paused" if f"!{name}" in self.schedules else ""
        if name and self.schedules.get(name, " ").split(" ")[0] != generation:
            state = "gone"
        if state:
            return [str(now), "" if last is None else str(last), 0, state]
        if not call.named["record"]:
            last = now if last is None else last
            self._ticked(name, last)
        elif tick <= now and (last is None or last < tick):
            last = tick
            self._ticked(name, tick)
            if not any(id in held for held in (self.records, self.dead, self.quarantine)):
                ttl = call.named["live_ms"]
                self._store(call, id, call.named["record"], int(ttl) if ttl else None)
                self.pending[call.named["priority"]].append(id)
                self.rung = True
                fired = 1
        return [str(now), "" if last is None else str(last), fired, ""]

    def _ticked(self, name: str, tick: int) -> None:
        if name:
            self.ticks[name] = tick
        else:
            self.tick = tick

    # schedules

    def store_schedule(self, call: Call) -> Any:
        name, timetable = call.named["name"], call.named["timetable"]
        _, before, *_ = [*self.schedules.get(name, "").split(" "), ""]
        if name not in self.ticks or before != timetable:
            self.ticks[name] = call.named["now_ms"]
        words = (call.named["generation"], timetable, call.named["definition"])
        self.schedules[name] = " ".join(map(str, words))
        return self._receipt(call, "1")

    def remove_schedule(self, call: Call) -> Any:
        name, generation = call.named["name"], call.named["generation"]
        known = self.schedules.get(name, "").split(" ")[0]
        if not known or generation not in ("", known):
            return self._receipt(call, "0")
        self.schedules.pop(name)
        self.schedules.pop(f"!{name}", None)
        self.ticks.pop(name, None)
        return self._receipt(call, "1")

    def pause_schedule(self, call: Call) -> Any:
        name = call.named["name"]
        if (name and name not in self.schedules) or f"!{name}" in self.schedules:
            return self._receipt(call, "0")
        self.schedules[f"!{name}"] = f"{call.named['now_ms']} {call.named['reason']}"
        return self._receipt(call, "1")

    def resume_schedule(self, call: Call) -> Any:
        name = call.named["name"]
        if self.schedules.pop(f"!{name}", None) is None:
            return self._receipt(call, "0")
        self._ticked(name, call.named["now_ms"])
        return self._receipt(call, "1")

    def _new(self, call: Call) -> tuple[list[tuple[str, ...]], str]:
        fresh: dict[str, tuple[str, ...]] = {}
        answer = ""
        for item in call.items:
            answer += self._found(call, item, fresh)
            if answer[-1] == "1":
                fresh[item[0]] = item
        self._remember(call, fresh)
        return list(fresh.values()), self._receipt(call, answer)

    def _found(self, call: Call, item: tuple[str, ...], fresh: Container[str]) -> str:
        """Return what already has the id of a new message; 1: nothing."""
        now, id, (own, maker, _, _, _, asks, *_) = call.named["now_ms"], item[0], _how(item[1])
        lane, _, number = id.rpartition("-")
        made, refused = self.receipts.get(lane, (0, ""))
        if refused.startswith("full"):
            made -= int(refused.removeprefix("full "))
        if id in fresh or id in self.records:
            if asks and id in self.leases:
                return "p"
            return "w" if asks and any(id in ids for ids in self.delayed.values()) else "l"
        if own and id in self.dead:
            return "d"
        if own and id in self.quarantine:
            return "q"
        if not self._is_freed(id, now, maker) and (
            self.recent.get(id, 0) > now or (maker and made >= int(number))
        ):
            return "f"
        return "1"

    def _remember(self, call: Call, fresh: dict[str, tuple[str, ...]]) -> None:
        """Remember the ids of new messages, and forget some old ones."""
        now = call.named["now_ms"]
        freed = [f"!{id}" for id in fresh if self._is_freed(id, now, _how(fresh[id][1]).maker)]
        if fresh:
            stale = sorted((until, id) for id, until in self.recent.items() if until <= now)
            for id in {*(id for _, id in stale[: 2 * len(fresh) + 10]), *freed}:
                del self.recent[id]
        for id, item in fresh.items():
            if window := self._window(call, item):
                self.recent[id] = now + window

    def _window(self, call: Call, item: tuple[str, ...]) -> int:
        """Return for how long a message takes its id."""
        own, maker, _, _, dedup, *_ = _how(item[1])
        window = call.named["dedup_ms"] if dedup is None else dedup
        return (max(window, 600_000) if maker else window) if own else 0

    # any -> pending, delayed; processing -> processing

    def replace_message(self, call: Call) -> Any:
        (item,) = call.items
        id, how, record, delay, at = item
        now, walk = call.named["now_ms"], call.named["walk"]
        _, _, priority, ttl, *_, cost, key = _how(how)
        due = int(at) if at else now + int(delay)
        found = self._found(call, item, ())
        waits = found == "l" and id not in self.leases
        earliest = self._earliest()
        if self.subscribed:
            return self._receipt(call, "s")
        if found == "1":
            self._remember(call, {id: item})
        else:
            self._remember_again(call, item)
        self.expiries.pop(id, None)
        self._store(call, id, record, None if id in self.leases else ttl)
        self.waits.forget(id)
        for held in (self.dead, self.dead_letters, self.quarantine, self.quarantined):
            held.pop(id, None)
        if id in self.leases:
            self.lines.next_places.pop(id, None)
            if cost is not None:
                self.lines.next_places[id] = Place(key, NUMBERS[priority], cost)
            mark = Mark(priority, due if due > now else None, None if ttl is None else now + ttl)
            self.marks[id] = mark
        elif due > now:
            self._leave(id, walk, waits=waits)
            self._place(id, how)
            self.delayed[priority][id] = due
            self.rung_delay |= earliest is None or due < earliest
        elif not (waits and self._stays(id, how, walk)):
            turn, new_turn = self.lines.ring.get(key), self.lines.next_turn()
            until = self.lines.blocked.get(key)
            self._leave(id, walk, waits=waits)
            self._place(id, how)
            if key and turn is not None:
                self.lines.ring[key] = turn
            if key and until is not None:
                self.lines.blocked[key] = 0
            self._join(call, [(id, priority)], wake=True, turn=new_turn)
            self.rung = True
        return self._receipt(call, "1" if found in "1f" else "r")

    def _remember_again(self, call: Call, item: tuple[str, ...]) -> None:
        """Restart the window of a taken id."""
        now, id = call.named["now_ms"], item[0]
        was = self.recent.get(id, 0)
        stale = sorted((until, id) for id, until in self.recent.items() if until <= now)
        for _, one in stale[:10]:
            del self.recent[one]
        if window := self._window(call, item):
            self.recent[id] = now + window
        elif was > now:
            del self.recent[id]

    def _stays(self, id: str, how: str, walk: int) -> bool:
        """Return whether a waiting message that gets no delay keeps its place."""
        priority, cost, key = _how(how).priority, _how(how).cost, _how(how).key
        place = self.lines.places.get(id)
        if id in self.lines.waiting:
            number = self.lines.places[id].number
            return place == Place(key, NUMBERS[priority], cost or 0, number)
        if place or cost is not None:
            return False
        if any(id in self.delayed[level] for level in LEVELS):
            return False
        for level in LEVELS:
            if id in self.pending[level][-walk:] or id in self.pending[level][:walk]:
                return level == priority
        return True

    def _leave(self, id: str, walk: int, *, waits: bool) -> None:
        """Remove a waiting message from its place."""
        if not waits:
            return
        self.rung |= self.lines.free(id)
        self.waits.end(id)
        if id in self.lines.waiting:
            self.lines.out(id)
        elif not any(self.delayed[level].pop(id, None) for level in LEVELS):
            self._take_place(id, walk)

    def release_replaced(self, call: Call) -> Any:
        id, now, worker = call.named["id"], call.named["now_ms"], call.named["worker"]
        if self.leases.get(id) != (int(call.named["token"]), worker) or id not in self.marks:
            return "0"
        priority, due, expires = self.marks[id]
        earliest = self._earliest()
        self._unlease(id)
        self.lines.forget(id)
        if id in self.lines.next_places:
            self.lines.places[id] = self.lines.next_places.pop(id)
        if due is not None and due > now:
            self.delayed[priority][id] = due
            self.rung_delay |= earliest is None or due < earliest
        else:
            self._join(call, [(id, priority)], wake=True)
            self.rung = True
        if expires is not None:
            self.expiries[id] = expires
        return self._receipt(call, "1")

    def _is_freed(self, id: str, now: int, maker: int) -> bool:
        """Return whether a generated id was cancelled or discarded, and not used since."""
        return bool(maker) and self.recent.get(f"!{id}", 0) > now

    def _free(self, call: Call) -> None:
        """Allow an id to be produced again."""
        id = call.named["id"]
        if call.named["made"] == "0":
            self.recent.pop(id, None)
        elif id in self.recent or id.rpartition("-")[0] in self.receipts:
            least = call.named["now_ms"] + 1_800_000
            self.recent[f"!{id}"] = max(least, self.recent.get(id, 0))

    def _store(self, call: Call, id: str, record: str, ttl: int | None) -> None:
        self.completed.discard(id)  # a custom id may be used again once its window has passed
        self.owed[id] = set(self.names)
        self.records[id] = b'{"created_at":%d,' % call.named["now_ms"] + _bytes(record)
        if ttl is not None:
            self.expiries[id] = call.named["now_ms"] + ttl

    # pending -> pending of every subscription

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.subscribed]

    @property
    def gives_none(self) -> bool:
        """Whether no worker gets its messages."""
        return self.paused or bool(self.subscribed)

    def declare_subscription(self, call: Call) -> Any:
        name, again = call.named["name"], call.named["again"] == "1"
        gone = [one for one, _ in self.unsubscribed]
        if name in self.names:
            return self._receipt(call, "0")
        if name in gone and again:
            return self._receipt(call, "-")
        self.unsubscribed = [one for one in self.unsubscribed if one[0] != name]
        self.subscribed.append((name, call.named["now_ms"]))
        self.copies.setdefault(name, Model())
        return self._receipt(call, "1")

    def remove_subscription(self, call: Call) -> Any:
        name = call.named["name"]
        if name not in self.names:
            return self._receipt(call, "0")
        self.subscribed = [one for one in self.subscribed if one[0] != name]
        self.unsubscribed.insert(0, (name, call.named["now_ms"]))
        for owed in self.owed.values():
            owed.discard(name)
        return self._receipt(call, "1")

    def fan_out(self, call: Call) -> Any:
        found, most, lines = " ".join(self.names), call.named["max_count"], self.lines
        if call.named["names"] != found:
            return [found]
        waiting: dict[str, list[str]] = {level: [] for level in LEVELS}
        passed_over = set(self.cancelled)  # only the first place of each: it may have come back
        for level in LEVELS:
            for id in self.pending[level]:
                if id in passed_over:
                    passed_over.remove(id)
                else:
                    waiting[level].append(id)
        taken = [(id, level) for level in LEVELS for id in waiting[level][:most]]
        in_turn = lines.ring or {key: turn for key, turn in lines.blocked.items() if key}
        keys = [key for _, key in sorted((turn, key) for key, turn in in_turn.items())]
        share = ceil(most / max(1, len(keys)))
        left = set[str]()
        for key in keys:
            line = [id for id in lines.waiting if lines.places[id].key == key]
            line.sort(key=lambda id: f"{lines.places[id]}{id}")
            taken += [(id, "") for id in line[:share]]
            left |= {key} if line[share:] else set()
        if self.paused or not found or not taken:
            return [found, 0, 0]
        self._pass_over()
        for name in self.names:
            self.copies[name]._receive(self, call.named["now_ms"], taken)
        for id, level in taken:
            assert self.owed.pop(id) <= set(self.names), f"a subscription does not get {id}"
            self.waits.forget(id)
            del self.records[id]
            self.expiries.pop(id, None)
            lines.places.pop(id, None)
            lines.waiting.discard(id)
            if level:
                self.pending[level].remove(id)
        for key in keys:
            if key not in left:
                lines.ring.pop(key, None)
                lines.blocked.pop(key, None)
            elif key in lines.ring:
                lines.ring[key] += 1
        rest = sum(map(len, self.pending.values())) + len(lines.waiting)
        return [found, len(taken), rest]

    def _receive(self, topic: Model, now: int, messages: list[tuple[str, str]]) -> None:
        """Return copies of a topic's messages, except those whose id is taken."""
        in_line, ready = [], False
        for id, level in messages:
            if any(id in held for held in (self.records, self.dead, self.quarantine)):
                continue
            self.completed.discard(id)
            self.records[id] = topic.records[id]
            self.owed[id] = set()
            if id in topic.expiries:
                self.expiries[id] = topic.expiries[id]
            if id in topic.lines.places:
                place = topic.lines.places[id]
                self.lines.places[id] = Place(place.key, place.level, place.cost)
            if level:
                self.pending[level].append(id)
                ready = True
            else:
                in_line.append(id)
        ready |= self.lines.join(in_line, now, wake=False)
        self.rung |= ready and "" not in self.lines.blocked

    # pending -> processing

    def dispatch_message(self, call: Call) -> Any:
        now, worker = call.named["now_ms"], call.named["worker"]
        in_turn = self.lines.ring or self.lines.blocked or self.lines.limits
        reply: list[Any] = [str(now), -2 if in_turn else -1]
        if in_turn or self.gives_none or (call.named["alone"] == "1" and self.leases):
            self._receipt(call, "")
            return reply
        self._pass_over()
        taken: dict[str, list[str]] = {level: [] for level in LEVELS}
        for _ in range(call.named["max_count"]):
            order = {4: ("normal", "high", "low"), 9: ("low", "high", "normal")}
            for level in order.get(self.turn, LEVELS):
                if self.pending[level]:
                    taken[level].append(self.pending[level].pop(0))
                    break
            else:
                break
            self.turn = (self.turn + 1) % 10
        ids = [id for level in LEVELS for id in taken[level]]
        if not ids:
            self._receipt(call, "")
            return reply
        self.dispatched = True
        answer = []
        for id in ids:
            token = self._lease(id, worker, now, call.named["lease_ms"])
            reply += [id, str(token), self.records[id]]
            answer.append(f"{token} {len(id)} {id}")
        self.rung |= any(self.pending.values())
        self._receipt(call, "".join(answer))
        return reply

    def dispatch_in_turn(self, call: Call) -> Any:
        now, worker, declared = (call.named[one] for one in ("now_ms", "worker", "declared"))
        lines = self.lines
        at = lines.at(now, self.token)
        look_again = (at // 60_000 + 2) * 60_000
        limits = lines.of_topic(declared)
        room, closed = 0 if self.gives_none else call.named["max_count"], None
        any_set = bool(lines.limits)
        lines.end_pause("", at)
        if limits.stop > at:
            room, closed = 0, limits.stop
        elif (self.leases and call.named["alone"] == "1") or (
            limits.most is not None and len(self.leases) >= limits.most
        ):
            room, closed = 0, look_again
        if limits.most is not None:
            room = min(room, max(0, limits.most - len(self.leases)))
        if declared != lines.noted.get("limits", ""):
            self.witness.forget(TOPIC)
        lines.refill(limits, declared, at)
        tokens = limits.tokens(float(lines.noted.get("bucket", 0)), at)

        self._pass_over()
        waiting = sum(map(len, self.pending.values()))
        order = self._plain_order(room)
        woken = {key: time for key, time in lines.blocked.items() if time <= at and room}
        queue: list[Line] = []
        for _, key in sorted((time, key) for key, time in woken.items() if key):
            enqueue(queue, lines.line(key, declared))
        base = min(lines.ring.values(), default=0)
        turn = max(base, min(float(lines.noted.get("plain_turn", base)), base + 1))
        plain = Line("", turn, InForce(), turn=turn, heads=[id for _, id in order], judged=True)
        if order:
            enqueue(queue, plain)
        for turn, key in sorted((turn, key) for key, turn in lines.ring.items() if room):
            enqueue(queue, lines.line(key, declared, turn))

        picks: list[tuple[Line, str]] = []
        judged: list[Line] = []
        while len(picks) < room and closed is None and queue:
            line = queue[0]
            if not line.judged:
                lines.judge(line, at, look_again)
                judged.append(line)
                if line.until is not None or not line.heads:
                    queue.pop(0)
                continue
            id = line.heads[0]
            cost = lines.places[id].cost if id in lines.places else 1
            if limits.interval is not None and tokens < min(cost, limits.burst):
                closed = at + (min(cost, limits.burst) - tokens) * limits.interval
                break
            queue.pop(0)
            picks.append((line, id))
            line.heads = line.heads[1:]
            tokens, line.turn = tokens - cost, line.turn + line.limits.step
            line.taken, line.spent = line.taken + 1, line.spent + cost
            line.places, line.tokens = line.places - 1, line.tokens - cost
            if line is not plain:
                lines.look(line, at, look_again)
            if line.heads and line.until is None:
                enqueue(queue, line)

        spent = sum(line.spent for line in (plain, *judged))
        for level, id in order[: plain.taken]:
            self.pending[level].remove(id)
        ready = lines.ring.keys() | ({""} if waiting else set())
        for line, id in picks:
            if line is not plain:
                lines.waiting.remove(id)
                lines.running[id] = line.key
        for key in woken:
            del lines.blocked[key]
        lines.blocked.pop("", None)
        lines.settle(judged, at)
        for line in queue:
            if not line.judged and line.key in woken:
                lines.ring[line.key] = line.start
        if limits.most is not None and len(self.leases) + len(picks) >= limits.most:
            closed = look_again if closed is None else closed
        if plain.taken == waiting and not lines.waiting:
            closed = None
        blocks = [time for time in lines.blocked.values() if time > at]
        if closed is not None:
            lines.blocked[""] = closed
            blocks = [closed]
        wait, call_second = -1, False
        told_time, _, told = lines.noted.get("wake_at", "0 ").partition(" ")
        stand_in_time, _, stand_in = lines.noted.get("stand_in", "0 -").partition(" ")
        free = float(stand_in_time) <= at
        if self.gives_none:
            pass
        elif blocks:
            if told == worker or not at < float(told_time) <= min(blocks) + 1:
                wait = ceil(min(blocks) - at)
                lines.noted["wake_at"] = f"{ceil(min(blocks))} {worker}"
                if free or stand_in == worker:
                    call_second = True
                    lines.noted["stand_in"] = f"{at + 1000:.0f} "
            elif free or stand_in in ("", worker):
                wait = ceil(float(told_time) + 1000 - at)
                lines.noted["stand_in"] = f"{float(told_time) + 1000:.0f} {worker}"
        elif not (declared or any_set or lines.waiting):
            wait = -2
        if declared != lines.noted.get("limits", ""):
            lines.noted["limits"] = declared
        if at - now != float(lines.noted.get("clock_ahead", 0)):
            lines.noted["clock_ahead"] = f"{at - now:.17g}"
        if limits.interval is not None and spent:
            full_at = max(float(lines.noted.get("bucket", 0)), at)
            lines.noted["bucket"] = f"{full_at + spent * limits.interval:.17g}"
        ran_ahead = float(lines.noted.get("plain_turn", 0)) > base + 1
        if plain.taken or (ran_ahead and order):
            lines.noted["plain_turn"] = f"{plain.turn:.17g}"
        self.turn = (self.turn + plain.taken) % 10
        left = plain.taken < waiting or queue
        if (left and closed is None and not self.gives_none) or call_second:
            self.rung = True
        if picks:
            self.dispatched = True
        reply: list[Any] = [str(now), wait]
        answer = []
        for _, id in picks:
            token = self._lease(id, worker, now, call.named["lease_ms"])
            reply += [id, str(token), self.records[id]]
            answer.append(f"{token} {len(id)} {id}")
        self._receipt(call, "".join(answer))
        left_over = lines.ring.keys() | ({""} if any(self.pending.values()) else set())
        self._bear_witness(picks, limits, at, ready & left_over)
        return reply

    def _bear_witness(
        self, picks: list[tuple[Line, str]], limits: InForce, at: float, ready: set[str]
    ) -> None:
        """Check the started messages against the limits and the turns."""
        self.at_work.update(id for _, id in picks)
        for line, id in picks:
            place = self.lines.places.get(id)
            cost = place.cost if place else 1
            self.witness.starts(TOPIC, limits, at, cost)
            if line.key:
                self.witness.starts(line.key, line.limits, at, cost)
                running = [one for one in self.at_work if self._key_of(one) == line.key]
                most = line.limits.most
                assert most is None or len(running) <= most, f"{line.key}: {running} run"
        if picks and limits.most is not None:
            assert len(self.leases) <= limits.most, f"{len(self.leases)} run"
        self.witness.turns([line.key for line, _ in picks], ready)

    def _key_of(self, id: str) -> str:
        return self.lines.places[id].key if id in self.lines.places else ""

    def _plain_order(self, room: int) -> list[tuple[str, str]]:
        """Return the messages without a key that may be next, each with its level."""
        offers = {4: ("normal", "high", "low"), 9: ("low", "high", "normal")}
        left = {level: list(ids) for level, ids in self.pending.items()}
        order: list[tuple[str, str]] = []
        while len(order) < room and any(left.values()):
            offer = offers.get((self.turn + len(order)) % 10, LEVELS)
            level = next(one for one in offer if left[one])
            order.append((level, left[level].pop(0)))
        return order

    def limit_key(self, call: Call) -> Any:
        named, key = call.named, call.named["key"]
        if named["interval"]:
            self.witness.forget(key or TOPIC)
        old = self.lines.limits.get(key, UNSET).split(" ", 5)
        new = [named[one] for one in ("running", "interval", "burst", "weight", "pause_ms")]
        if new[4] == "on":
            new[4] = "9000000000000000"
        elif new[4] not in ("", "-"):
            new[4] = f"{self.lines.at(named['now_ms'], self.token) + float(new[4]):.0f}"
        reason = old[5] if named["pause_ms"] == "" else named["reason"]
        text = " ".join([*(mine or was for mine, was in zip(new, old, strict=False)), reason])
        before = self.lines.in_force(key)
        self.lines.limits.pop(key, None)
        if text != UNSET:
            self.lines.limits[key] = text
        self.lines.fill_sooner(key, before, self.lines.at(named["now_ms"], self.token))
        if key in self.lines.blocked:
            self.lines.blocked[key] = 0
        self.rung |= any(self.pending.values()) or bool(self.lines.waiting)
        return self._receipt(call, "1")

    def _pass_over(self) -> None:
        """Remove the places that do not count; no walk has more than one call skips."""
        for level in LEVELS:
            for id in list(self.pending[level]):
                if id in self.cancelled:
                    self.cancelled.remove(id)
                    self.pending[level].remove(id)

    def _still_held(self, call: Call, answer: str) -> Any:
        reply: list[Any] = [str(call.named["now_ms"]), 0]
        while answer:
            token, length, answer = answer.split(" ", 2)
            id, answer = answer[: int(length)], answer[int(length) :]
            held = self.leases.get(id) == (int(token), call.named["worker"])
            if held and id not in self.marks:
                reply += [id, token, self.records[id]]
        return reply

    def _lease(self, id: str, worker: str, now: int, lease: int) -> int:
        self.token = max(self.token + 1, now * 1000)
        assert id not in self.completed, f"{id} is dispatched after its completion"
        assert self.token > self.highest.get(id, 0), f"the token of {id} does not grow"
        self.highest[id] = self.token
        self.leases[id] = Lease(self.token, worker)
        self.expiries.pop(id, None)
        self.deadlines[id] = now + lease
        return self.token

    # processing -> gone, delayed, pending, dead, quarantined

    def complete_message(self, call: Call) -> Any:
        mine, answer = self._mine(call)
        for id, *_ in mine:
            self._unlease(id)
            self.lines.forget(id)
            self.waits.forget(id)
            del self.records[id]
            assert id not in self.completed, f"{id} is completed twice"
            self.completed.add(id)
        return self._receipt(call, answer) if mine else answer

    def complete_with_result(self, call: Call) -> Any:
        mine, answer = self._mine(call)
        if not mine:
            return answer
        for id, *_ in mine:  # an earlier message with the same id may have left a result
            self.kept_at.pop(id, None)
            self.results.pop(id, None)
        arriving = [_bytes(kept) for _, _, kept in mine]
        self._trim(call, self.kept_at, self.results, *arriving)
        for id, _, kept in mine:
            self._unlease(id)
            self.lines.forget(id)
            self.waits.forget(id)
            del self.records[id]
            assert id not in self.completed, f"{id} is completed twice"
            self.completed.add(id)
            self.kept_at[id] = call.named["now_ms"]
            self.results[id] = _bytes(kept)
        self.result_ttl = call.named["ttl_ms"]
        return self._receipt(call, answer)

    def note_progress(self, call: Call) -> Any:
        mine, answer = self._mine(call)
        for id, token, report in mine:
            self.progress[id] = f"{token} {report}"
        return answer

    def note_record(self, call: Call) -> Any:
        mine, answer = self._mine(call)
        for id, _, record, _ in mine:
            self.records[id] = _bytes(record)
        return self._receipt(call, answer) if mine else answer

    def retry_message(self, call: Call) -> Any:
        mine, answer = self._mine(call)
        earliest = self._earliest()
        at = self.lines.at(call.named["now_ms"], self.token)
        strict = [id for id, *_ in mine if self.lines.keeps_its_line(id)]
        now = call.named["now_ms"]
        for id, _, record, priority, delay, expires, _, hold, awaits in mine:
            waits_for_others = awaits.startswith("\x01")
            self._unlease(id, stays=id in strict and not waits_for_others)
            if hold:
                self.lines.hold(id, at + int(hold))
            self.records[id] = _bytes(record)
            due = now + int(delay) if delay else NEVER
            if awaits and not self.waits.park(id, awaits.split("\n"), now):
                due = now
            self.delayed[priority][id] = due
            self.rung_delay |= earliest is None or due < earliest
            if expires:
                self.expiries[id] = int(expires)
        return self._receipt(call, answer) if mine else answer

    def signal_message(self, call: Call) -> Any:
        now, most = call.named["now_ms"], int(call.named["most"])
        answer, wakes = "", []
        for id, name, value, wake in call.items:
            held = self.waits.signals_of(id)
            if self.names:
                answer += "c"
                continue
            if not any(id in one for one in (self.records, self.dead, self.quarantine)):
                answer += "0"
                continue
            if name in held or len(held) >= most:
                answer += "s" if name in held else "f"
            else:
                answer += "1"
                if self.waits.keep(id, name, value):
                    wakes.append(id)
            if wake == "1":
                wakes.append(id)
        earliest = self._earliest()
        for id in wakes:
            if self.waits.end(id):
                level = next(level for level in LEVELS if id in self.delayed[level])
                self.delayed[level][id] = now
                self.rung_delay |= earliest is None or now < earliest
        return self._receipt(call, answer)

    def release_message(self, call: Call) -> Any:
        mine, answer = self._mine(call)
        for id, _, priority, expires in reversed(mine):
            self._unlease(id)
            if not self.lines.has_line(id):
                self.pending[priority].insert(0, id)
            if expires:
                self.expiries[id] = int(expires)
            self.rung = True
        in_line = [id for id, *_ in mine if self.lines.has_line(id)]
        self.lines.join(in_line, call.named["now_ms"], wake=True)
        return self._receipt(call, answer) if mine else answer

    def extend_lease(self, call: Call) -> Any:
        mine, answer = self._mine(call)
        replaced = [item[0] for item, found in zip(call.items, answer, strict=True) if found == "r"]
        for id in [*(id for id, *_ in mine), *replaced]:
            self.deadlines[id] = call.named["now_ms"] + call.named["lease_ms"]
        return answer.replace("r", "1")

    def move_to_dlq(self, call: Call) -> Any:
        return self._archive(call, self.dead, self.dead_letters, _bytes(call.named["record"]))

    def handle_parse_error(self, call: Call) -> Any:
        kept = self.records.get(call.named["id"], b"")[: call.named["max_bytes"]]
        line = _bytes(call.named["info"]) + b"\n"
        data = line + kept[: max(0, call.named["budget"] - OVERHEAD - len(line))]
        return self._archive(call, self.quarantine, self.quarantined, data)

    def _archive(
        self, call: Call, index: dict[str, int], contents: dict[str, bytes], data: bytes
    ) -> Any:
        id, now = call.named["id"], call.named["now_ms"]
        if self.leases.get(id) != (int(call.named["token"]), call.named["worker"]):
            return "0"
        if id in self.marks:
            return "r"
        self._trim(call, index, contents, data)
        self._unlease(id)
        self.lines.forget(id)
        del self.records[id]
        index[id] = now
        contents[id] = data
        return self._receipt(call, "1")

    def trim_archive(self, call: Call) -> Any:
        if call.named["archive"] == "dlq":
            return [self._trim(call, self.dead, self.dead_letters), 0]
        if call.named["archive"] == "results":
            return [self._trim(call, self.kept_at, self.results), 0]
        return [self._trim(call, self.quarantine, self.quarantined), 0]

    def _trim(
        self, call: Call, index: dict[str, int], contents: dict[str, bytes], *arriving: bytes
    ) -> int:
        keep, ttl, now = call.named["keep"], call.named["ttl_ms"], call.named["now_ms"]
        oldest = sorted((at, id) for id, at in index.items())
        aged = len([at for at, _ in oldest if ttl and at <= now - ttl])
        surplus = max(0, len(oldest) + len(arriving) - aged - keep) if keep else 0
        for _, id in oldest[: aged + surplus]:
            self._drop(index, contents, id)
        dropped = aged + surplus
        for _, id in oldest[aged + surplus :]:
            if _load([*contents.values(), *arriving]) <= call.named["budget"]:
                break
            self._drop(index, contents, id)
            dropped += 1
        return dropped

    def _drop(self, index: dict[str, int], contents: dict[str, bytes], id: str) -> None:
        """Drop an archived message; the id of a result may belong to another message by now."""
        del index[id], contents[id]
        if index is not self.kept_at:
            self.waits.forget(id)

    def _mine(self, call: Call) -> tuple[list[tuple[str, ...]], str]:
        mine: dict[str, tuple[str, ...]] = {}
        seen: set[str] = set()
        answer = ""
        for item in call.items:
            id, token = item[0], int(item[1])
            held = self.leases.get(id) == (token, call.named["worker"]) and id not in seen
            if held:
                seen.add(id)
            if held and id not in self.marks:
                mine[id] = item
            answer += "0" if not held else "r" if id in self.marks else "1"
        return list(mine.values()), answer

    def _unlease(self, id: str, *, stays: bool = False) -> None:
        self.at_work.discard(id)
        del self.leases[id], self.deadlines[id]
        self.rung |= self.lines.free(id, started=True, stays=stays)
        self.marks.pop(id, None)

    # monitor and scheduler

    def handle_timeout_message(self, call: Call) -> Any:
        now, worker = call.named["now_ms"], call.named["worker"]
        expected, far = call.named["expected_ms"], call.named["far_ms"]
        surprised = expected and abs(now - int(expected)) > call.named["jump_ms"]
        behind = max(0, self.token // 1000 - now)
        reply: list[Any] = [str(now), str(int(bool(surprised))), str(behind)]
        if surprised:
            return reply
        since = now - call.named["grace_ms"]
        late = sorted((at, id) for id, at in self.deadlines.items() if at <= since)
        if far and behind > call.named["jump_ms"]:
            ahead = now + int(far)
            late += sorted((at, id) for id, at in self.deadlines.items() if at > ahead)
        for _, id in late[: call.named["max_count"]]:
            lost_by = self.leases[id].worker
            token = self._lease(id, worker, now, call.named["recovery_ms"])
            reply += [id, str(token), lost_by, self.records[id]]
        return reply

    def expire_message(self, call: Call) -> Any:
        now, window, walk = (call.named[name] for name in ("now_ms", "window", "walk"))
        spare = call.named["spare"] - len(self.cancelled)
        late = sorted((at, id) for id, at in self.expiries.items() if at <= now)
        ids = [id for _, id in late[: call.named["max_count"]]]
        delayed = {id for level in LEVELS for id in ids if id in self.delayed[level]}
        for id in ids:
            self.rung |= self.lines.free(id)
        in_line = self.lines.waiting.intersection(ids)
        sought = {id for id in ids if id not in delayed and id not in in_line}
        for id in in_line:
            self.lines.out(id)
        for level in LEVELS:
            for id in delayed:
                self.delayed[level].pop(id, None)
                self.waits.end(id)
        hidden = self._cut_tails(sought, window) if sought else 0
        leased = []
        walked = 0
        for id in ids:
            if id in sought:
                if id not in self.cancelled and (hidden > walk or spare > 0):
                    self.cancelled.add(id)
                    spare -= 1
                elif walked < 10:
                    walked += 1
                    next(ids for ids in self.pending.values() if id in ids).remove(id)
                else:
                    continue
            token = self._lease(id, call.named["worker"], now, call.named["recovery_ms"])
            leased += [id, str(token), self.records[id]]
        soonest = min(self.expiries.values(), default=None)
        return [str(now), -1 if soonest is None else max(0, soonest - now), *leased]

    def _cut_tails(self, sought: set[str], window: int) -> int:
        """Remove ids from the ends of the lists; return how many places are beyond an end."""
        hidden = 0
        for level in LEVELS:
            tail, rest = self.pending[level][:window], self.pending[level][window:]
            hidden = max(hidden, len(rest))
            kept = []
            for id in tail:
                if id in sought:
                    sought.remove(id)
                elif id in self.cancelled:
                    self.cancelled.remove(id)
                else:
                    kept.append(id)
            self.pending[level] = kept + rest
        return hidden

    def set_expiry(self, call: Call) -> Any:
        fresh = 0
        for id, expires in call.items:
            if id in self.records and id not in self.leases and id not in self.expiries:
                self.expiries[id] = int(expires)
                fresh += 1
        return fresh

    def get_next_delay_task(self, call: Call) -> Any:
        earliest = self._earliest()
        return -1 if earliest is None else max(0, earliest - call.named["now_ms"])

    def survey_topics(self, call: Call) -> Any:
        now = call.named["now_ms"]
        waiting = sum(map(len, self.pending.values())) + len(self.lines.waiting)
        waiting = 0 if self.paused else waiting
        deadline = min(self.deadlines.values(), default=None)
        expires = min(self.expiries.values(), default=None)
        times = (self._earliest(), deadline, expires)
        waits = [-1 if at is None else max(0, at - now) for at in times]
        return [str(now), waiting, *waits, len(self.waits.since)]

    def ring_doorbell(self, call: Call) -> Any:
        for name in ("wake_at", "stand_in"):
            told = self.lines.noted.get(name, "").partition(" ")[2]
            if told and told == call.named["leaving"]:
                del self.lines.noted[name]
        waiting = any(self.pending.values()) or bool(self.lines.waiting)
        was, self.rung = self.rung, self.rung or waiting
        return int(self.rung and not was)

    def process_delay_message(self, call: Call) -> Any:
        moved = []
        for level in LEVELS:
            due = sorted((at, id) for id, at in self.delayed[level].items())
            for at, id in due[: call.named["max_count"]]:
                if at <= call.named["now_ms"]:
                    del self.delayed[level][id]
                    self.waits.end(id)
                    moved.append((id, level))
                    if self.lines.has_line(id):
                        self.lines.running.pop(id, None)
        ready = self._join(call, moved, wake=True)
        self.rung |= ready and "" not in self.lines.blocked
        return [id for id, _ in moved]

    def _earliest(self) -> int | None:
        return min((at for level in LEVELS for at in self.delayed[level].values()), default=None)

    # operators

    def requeue_message(self, call: Call) -> Any:
        id = call.named["id"]
        index, contents = self._archive_of(call)
        if id in self.records or index.get(id) != int(call.named["archived_ms"]):
            return self._receipt(call, "0")
        del index[id], contents[id]
        now = call.named["now_ms"]
        stamp = b'{"due":%d,"requeued":%d,' % (now, now)
        self.records[id] = stamp + _bytes(call.named["record"])
        self.lines.place_text(id, call.named["own_place"])
        self._join(call, [(id, call.named["priority"])], wake=True)
        if call.named["expires_ms"]:
            self.expiries[id] = int(call.named["expires_ms"])
        self.rung = True
        return self._receipt(call, "1")

    def discard_message(self, call: Call) -> Any:
        id = call.named["id"]
        index, contents = self._archive_of(call)
        if index.get(id) != int(call.named["archived_ms"]):
            return self._receipt(call, "0")
        self._drop(index, contents, id)
        self._free(call)
        return self._receipt(call, "1")

    def cancel_message(self, call: Call) -> Any:
        id = call.named["id"]
        if id in self.leases:
            return self._receipt(call, "p")
        if id not in self.records:
            return self._receipt(call, "0")
        del self.records[id]
        self._leave_place(call)
        self.lines.forget(id)
        self.waits.forget(id)
        self._free(call)
        return self._receipt(call, "1")

    def abort_message(self, call: Call) -> Any:
        id, now = call.named["id"], call.named["now_ms"]
        if not self._is_seen(call):
            return "c" if id in self.records else "0"
        record = _bytes(call.named["record"])
        self._trim(call, self.dead, self.dead_letters, record)
        if id in self.leases:
            self._unlease(id)
        else:
            self._leave_place(call)
        self.lines.forget(id)
        self.lines.next_places.pop(id, None)
        del self.records[id]
        self.dead[id] = now
        self.dead_letters[id] = record
        return self._receipt(call, "1")

    def reschedule_message(self, call: Call) -> Any:
        id, now, at = call.named["id"], call.named["now_ms"], call.named["at_ms"]
        if id in self.leases:
            return self._receipt(call, "p")
        if not self._is_seen(call):
            return self._receipt(call, "c" if id in self.records else "0")
        due = max(now, int(at) if at else now + int(call.named["delay_ms"]))
        was_delayed = any(id in self.delayed[level] for level in LEVELS)
        priority = call.named["priority"]
        if due > now or was_delayed:
            sooner = any(one <= due for level in LEVELS for one in self.delayed[level].values())
            expires = self.expiries.get(id)
            self._leave_place(call)
            if expires is not None:
                self.expiries[id] = expires
            self.records[id] = b'{"due":%d,' % due + _bytes(call.named["record"])
            if self.lines.has_line(id):
                self.lines.places[id].number = None
            if due > now:
                self.delayed[priority][id] = due
                self.rung_delay |= not sooner
            else:
                self._join(call, [(id, priority)], wake=True)
                self.rung = True
        return self._receipt(call, "1")

    def _is_seen(self, call: Call) -> bool:
        """Return whether a message's record is still the one that the caller saw."""
        record = self.records.get(call.named["id"])
        return record is not None and sha1(record).hexdigest() == call.named["seen"]

    def _leave_place(self, call: Call) -> None:
        """Remove a waiting message from its place."""
        id = call.named["id"]
        self.expiries.pop(id, None)
        self._leave(id, int(call.named["walk"]), waits=True)

    def _take_place(self, id: str, walk: int) -> None:
        """Remove a pending id, or leave it if it is deep in a list."""
        lists = list(self.pending.values())
        for ids in lists:
            if id in ids[-walk:]:
                _remove_last(ids, id)
                return
            if id in ids[:walk]:
                ids.remove(id)
                return
        if id not in self.cancelled:
            self.cancelled.add(id)
        else:
            _remove_last(next(ids for ids in lists if id in ids), id)

    def pause_topic(self, call: Call) -> Any:
        was, self.paused = self.paused, True
        return self._receipt(call, "0" if was else "1")

    def resume_topic(self, call: Call) -> Any:
        was, self.paused = self.paused, False
        self.rung |= any(self.pending.values()) or bool(self.lines.waiting)
        return self._receipt(call, "1" if was else "0")

    def _archive_of(self, call: Call) -> tuple[dict[str, int], dict[str, bytes]]:
        if call.named["archive"] == "dlq":
            return self.dead, self.dead_letters
        return self.quarantine, self.quarantined

    def _receipt(self, call: Call, answer: str) -> str:
        self.receipts[call.lane] = (call.named["call"], answer)
        return answer


def _load(kept: list[bytes]) -> int:
    """Return how many bytes these messages count for."""
    return sum(len(data) + OVERHEAD for data in kept if data)


def _remove_last(ids: list[str], id: str) -> None:
    del ids[len(ids) - 1 - ids[::-1].index(id)]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _how(text: str) -> How:
    text, placed, key = text.partition("\t")
    own, maker, priority, *more = (text or "0 0 normal").split(" ")
    ttl, dedup, asks, cost = [*more, "", "", "", ""][:4]
    times = [int(ms) if ms else None for ms in (ttl, dedup)]
    place = int(cost or 1) if placed else None
    return How(own == "1", int(maker), priority, times[0], times[1], bool(asks), place, key)
