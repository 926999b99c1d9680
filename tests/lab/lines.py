"""Lines by key, in plain Python: a part of the model. Times are those of the line clock, ms."""

from __future__ import annotations

from bisect import insort_right
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

NUMBERS = {"high": "1", "normal": "2", "low": "3"}
EPSILON = 1e-6
UNSET = "- - - - - "


@dataclass
class Place:
    """The line of a message, and its place there."""

    key: str
    level: str
    cost: int
    number: int | None = None

    def __str__(self) -> str:
        number = "" if self.number is None else f"{self.number:016d}"
        return f"{self.key}\t{self.level}{number} {self.cost} "


class InForce(NamedTuple):
    """The limits of a topic or of a key."""

    most: int | None = None
    interval: float | None = None
    burst: float = 0
    step: float = 1
    stop: float = 0

    def tokens(self, full_at: float, at: float) -> float:
        if self.interval is None:
            return inf
        return self.burst - max(0, full_at - at) / self.interval + EPSILON

    def over(self, text: str) -> InForce:
        """Return these limits, overridden by what an operator set."""
        most, interval, burst, weight, stop = [_number(one) for one in text.split(" ")[:5]]
        found = self
        if most is not None:
            found = found._replace(most=int(most))
        if interval is not None:
            found = found._replace(interval=interval, burst=burst or 0)
        return found._replace(step=1 / (weight or 1), stop=stop or 0)


def declared_limits(text: str) -> tuple[InForce, InForce]:
    """Return what a handler declares: for the topic, for each key."""
    if not text:
        return InForce(), InForce()
    numbers = [_number(one) for one in text.split(" ")[:6]]
    made = []
    for most, interval, burst in (numbers[:3], numbers[3:]):
        made.append(InForce(None if most is None else int(most), interval, burst or 0))
    return made[0], made[1]


def _number(text: str) -> float | None:
    return None if text == "-" else float(text)


@dataclass(eq=False)
class Line:
    """One line during a dispatch; the key '' is that of messages without one."""

    key: str
    start: float
    limits: InForce
    turn: float = 0
    heads: list[str] = field(default_factory=list)
    judged: bool = False
    until: float | None = None
    places: float = inf
    tokens: float = inf
    taken: int = 0
    spent: int = 0


@dataclass
class Lines:
    places: dict[str, Place] = field(default_factory=dict)
    next_places: dict[str, Place] = field(default_factory=dict)
    """Places of new records that wait until the old ones are settled."""
    number: int = 0
    waiting: set[str] = field(default_factory=set)
    ring: dict[str, float] = field(default_factory=dict)
    blocked: dict[str, float] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    buckets: dict[str, float] = field(default_factory=dict)
    declared: str = ""
    noted: dict[str, str] = field(default_factory=dict)
    """What the topic's meta holds for them."""

    # what the server holds

    def members(self) -> list[str]:
        return sorted(f"{self.places[id]}{id}" for id in self.waiting)

    def keyed(self) -> dict[str, str]:
        known = {id: str(place) for id, place in self.places.items()}
        known |= {f"!{id}": str(place) for id, place in self.next_places.items()}
        return known | ({"!": str(self.number)} if self.number else {})

    # messages join and leave

    def place(self, id: str, priority: str, cost: int | None, key: str) -> None:
        """Note the key and the cost of a message that is not in line yet."""
        self.places.pop(id, None)
        if cost is not None:
            self.places[id] = Place(key, NUMBERS[priority], cost)

    def place_text(self, id: str, text: str) -> None:
        """Do the same for a place in the scripts' form."""
        self.places.pop(id, None)
        if text:
            key, _, rest = text.partition("\t")
            level, cost, _ = rest.split(" ")
            self.places[id] = Place(key, level, int(cost))

    def has_line(self, id: str) -> bool:
        return id in self.places and self.places[id].key != ""

    def join(self, ids: Sequence[str], now: int, *, wake: bool, turn: float | None = None) -> bool:
        """Add messages to their lines; return whether one of them may start."""
        ready = False
        turn = self.next_turn() if turn is None else turn
        for id in ids:
            place = self.places[id]
            if place.number is None:
                self.number = max(self.number, now * 1000) + 1
                place.number = self.number
            self.waiting.add(id)
            if place.key not in self.blocked:
                ready = True
                self.ring.setdefault(place.key, turn)
            elif wake:
                ready = True
                self.blocked[place.key] = 0
        return ready

    def next_turn(self) -> float:
        """Return the turn of a key that joins the ring now."""
        return min(self.ring.values(), default=0) + 1

    def free(self, id: str, *, started: bool = False, stays: bool = False) -> bool:
        """Free a message's place: wake its key and the topic; return whether they were blocked."""
        woken = False
        keys = ["", self.places[id].key] if id in self.places else [""]
        for key in keys:
            # A message that has started gives back its place, but does not fill a bucket.
            if key in self.blocked and (not started or self.blocked[key] % 60_000 == 0):
                self.blocked[key] = 0
                woken = True
        if not stays:
            self.running.pop(id, None)
        return woken

    def out(self, id: str) -> None:
        """Take a message out of its line."""
        self.waiting.discard(id)
        if self.has_line(id):
            key = self.places[id].key
            if not any(self.places[one].key == key for one in self.waiting):
                self.ring.pop(key, None)
                self.blocked.pop(key, None)

    def forget(self, id: str) -> None:
        self.places.pop(id, None)

    # limits

    def at(self, now: int, token: int) -> float:
        """Return the time of the line clock; it never goes back."""
        ahead = float(self.noted.get("clock_ahead", 0))
        latest = token // 1000
        return latest if now + ahead < latest - 1000 else now + ahead

    def keeps_its_line(self, id: str) -> bool:
        """Return whether a line waits for the next attempt of a message."""
        if not self.has_line(id):
            return False
        declared = self.noted.get("limits", "")
        limits = declared_limits(declared)[1]
        if text := self.limits.get(self.places[id].key):
            limits = limits.over(text)
        return limits.most == 1 and not declared.endswith(" 1")

    def hold(self, id: str, until: float) -> None:
        if self.has_line(id):
            name = f"{self.places[id].key}\t"
            self.buckets[name] = max(until, self.buckets.get(name, 0))

    def in_force(self, key: str) -> InForce:
        """Return the limits of a key, or of the topic, by the last declaration."""
        limits = declared_limits(self.noted.get("limits", ""))[1 if key else 0]
        return limits.over(self.limits[key]) if key in self.limits else limits

    def fill_sooner(self, key: str, before: InForce, at: float) -> None:
        """After a rate change, a bucket is full no later than the new rate takes to fill it."""
        after, sooner = self.in_force(key), 0.0
        full = self.buckets.get(key, 0) if key else float(self.noted.get("bucket", 0))
        if before.interval is not None and after.interval is not None:
            missing = after.burst - before.burst + (full - at) / before.interval
            sooner = at + max(0, missing) * after.interval
        if full > at and sooner < full:
            if key:
                self.buckets[key] = sooner
            else:
                self.noted["bucket"] = f"{sooner:.17g}"

    def refill(self, limits: InForce, declared: str, at: float) -> None:
        """Fill the topic's bucket at a newly declared rate, if that fills it sooner."""
        before, _ = declared_limits(self.noted.get("limits", ""))
        is_set = InForce().over(self.limits.get("", UNSET)).interval is not None
        full = float(self.noted.get("bucket", 0))
        if declared == self.noted.get("limits", "") or is_set or full <= at:
            return
        if before.interval is not None and limits.interval is not None:
            missing = limits.burst - before.burst + (full - at) / before.interval
            sooner = at + max(0, missing) * limits.interval
            if sooner < full:
                self.noted["bucket"] = f"{sooner:.17g}"

    def of_topic(self, declared: str) -> InForce:
        limits = declared_limits(declared)[0]
        return limits.over(self.limits[""]) if "" in self.limits else limits

    def line(self, key: str, declared: str, start: float | None = None) -> Line:
        limits = declared_limits(declared)[1]
        if key in self.limits:
            limits = limits.over(self.limits[key])
        base = min(self.ring.values(), default=0)
        start = base + limits.step if start is None else start
        return Line(key, start, limits, turn=start)

    def judge(self, line: Line, at: float, look_again: float) -> None:
        ids = [id for id in self.waiting if self.places[id].key == line.key]
        line.heads = sorted(ids, key=lambda id: f"{self.places[id]}{id}")
        line.judged = True
        if line.limits.most is not None:
            busy = sum(key == line.key for key in self.running.values())
            line.places = max(0, line.limits.most - busy)
        line.tokens = line.limits.tokens(self.buckets.get(line.key, 0), at)
        self.look(line, at, look_again)
        stop = max(line.limits.stop, self.buckets.get(f"{line.key}\t", 0))
        if stop > at:
            line.until = stop
        else:
            self.end_pause(line.key, at)

    def end_pause(self, key: str, at: float) -> None:
        """Forget a pause that is over, if nothing else is set."""
        *others, stop = self.limits.get(key, UNSET).split(" ")[:5]
        if others == ["-"] * 4 and stop != "-" and float(stop) <= at:
            del self.limits[key]

    def look(self, line: Line, at: float, look_again: float) -> None:
        """Return whether the first message of a line may start."""
        if not line.heads:
            return
        cost = self.places[line.heads[0]].cost
        need = min(cost, line.limits.burst)
        if line.places <= 0:
            line.until = look_again
        elif line.limits.interval is not None and line.tokens < need:
            line.until = at + (need - line.tokens) * line.limits.interval

    def settle(self, judged: Sequence[Line], at: float) -> None:
        """Put lines back into the ring or among the blocked, and update their buckets."""
        fills = {}
        for line in judged:
            self.ring.pop(line.key, None)
            self.blocked.pop(line.key, None)
            if line.heads and line.until is not None:
                self.blocked[line.key] = line.until
            elif line.heads:
                self.ring[line.key] = line.turn
            if line.limits.interval is not None and line.spent:
                full_at = max(self.buckets.get(line.key, 0), at)
                fills[line.key] = full_at + line.spent * line.limits.interval
        if fills:
            full = sorted((time, key) for key, time in self.buckets.items() if time <= at)
            for _, key in full[: 2 * len(fills) + 10]:
                del self.buckets[key]
        self.buckets |= fills


def enqueue(queue: list[Line], line: Line) -> None:
    """Put a line behind those with the same turn."""
    insort_right(queue, line, key=lambda one: one.turn)
