"""The checker: compares the history of a scene with what the server has at the end.

Deliveries are ordered by their tokens, which the server assigns: whatever the clocks of the
processes say, the delivery with the higher token came later. A call without a reply may or may not
have been executed; a call with a reply was executed or refused.

    ledger    produced = completed + dead + quarantined, each message as planned; no message
              exists that was not produced, or whose produce was refused
    fencing   one token is run and settled once, never after another holder had the message
    causes    a lost lease and a second run have one: a planned failure, kill, freeze or outage
    order     first in, first out within a priority; nothing before its due time; attempts grow by 1
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from mx_rmq.core.message import State
from tests.faults.errand import End, Errand
from tests.faults.history import Note, What

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST: Final = 40
"""How many violations are reported one by one."""

EARLY: Final = 0.01
"""Seconds by which one clock may seem ahead of another."""

EVERYSEC: Final = 2.0
"""Seconds of work that a server with `appendfsync everysec` may forget when it is killed: during an
fsync it does not even write what it has already acknowledged."""
FORGOTTEN: Final = "done, acknowledged, and forgotten by the killed server"
FORGOTTEN_PRODUCES: Final = "acknowledged, and forgotten by the killed server"

FINAL: Final = ("complete_message", "move_to_dlq", "handle_parse_error")
MOVING: Final = ("retry_message", "release_message")
DONE: Final = ("1", "2")
REPEATED: Final = "2"
LOST: Final = "0"


@dataclass(frozen=True)
class Ends:
    """The ids that the server has at the end, by state."""

    pending: set[str] = field(default_factory=set)
    delayed: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    processing: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    quarantined: set[str] = field(default_factory=set)
    completed: set[str] = field(default_factory=set)
    labels: dict[str, str] = field(default_factory=dict)
    """The labels that are in their records."""

    def ids(self) -> set[str]:
        """Return the ids of messages that have not ended."""
        live = self.pending | self.delayed | self.waiting | self.processing
        return live | self.dead | self.quarantined

    def of(self, id: str) -> list[str]:
        """Return every state in which an id is."""
        return [state for state in State if id in getattr(self, state)]


@dataclass
class Checked:
    """What the checker has found."""

    counts: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    """Extra runs of messages, by cause."""
    found: Counter[str] = field(default_factory=Counter)
    """Violations by kind."""
    violations: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    """Ids of messages that were stored and are gone."""
    completed: dict[str, int] = field(default_factory=dict)
    """Ids of completed messages, and the token of the delivery that completed it."""
    take_overs: list[float] = field(default_factory=list)
    """Seconds from a kill until the message was taken over."""
    recoveries: list[tuple[float, float]] = field(default_factory=list)
    """When a worker was killed, and the seconds until its messages ran again. Only first
    crashes: after more, a message waits longer on purpose."""

    def violated(self, kind: str, details: str) -> None:
        self.found[kind] += 1
        if len(self.violations) < MOST:
            self.violations.append(f"{kind}: {details}")


@dataclass(slots=True)
class Settle:
    """A call that would end a delivery."""

    script: str
    at: float
    answer: str | None = None
    until: float = float("inf")
    """When the reply came."""

    @property
    def is_done(self) -> bool:
        return self.answer in DONE

    @property
    def may_be_done(self) -> bool:
        return self.answer is None or self.answer in DONE


@dataclass(slots=True)
class Delivery:
    """A message held by a worker, or by a monitor that took it over."""

    who: str
    since: float
    """When it was requested: its lease began between this time and the next field."""
    at: float
    lost_by: str = ""
    """Who had it before; '' unless it was taken over."""
    started: float | None = None
    attempt: int = 0
    failed: bool = False
    ended: float | None = None
    settles: list[Settle] = field(default_factory=list)


@dataclass(slots=True)
class Life:
    """What happened to one message."""

    label: str = ""
    deliveries: dict[int, Delivery] = field(default_factory=dict)


class Spells:
    """The spans of time for which each of many was in a state."""

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}
        self._spells: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)

    def begin(self, who: str, at: float) -> None:
        self._begun.setdefault(who, at)

    def end(self, who: str, at: float) -> None:
        self._spells[who].append((self._begun.pop(who), at))

    def is_on(self, who: str) -> bool:
        """Return whether one has begun and not ended."""
        return who in self._begun

    def close(self) -> None:
        for who in list(self._begun):
            self.end(who, float("inf"))

    def begun(self) -> Iterator[tuple[str, float]]:
        """Return who entered the state, and when."""
        for who, spells in self._spells.items():
            for begin, _ in spells:
                yield who, begin

    def touch(self, who: str, since: float, until: float) -> bool:
        """Return whether one overlaps a span of time."""
        return any(begin <= until and since <= end for begin, end in self._spells[who])


class Reading:
    """The whole history, sorted by message."""

    def __init__(self, notes: Iterable[Note], checked: Checked, lease: float) -> None:
        self.checked = checked
        self._lease = lease
        self.lives: defaultdict[str, Life] = defaultdict(Life)
        self.asked: dict[str, float] = {}
        """When a label was first produced."""
        self.ids: dict[str, str] = {}
        """The id of an acknowledged label."""
        self.answered: dict[str, float] = {}
        """When a label's produce last got a reply, or was given up."""
        self.refused: set[str] = set()
        """Labels that are not stored: an error says so."""
        self.unknown: set[str] = set()
        """Labels that may be stored: an error left it open."""
        self.produces: list[tuple[float, float]] = []
        """When produces were in progress."""
        self.ran: defaultdict[str, set[str]] = defaultdict(set)
        """The ids under which a label was run."""
        self.killed: dict[str, float] = {}
        self.frozen = Spells()
        self.starved = Spells()
        self.trouble = Spells()
        self.forgot: list[tuple[float, float]] = []
        """The times for which the server may have forgotten what it did."""
        self._calls: dict[tuple[str, int], list[Settle]] = {}
        self._produces: dict[tuple[str, int], float] = {}
        for note in notes:
            self._take(note)
        self.frozen.close()
        self.trouble.close()

    def _take(self, note: Note) -> None:
        match note.what:
            case What.START | What.SPOILT | What.FAIL | What.END:
                self._run(note)
            case What.CALL:
                self._call(note)
            case What.ANSWER:
                for settle, answer in zip(
                    self._calls.pop((note.who, note.call), ()), note.words, strict=True
                ):
                    settle.answer, settle.until = answer, note.at
            case What.LEASED | What.TAKEN_OVER:
                self._delivered(note)
            case What.PRODUCE:
                self._produces[note.who, note.call] = note.at
                for label in note.words:
                    self.asked.setdefault(label, note.at)
            case What.PRODUCED | What.REFUSED | What.UNKNOWN:
                self._answered(note)
            case What.GAVE_UP:
                self._gave_up(note)
            case What.KILLED:
                self.killed[note.who] = note.at
            case What.FROZEN:
                self.frozen.begin(note.who, note.at)
            case What.THAWED:
                self.frozen.end(note.who, note.at)
            case What.TROUBLE:
                self.trouble.begin("", note.at)
            case What.CALM:
                self.trouble.end("", note.at)
            case What.STARVED:
                self.starved.begin(note.who, note.since)
                self.starved.end(note.who, note.at)
            case What.FORGOT:
                self.forgot.append((note.since, note.at))
            case What.HIRED:
                pass

    def _gave_up(self, note: Note) -> None:
        """Check that a worker gave up at its start only while the server was away."""
        self.checked.counts["starts given up while the server failed"] += 1
        if not self.trouble.is_on(""):
            self.checked.violated("a worker gave up", f"{note.who}: {', '.join(note.words)}")

    def was_killed(self, one: Delivery, later: Delivery) -> bool:
        """Return whether a holder was dead when the next one got the message."""
        return self.killed.get(one.who, float("inf")) <= later.at

    def was_forgotten(self, since: float, until: float) -> bool:
        """Return whether the server may have forgotten what it did then, because it was killed."""
        found = any(begin <= until and since <= end for begin, end in self.forgot)
        self.checked.counts[FORGOTTEN] += found
        return found

    def why_lost(self, one: Delivery, later: Delivery) -> str:
        """Return why a holder could lose its lease to the next one; '': no reason."""
        if self.was_killed(one, later):
            return "its worker was killed"
        if self.frozen.touch(one.who, one.since, later.at):
            return "its worker was frozen"
        if self.trouble.touch("", one.since, later.at):
            return "the server or the network failed"
        if one.at - one.since >= self._lease:
            return "the machine was so busy that the lease ended before its worker knew of it"
        if self.starved.touch(one.who, one.since, later.at):
            return "the machine was so busy that its process did not run"
        return ""

    def _answered(self, note: Note) -> None:
        began = self._produces.pop((note.who, note.call), note.at)
        self.produces.append((began, note.at))
        self.answered.update(dict.fromkeys(note.words, note.at))
        match note.what:
            case What.PRODUCED:
                self._produced(note)
            case What.REFUSED:
                self.refused.update(note.words)
            case _:
                self.unknown.update(note.words)

    def _produced(self, note: Note) -> None:
        for id, label in zip(note.ids, note.words, strict=True):
            if self.ids.setdefault(label, id) != id:
                self.checked.violated("two ids", f"{label} is {self.ids[label]} and {id}")
            self.lives[id].label = label

    def _delivered(self, note: Note) -> None:
        lost_by = note.words or [""] * len(note.ids)
        for id, token, loser in zip(note.ids, note.tokens, lost_by, strict=True):
            deliveries = self.lives[id].deliveries
            if token in deliveries:
                self.checked.violated("one token, two deliveries", f"{id}, token {token}")
            deliveries[token] = Delivery(note.who, note.since or note.at, note.at, loser)

    def _delivery(self, note: Note, id: str, token: int) -> Delivery:
        delivery = self.lives[id].deliveries.get(token)
        if delivery is None or delivery.who != note.who:
            self.checked.violated(
                "not its own", f"{note.who}: {note.what} {note.script} of {id}, token {token}"
            )
            return Delivery(note.who, note.at, note.at)
        return delivery

    def _call(self, note: Note) -> None:
        settles = []
        for id, token in zip(note.ids, note.tokens, strict=True):
            settle = Settle(note.script, note.at)
            self._delivery(note, id, token).settles.append(settle)
            settles.append(settle)
        self._calls[note.who, note.call] = settles

    def _run(self, note: Note) -> None:
        (id,), (token,), label = note.ids, note.tokens, note.words[0]
        delivery = self._delivery(note, id, token)
        match note.what:
            case What.SPOILT:
                self.checked.violated("spoilt payload", f"{id} of {label}")
            case What.START:
                if delivery.started is not None:
                    self.checked.violated("run twice by one token", f"{id}, token {token}")
                delivery.started, delivery.attempt = note.at, int(note.words[1])
                self.ran[label].add(id)
            case What.FAIL:
                delivery.failed = True
            case _:
                delivery.ended = note.at


def check(notes: Iterable[Note], ends: Ends, *, lease: float = float("inf")) -> Checked:
    """Check a history of workers with this lease."""
    checked = Checked()
    reading = Reading(notes, checked, lease)
    for id, life in reading.lives.items():
        tokens = sorted(life.deliveries)
        deliveries = [life.deliveries[token] for token in tokens]
        _check_fencing(id, deliveries, reading)
        _check_runs(id, deliveries, reading)
        _count(deliveries, checked)
    _check_ledger(reading, ends)
    _check_due(reading)
    _check_order(reading)
    _count_hits(reading)
    _measure(reading)
    return checked


def _check_fencing(id: str, deliveries: list[Delivery], reading: Reading) -> None:
    checked = reading.checked
    for one, later in _with_next(deliveries):
        done = [settle for settle in one.settles if settle.is_done]
        if len(done) > 1:
            scripts = ", ".join(settle.script for settle in done)
            checked.violated("settled twice", f"{id} by {one.who}: {scripts}")
        for settle in done:
            if settle.script == FINAL[0] and (one.ended is None or one.ended > settle.at):
                checked.violated("completed before its end", f"{id} by {one.who}")
        if later is None:
            refused = any(settle.answer == LOST for settle in one.settles)
            may_be_done = any(settle.may_be_done for settle in one.settles)
            if refused and not may_be_done and not reading.was_forgotten(one.since, one.at):
                checked.violated("refused, though no one else had it", f"{id} of {one.who}")
            continue
        for settle in done:
            if settle.at > later.at:
                checked.violated(
                    "a stale settle was accepted",
                    f"{id}: {settle.script} of {one.who} after {later.who} had it",
                )
            elif settle.script in FINAL:
                if not reading.was_forgotten(settle.at, settle.until):
                    checked.violated(
                        "delivered after its end",
                        f"{id}: {settle.script} of {one.who}, {later.who}",
                    )
            elif (
                later.lost_by == one.who
                and not reading.was_killed(one, later)
                and not reading.was_forgotten(settle.at, settle.until)
            ):
                checked.violated(
                    "taken over after its end", f"{id}: {settle.script} of {one.who}, {later.who}"
                )
        moved = any(settle.script in MOVING and settle.may_be_done for settle in one.settles)
        if not later.lost_by and not moved and not reading.was_forgotten(one.since, one.at):
            checked.violated(
                "leased by two", f"{id}: {one.who} had not given it back when {later.who} got it"
            )
        if later.lost_by == one.who and not (done or reading.why_lost(one, later)):
            checked.violated(
                "a lease lost without a cause", f"{id}: {one.who} lost it to {later.who}"
            )


def _check_runs(id: str, deliveries: list[Delivery], reading: Reading) -> None:
    """Check that every extra run has a recorded cause, and every attempt was a delivery."""
    checked = reading.checked
    runs = [one for one in deliveries if one.started is not None]
    for one, later in _with_next(runs):
        if later is None:
            break
        if later.attempt < one.attempt and not reading.was_forgotten(one.since, one.at):
            checked.violated("attempts go back", f"{id}: {one.attempt}, then {later.attempt}")
        cause = _cause(one, later, reading)
        if cause:
            checked.causes[cause] += 1
        else:
            checked.violated("a run without a cause", f"{id} by {one.who}, again by {later.who}")
    taken = sum(not one.lost_by for one in deliveries)
    if deliveries and deliveries[0].lost_by:
        taken += 1
    for one, later in pairwise(deliveries):
        # If a worker died before it could note a delivery, the one that took it over reports it.
        over = any(settle.may_be_done for settle in one.settles)
        taken += bool(later.lost_by) and (over or later.lost_by != one.who)
    if runs and runs[-1].attempt > taken:
        checked.violated(
            "attempts burnt", f"{id}: attempt {runs[-1].attempt} of {taken} deliveries"
        )


def _cause(one: Delivery, later: Delivery, reading: Reading) -> str:
    if one.failed:
        return "its handler failed, as planned"
    if any(settle.script == "release_message" for settle in one.settles):
        return "handed back at a stop"
    return reading.why_lost(one, later)


def _count(deliveries: list[Delivery], checked: Checked) -> None:
    counts = checked.counts
    for one in deliveries:
        counts["runs"] += one.started is not None
        counts["taken over"] += bool(one.lost_by)
        for settle in one.settles:
            counts["stale settles refused"] += settle.answer == LOST
            counts["settles without a reply"] += settle.answer is None
            counts["settles resent after they had succeeded"] += settle.answer == REPEATED


def _check_ledger(reading: Reading, ends: Ends) -> None:
    counts = reading.checked.counts
    stored: defaultdict[str, set[str]] = defaultdict(set)
    for stored_id, label in ends.labels.items():
        stored[label].add(stored_id)
    for label in reading.asked:
        id = reading.ids.get(label)
        found = reading.ran[label] | stored[label]
        if id is not None:
            counts["acknowledged"] += 1
            found.add(id)
        elif label in reading.refused and label not in reading.unknown:
            counts["refused"] += 1
            if found:
                reading.checked.violated("refused, yet stored", f"{label}: {', '.join(found)}")
        else:
            counts["of unknown fate"] += 1
            counts["of unknown fate, and stored"] += bool(found)
        if len(found) > 1:
            reading.checked.violated("produced twice", f"{label}: {', '.join(found)}")
        for one in found:
            _check_end(one, label, reading, ends)
    for stray in ends.ids() - set(reading.ids.values()):
        if ends.labels.get(stray) not in reading.asked:
            states = ", ".join(ends.of(stray))
            reading.checked.violated("there, but never produced", f"{stray} is {states}")
    counts["lost"] = len(reading.checked.lost)


def _check_end(id: str, label: str, reading: Reading, ends: Ends) -> None:
    """Check that a stored message has ended as planned."""
    checked, counts = reading.checked, reading.checked.counts
    asked = reading.asked[label]
    end, planned = _end(id, reading, ends), Errand.of(label).end
    if end is None and reading.was_forgotten(asked, reading.answered.get(label, float("inf"))):
        counts[FORGOTTEN_PRODUCES] += id == reading.ids.get(label)
    elif end is None:
        checked.lost.add(id)
        checked.violated("lost", f"{id} of {label}, produced at {asked:.3f}")
    elif end not in tuple(End):
        checked.violated("not ended", f"{id} is {end}")
    elif end != planned:
        checked.violated("ended otherwise", f"{id} is {end}, planned as {planned}")
    else:
        counts[end] += 1


def _end(id: str, reading: Reading, ends: Ends) -> str | None:
    """Return how a message ended: completed, or its state on the server."""
    places = ends.of(id)
    completes = [
        (token, settle)
        for token, one in reading.lives[id].deliveries.items()
        for settle in one.settles
        if settle.script == FINAL[0]
    ]
    done = [token for token, settle in completes if settle.is_done]
    if done:
        reading.checked.completed[id] = max(done)
    if len(places) > 1 or (places and done):
        where = ", ".join([*places, "completed"] if done else places)
        reading.checked.violated("in two states", f"{id}: {where}")
    if places:
        return places[0]
    # No one got it after an executed complete: so only the last one can be that.
    last = reading.lives[id].deliveries[max(reading.lives[id].deliveries)] if completes else None
    open_ones = last.settles if last is not None else ()
    may_be_done = any(one.script == FINAL[0] and one.answer is None for one in open_ones)
    return End.COMPLETED if done or may_be_done else None


def _check_due(reading: Reading) -> None:
    for label, ids in reading.ran.items():
        delay = Errand.of(label).delay / 1000
        if label not in reading.asked:
            reading.checked.violated("run, but never produced", label)
            continue
        for id in ids:
            for one in reading.lives[id].deliveries.values():
                early = reading.asked[label] + delay - one.at
                if early > EARLY:
                    reading.checked.violated("before its due time", f"{id}, {early:.3f} s early")


def _check_order(reading: Reading) -> None:
    """Check first in, first out, for messages delivered once and never delayed."""
    queues: defaultdict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for label, id in reading.ids.items():
        deliveries = reading.lives[id].deliveries
        errand = Errand.of(label)
        if len(deliveries) == 1 and errand.delay == 0 and label not in reading.unknown:
            (token,) = deliveries
            queues[errand.producer, errand.topic, errand.priority].append((errand.number, token))
    for queue, messages in queues.items():
        messages.sort()
        reading.checked.counts["in order"] += len(messages)
        for before, after in pairwise(messages):
            if before[1] > after[1]:
                reading.checked.violated(
                    "out of order", f"{', '.join(queue)}: {after[0]} before {before[0]}"
                )


def check_fences(attempts: Iterable[tuple[str, int, bool]], checked: Checked) -> None:
    """Check what a resource let through, in order: the last write is the completer's."""
    last: dict[str, int] = {}
    for id, fence, accepted in attempts:
        if accepted:
            last[id] = fence
        else:
            checked.counts["late side effects refused by the fence"] += 1
    for id, token in checked.completed.items():
        checked.counts["side effects of the completing delivery"] += last.get(id) == token
        if last.get(id) != token:
            checked.violated(
                "another's side effect", f"{id}: fence {last.get(id)}, completed by {token}"
            )


def _count_hits(reading: Reading) -> None:
    """Count what the lab hit: who held messages, and which calls were in progress."""
    spans: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
    settles: list[tuple[float, float]] = []
    for life in reading.lives.values():
        for one in life.deliveries.values():
            settles += ((settle.at, settle.until) for settle in one.settles if settle.answer)
            done = min((settle.at for settle in one.settles), default=float("inf"))
            begun = float("inf") if one.started is None else one.started
            spans[one.who].append((one.at, begun, done))

    def had(who: str, at: float, *, running: bool) -> bool:
        return any((begun if running else taken) <= at <= done for taken, begun, done in spans[who])

    counts = reading.checked.counts
    frozen = list(reading.frozen.begun())
    for what, moments in (("killed", list(reading.killed.items())), ("frozen", frozen)):
        if moments:
            held = sum(had(who, at, running=False) for who, at in moments)
            counts[f"{what} with messages in hand"] = held
            counts[f"{what} with a handler running"] = sum(
                had(who, at, running=True) for who, at in moments
            )
    for _, at in reading.trouble.begun():
        counts["failures of the server"] += 1
        counts["… with messages in hand"] += any(had(who, at, running=False) for who in spans)
        produce, settle = _is_within(at, reading.produces), _is_within(at, settles)
        counts["… with a produce under way"] += produce
        counts["… with a settle under way"] += settle
        counts["… with one of both under way"] += produce or settle


def _is_within(at: float, spans: Iterable[tuple[float, float]]) -> bool:
    return any(begin <= at <= end for begin, end in spans)


def _measure(reading: Reading) -> None:
    """Measure how long the messages of killed workers waited for another worker."""
    checked = reading.checked
    for life in reading.lives.values():
        tokens = sorted(life.deliveries)
        crashes = 0
        for place, token in enumerate(tokens[:-1]):
            one, later = life.deliveries[token], life.deliveries[tokens[place + 1]]
            if not later.lost_by:
                continue
            crashes += 1
            killed = reading.killed.get(later.lost_by)
            if killed is None or later.lost_by != one.who or killed < one.at:
                continue
            if reading.trouble.touch("", one.at, later.at):
                continue
            checked.take_overs.append(later.at - killed)
            after = life.deliveries[tokens[place + 2]] if place + 2 < len(tokens) else None
            if crashes == 1 and after and after.started and not after.lost_by:
                checked.recoveries.append((killed, after.started - killed))


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lies; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _with_next(deliveries: list[Delivery]) -> Iterator[tuple[Delivery, Delivery | None]]:
    return zip(deliveries, [*deliveries[1:], None], strict=False)
