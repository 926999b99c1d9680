"""Cuts: the network fails during every script, in every way that networks fail.

The client's own resend must make each call succeed, with the same reply and state as an uncut call;
or the call must say in time that its outcome is unknown, and then repeating it with the same ids
makes no second message.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from redis.asyncio import Redis

from mx_rmq import Delivery, MessageQueue, ProduceUnknown, Reject, ServerUnavailable, Worker
from mx_rmq.core import codec, events
from mx_rmq.core.confirm import Confirm, Level
from mx_rmq.core.errors import OutcomeUnknown
from mx_rmq.core.message import State
from mx_rmq.net.caller import Caller
from mx_rmq.net.topology import OneServer
from mx_rmq.net.url import connect
from mx_rmq.store.keys import Keys
from mx_rmq.store.preflight import preflight
from mx_rmq.store.quarantine import read
from mx_rmq.store.script import load, names
from mx_rmq.store.store import Store
from tests.faults.trial import Fault, Trial
from tests.lab import proxy
from tests.lab.archives import list_archived
from tests.lab.cases import CASES as EVERY_CASE
from tests.lab.cases import DELAY, Case, Stage, drafts
from tests.lab.clock import Clock
from tests.lab.messages import draft
from tests.lab.proxy import UNHEARD, Order, Proxy
from tests.lab.servers import USUAL, Kind, Server
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from mx_rmq.store.preflight import Preflight

CASES: Final = [case for case in EVERY_CASE if not case.script.startswith("repair")]
"""Repairs leave no receipt: a late copy finds nothing left to repair."""

MODES: Final = {
    "latency and jitter": proxy.Fault.SLOW,
    "cut before the request": proxy.Fault.CUT_REQUEST,
    "cut in the request": proxy.Fault.CUT_IN_REQUEST,
    "request swallowed, silence": proxy.Fault.SWALLOW_REQUEST,
    "reset instead of the reply": proxy.Fault.CUT_REPLY,
    "cut in the reply": proxy.Fault.CUT_IN_REPLY,
    "half open, silence": proxy.Fault.HOLD_REPLY,
    "reply byte by byte": proxy.Fault.TRICKLE_REPLY,
}
SLOW: Final = (proxy.Fault.SLOW, proxy.Fault.TRICKLE_REPLY)
"""Modes in which the first try succeeds."""
SEVERE: Final = tuple(fault for fault in MODES.values() if fault not in SLOW)

PATIENCE: Final = 10.0
REPLY_WITHIN: Final = 0.4
SHORT_PATIENCE: Final = 0.3
SLACK: Final = 3.0
"""Seconds that a busy machine may add to a deadline."""
HANGS: Final = 10.0
"""Seconds after its deadline when the lab gives a call up."""
AT_ONCE: Final = 25
"""Cuts at the same time, so that the waits of silent connections overlap."""
GROUP: Final = 20
"""Callers that produce at the same time."""
TOGETHER: Final = 5
"""Groups of them at the same time."""
LEASE: Final = 2.0
WAIT: Final = 90.0
"""Seconds in which everything must end once the network works again."""
TOPICS: Final = ("red", "green", "blue", "grey")

RETRIED: Final = 80_000
"""Cuts from this number on are retries. Numbers must stay below 100,000."""
UNCUT: Final = "t-----"
"""The topic of uncut calls; its name is as long as the others'."""

_LANE: Final = re.compile(r"[a-hjkmnp-tv-z][0-9a-hjkmnp-tv-z]{12}(?=-[0-9])")


class Cut(NamedTuple):
    """One cut of the plan."""

    number: int
    mode: str
    part: float
    late: tuple[float, float]

    def order(self, match: bytes) -> Order:
        return Order(MODES[self.mode], match, part=self.part, late=self.late)


@dataclass
class Row:
    """The results of the cuts of one mode."""

    cuts: int = 0
    recovered: int = 0
    unknown: int = 0
    longest: float = 0.0


@dataclass
class Scene:
    """A server, reached directly and through a network that fails."""

    trial: Trial
    raw: Redis
    proxy: Proxy
    found: Preflight
    direct: Caller
    through: Caller
    impatient: Caller
    narrow: Caller
    """Has one connection for all its calls."""
    rows: dict[str, Row]
    uncut: dict[str, Snapshot] = field(default_factory=dict)
    """What each case leaves behind if nothing goes wrong."""

    def store(self, caller: Caller, clock: Clock | None = None) -> Store:
        return Store(caller, Keys(), self.found, clock=clock)

    async def look(self, topic: str) -> Snapshot:
        return await snapshot(self.raw, topic)

    async def timed(self, mode: str, most: float, call: Awaitable[Any]) -> Any:
        """Make a call; it must end in time, with or without success."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(most + HANGS):
                return await call
        except TimeoutError as error:
            raise OutcomeUnknown("the lab no longer waits for it") from error
        finally:
            took = time.monotonic() - began
            self.rows[mode].longest = max(self.rows[mode].longest, took)
            self.trial.expect(
                took <= most + SLACK, f"{mode}: a call took {took:.2f} s, not {most:g} s"
            )

    async def check_clean(self, store: Store, topic: str, what: str) -> None:
        for violation in await store.audit.topic(topic):
            self.trial.violated(f"{what}: audit: {violation}")


async def _run(trial: Trial) -> None:
    size = trial.size
    unknown, groups, components = size // 8, size // 10, size // 5
    kinds = list(USUAL) if size >= 1000 else [Kind.VALKEY_9_1]
    rows = {mode: Row() for mode in MODES}
    trial.figures.update({"cuts": 0, "messages lost": 0, "duplicates created": 0})
    trial.figures.update({"calls of unknown outcome": 0})
    cases = list(_plan(trial.random, size - unknown - groups - components))
    hopeless = list(_plan(trial.random, unknown, SEVERE))
    crowds = list(_plan(trial.random, groups))
    for turn, kind in enumerate(kinds):
        with Server(kind, trial.directory / f"s{turn}") as server:
            async with AsyncExitStack() as stack:
                scene = await _open(trial, server, stack, rows)
                await _uncut(scene)
                await _each(scene, cases[turn :: len(kinds)], AT_ONCE, _cut_a_case)
                await _each(scene, hopeless[turn :: len(kinds)], AT_ONCE, _cut_for_ever)
                await _each(scene, crowds[turn :: len(kinds)], TOGETHER, _cut_in_a_crowd)
    with Server(Kind.VALKEY_9_1, trial.directory / "c") as server:
        await _components(trial, server, components)
    head = ["mode", "cuts", "recovered", "outcome unknown", "longest call, s"]
    table = [
        [mode, f"{row.cuts:,}", f"{row.recovered:,}", f"{row.unknown:,}", f"{row.longest:.2f}"]
        for mode, row in rows.items()
    ]
    trial.tables["Cuts of single calls, by mode"] = [head, *table]
    trial.count("cuts", sum(row.cuts for row in rows.values()))
    trial.count("calls of unknown outcome", sum(row.unknown for row in rows.values()))
    trial.figures["longest call, s"] = round(max(row.longest for row in rows.values()), 2)
    trial.figures["longest call allowed, s"] = round(PATIENCE + REPLY_WITHIN, 2)


def _plan(
    chance: random.Random, count: int, faults: tuple[proxy.Fault, ...] = tuple(MODES.values())
) -> Iterator[Cut]:
    """Draw cuts. Their numbers and modes rotate so that each case meets each mode."""
    modes = [mode for mode, fault in MODES.items() if fault in faults]
    offset = chance.randrange(len(CASES) * len(modes))
    for number in range(offset, offset + count):
        mode = modes[(number + number // (len(CASES) * len(modes))) % len(modes)]
        late = (chance.uniform(0, 0.03), chance.uniform(0, 0.03))
        yield Cut(number, mode, chance.random(), late)


def _topic(cut: Cut) -> str:
    return f"t{cut.number:05}"


async def _open(trial: Trial, server: Server, stack: AsyncExitStack, rows: dict[str, Row]) -> Scene:
    raw = await stack.enter_async_context(Redis.from_url(server.url))
    for name in names():
        await raw.script_load(load(name).source)
    way = await stack.enter_async_context(Proxy(server.socket))

    async def caller(url: str, patience: float, reply_within: float) -> Caller:
        servers = await connect(url)
        stack.push_async_callback(servers.close)
        return Caller(servers, patience=patience, reply_within=reply_within)

    direct = await caller(server.url, 20.0, 10.0)
    narrow = await caller(way.url, PATIENCE, REPLY_WITHIN)
    assert isinstance(narrow.servers, OneServer)
    narrow.servers.node.wires._most = 1
    return Scene(
        trial=trial,
        raw=raw,
        proxy=way,
        found=await preflight(direct, Keys()),
        direct=direct,
        through=await caller(way.url, PATIENCE, REPLY_WITHIN),
        impatient=await caller(way.url, SHORT_PATIENCE, REPLY_WITHIN),
        narrow=narrow,
        rows=rows,
    )


async def _each(scene: Scene, cuts: list[Cut], at_once: int, play: Any) -> None:
    """Run cuts, some at once, on a server that is emptied in between."""
    for start in range(0, len(cuts), at_once):
        await asyncio.gather(*(play(scene, cut) for cut in cuts[start : start + at_once]))
        await scene.raw.flushall()
        scene.proxy.requests.clear()
        scene.proxy.passed.clear()
        scene.trial.say(f"{sum(row.cuts for row in scene.rows.values()):,} cuts")


# every transition


async def _uncut(scene: Scene) -> None:
    for case in CASES:
        clock, topic = Clock(), UNCUT
        seeded = await case.seed(Stage(scene.store(scene.direct, clock), clock, topic))
        answer = await case.act(scene.store(scene.through, clock), topic, seeded)
        scene.trial.expect(answer == case.done, f"{case}, uncut: {answer}, not {case.done}")
        scene.uncut[case.name] = await scene.look(topic)
        await scene.raw.flushall()


async def _cut_a_case(scene: Scene, cut: Cut) -> None:
    """Cut the first try of a call."""
    case, topic, clock = CASES[cut.number % len(CASES)], _topic(cut), Clock()
    what, match = f"{case}, {cut.mode}, cut {cut.number}", b"{%s}" % topic.encode()
    direct, through = scene.store(scene.direct, clock), scene.store(scene.through, clock)
    seeded = await case.seed(Stage(direct, clock, topic))
    scene.proxy.order(cut.order(match))
    call = case.act(through, topic, seeded)
    row = scene.rows[cut.mode]
    row.cuts += 1
    try:
        answer = await scene.timed(cut.mode, PATIENCE + REPLY_WITHIN, call)
    except (OutcomeUnknown, ServerUnavailable) as error:
        scene.trial.violated(f"{what}: {error}")
        return
    row.recovered += 1
    ran, fault = scene.proxy.passed[match], MODES[cut.mode]
    wanted = 1 if fault in UNHEARD or fault in SLOW else 2
    scene.trial.expect(ran >= wanted, f"{what}: the server ran it {ran} times")
    right = case.done if ran == 1 else case.again
    scene.trial.expect(answer == right, f"{what}: answers {answer}, not {right}")
    _compare(scene, what, await scene.look(topic), topic, scene.uncut[case.name])
    await scene.check_clean(direct, topic, what)


async def _cut_for_ever(scene: Scene, cut: Cut) -> None:
    """Cut every try until patience ends; then do it again on a good network."""
    case, topic, clock = CASES[cut.number % len(CASES)], _topic(cut), Clock()
    what, match = f"{case}, {cut.mode} forever, cut {cut.number}", b"{%s}" % topic.encode()
    direct, through = scene.store(scene.direct, clock), scene.store(scene.impatient, clock)
    seeded = await case.seed(Stage(direct, clock, topic))
    before = await scene.look(topic)
    scene.proxy.order(cut.order(match), 100)
    call = case.act(through, topic, seeded)
    row = scene.rows[cut.mode]
    row.cuts += 1
    ids: tuple[str, ...] = ()
    try:
        answer = await scene.timed(cut.mode, SHORT_PATIENCE + REPLY_WITHIN, call)
        scene.trial.violated(f"{what}: answers {answer}, but no reply ever came")
        return
    except OutcomeUnknown as error:
        row.unknown += 1
        if isinstance(error, ProduceUnknown):
            ids = error.ids
    except ServerUnavailable as error:
        if scene.proxy.count(match) or cut.number >= RETRIED:
            scene.trial.violated(f"{what}: it was sent, or tried for long, but: {error}")
            return
        row.cuts -= 1  # the machine was too busy for a connection: nothing was cut
        await _cut_for_ever(scene, cut._replace(number=cut.number + 20_000))
        return
    finally:
        scene.proxy.forget(match)
    tells = bool(ids) == case.script.startswith(("produce_normal", "produce_delay", "replace"))
    scene.trial.expect(tells, f"{what}: the ids of the error are {ids}")
    after = scene.uncut[case.name]
    wanted, of = (before, topic) if MODES[cut.mode] in UNHEARD else (after, UNCUT)
    _compare(scene, what, await scene.look(topic), topic, wanted, of)
    await scene.check_clean(direct, topic, what)
    patient = scene.store(scene.through, clock)
    if case.script == "dispatch_message":
        return  # asked again, it gives what is left; expired leases bring back what it gave before
    if ids and case.script != "replace_message":
        again = _with_ids(case, ids)
        await getattr(patient, case.script)(topic, again)
    else:
        await case.act(patient, topic, seeded)
    found = await scene.look(topic)
    _compare(scene, f"{what}, again", replace(found, recent={}), topic, replace(after, recent={}))
    await scene.check_clean(direct, topic, what)


def _with_ids(case: Case, ids: tuple[str, ...]) -> list[Any]:
    delay = DELAY if case.script == "produce_delay_message" else 0
    first = drafts(own=False, delay=delay)
    return [msgspec.structs.replace(one, id=id) for one, id in zip(first, ids, strict=True)]


def _compare(
    scene: Scene, what: str, found: Snapshot, topic: str, wanted: Snapshot, of: str = UNCUT
) -> None:
    """Note differences from an uncut run."""
    have, want = _labels(found), _labels(wanted)
    scene.trial.count("messages lost", (want - have).total())
    scene.trial.count("duplicates created", (have - want).total())
    mine, theirs = _plain(found, topic), _plain(wanted, of)
    for place, content in mine.items():
        right = content == theirs[place]
        scene.trial.expect(right, f"{what}: {place} holds {content}, not {theirs[place]}")


def _plain(found: Snapshot, topic: str) -> dict[str, str]:
    """Return a snapshot as texts, without chance differences: names, and the order of hashes."""
    plain = {}
    for place, content in vars(found).items():
        some = sorted(content.items()) if isinstance(content, dict) else content
        plain[place] = _LANE.sub("lane", repr(some).replace(f'"{topic}"', '"topic"'))
        if isinstance(content, dict):
            plain[place] = "\n".join(sorted(plain[place].split("), (")))
    return plain


def _labels(found: Snapshot) -> Counter[str]:
    """Count the messages of a topic by their payloads."""
    kept = [*found.records.values(), *found.dead_letters.values()]
    kept += [read(data)[1] for data in found.quarantined.values()]
    return Counter(bytes(codec.decode(data).payload).decode() for data in kept)


# many callers at once


async def _cut_in_a_crowd(scene: Scene, cut: Cut) -> None:
    """Produce from many callers at the same time, and cut the call of one of them."""
    topic = _topic(cut)
    cutting = cut.number * 7 % GROUP
    way = ("one connection", "confirmed", "together")[cut.number % 3]
    what = f"{way}, {cut.mode}, cut {cut.number}"
    labels = [f"{topic}-{number}-" for number in range(GROUP)]
    row = scene.rows[cut.mode]
    row.cuts += 1
    match = f'"{labels[cutting]}"'.encode()
    if way == "confirmed" and cutting % 2:
        match = b"WAIT\r\n"
    scene.proxy.order(cut.order(match))
    longest = PATIENCE + REPLY_WITHIN
    call: Awaitable[Any]
    if way == "together":
        call = _produce_together(scene, topic, labels)
        longest *= 2  # a call that arrives during another one waits for that one first
    else:
        caller = scene.narrow if way == "one connection" else scene.through
        store = scene.store(caller)
        confirm = Confirm(Level.REPLICATED, 0, REPLY_WITHIN) if way == "confirmed" else None
        if confirm is not None:
            longest += confirm.within

        async def produce(label: str) -> str:
            prepared = store.prepare("produce_normal_message", topic, [draft(label)])
            ((id, _),) = await store.produce(prepared, confirm)
            return id

        call = asyncio.gather(*map(produce, labels))
    try:
        ids = await scene.timed(cut.mode, longest, call)
    except (OutcomeUnknown, ServerUnavailable) as error:
        scene.trial.violated(f"{what}: {error}")
        return
    finally:
        scene.proxy.forget(match)
    row.recovered += 1
    found = await scene.look(topic)
    have = _labels(found)
    want = Counter(f'"{label}"' for label in labels)
    scene.trial.count("messages lost", (want - have).total())
    scene.trial.count("duplicates created", (have - want).total())
    scene.trial.expect(have == want, f"{what}: {have - want} too many, {want - have} too few")
    scene.trial.expect(
        sorted(ids) == sorted(found.normal) == sorted(found.records),
        f"{what}: returned {ids}, stored {found.normal}",
    )
    await scene.check_clean(scene.store(scene.direct), topic, what)


async def _produce_together(scene: Scene, topic: str, labels: list[str]) -> list[str]:
    """Produce by a queue: concurrent calls share script calls."""
    async with MessageQueue(scene.proxy.url, patience=PATIENCE) as mq:
        own, mq.store.caller = mq.store.caller, scene.through
        try:
            return await asyncio.gather(*(mq.produce(topic, label) for label in labels))
        finally:
            mq.store.caller = own


# real producers and a real worker


@dataclass
class Chances:
    """Cuts requests at random, until enough are cut."""

    chance: random.Random
    left: int
    gap: int = 3
    cuts: Counter[proxy.Fault] = field(default_factory=Counter)

    def __call__(self, request: bytes) -> Order | None:
        if not self.left or not (b"EVALSHA" in request or b"BLPOP" in request):
            return None
        self.gap -= 1
        if self.gap > 0:
            return None
        self.left -= 1
        self.gap = self.chance.randrange(1, 6)
        fault = self.chance.choice(tuple(MODES.values()))
        self.cuts[fault] += 1
        late = (self.chance.uniform(0, 0.03), self.chance.uniform(0, 0.03))
        return Order(fault, part=self.chance.random(), late=late)


@dataclass
class Work:
    """What real producers sent and a real worker did."""

    ids: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Label -> every id under which a produce put it, or may have."""
    seen: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Label -> every id under which it was found."""
    runs: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    """How often something happened to a message that may make it run again."""
    failures: int = 0
    """Attempts that failed as planned."""
    unknown: int = 0
    longest: float = 0.0


async def _components(trial: Trial, server: Server, cuts: int) -> None:
    """Cut the connections of producers and of a worker at random calls; all work must end well."""
    work = Work()
    async with (
        Proxy(server.socket) as before,
        Proxy(server.socket) as behind,
        MessageQueue(server.url) as direct,
    ):
        produced = MessageQueue(before.url, patience=1.0, lease=LEASE)
        served = MessageQueue(behind.url, patience=1.0, lease=LEASE)
        _declare(served, work)
        async with produced, served, Worker(served):
            first = Chances(random.Random(trial.random.random()), cuts // 2)
            second = Chances(random.Random(trial.random.random()), cuts - cuts // 2)
            before.choose, behind.choose = first, second
            numbers = iter(range(10**9))
            makers = [
                _make(
                    produced, work, [first, second], numbers, random.Random(trial.random.random())
                )
                for _ in range(len(TOPICS))
            ]
            try:
                async with asyncio.timeout(WAIT + cuts / 2):
                    await asyncio.gather(*makers)
            except TimeoutError:
                left = first.left + second.left
                trial.violated(f"real components: {left} cuts were never reached, so calls hang")
            before.choose = behind.choose = None
            await _settled(trial, direct)
        await _judge(trial, direct, work)
    trial.count("cuts", first.cuts.total() + second.cuts.total())
    trial.count("calls of unknown outcome", work.unknown)
    trial.count("messages of real producers", len(work.ids))
    extra = work.runs.total() - len(work.runs) - work.failures
    trial.figures["extra runs, each after a lease was lost"] = extra
    trial.figures["longest call of a real producer, s"] = round(work.longest, 2)
    trial.expect(
        work.longest <= 2 * (1.0 + 1.0) + SLACK,
        f"a real produce took {work.longest:.2f} s; its patience is 1 s, its reply deadline 1 s, "
        "and it waits for one call before it",
    )
    trial.tables["Cuts of real producers and a worker, by mode"] = [
        ["mode", "producers", "worker"],
        *([mode, str(first.cuts[one]), str(second.cuts[one])] for mode, one in MODES.items()),
    ]


def _fails(label: int) -> bool:
    """Return whether a label's first attempt fails."""
    return label % 10 == 3


def _dies(label: int) -> bool:
    return label % 25 == 7


def _is_strange(label: int) -> bool:
    """Return whether a label's payload does not fit the handler's type."""
    return label % 25 == 8


def _declare(served: MessageQueue, work: Work) -> None:
    def note(event: Any) -> None:
        work.causes[event.id] += 1

    served.events.subscribe(note, events.TakenOver, events.LeaseLost, events.Retried)

    async def handle(label: int, delivery: Delivery) -> None:
        work.seen[label].add(delivery.id)
        work.runs[delivery.id] += 1
        if _dies(label):
            raise Reject("as planned")
        if _fails(label) and delivery.attempt == 1:
            work.failures += 1
            raise ValueError("as planned")

    for topic in TOPICS:
        served.handler(topic, max_attempts=50, max_crashes=50, retry=0.05)(handle)


async def _make(
    mq: MessageQueue,
    work: Work,
    cutters: list[Chances],
    numbers: Iterator[int],
    chance: random.Random,
) -> None:
    """Produce until all cuts are made."""
    while any(cutter.left for cutter in cutters):
        topic = chance.choice(TOPICS)
        count = chance.choice((1, 1, 1, 4))
        labels = [next(numbers) for _ in range(count)]
        delay = chance.choice((None, None, None, 0.05))
        own = [f"own-{label}" for label in labels] if chance.random() < 0.3 else None
        await _insist(mq, work, topic, labels, own, delay)


async def _insist(
    mq: MessageQueue,
    work: Work,
    topic: str,
    labels: list[int],
    ids: list[str] | None,
    delay: float | None,
) -> None:
    """Produce until it is known to be stored, always with the same ids."""
    payloads = [f"strange {label}" if _is_strange(label) else label for label in labels]
    while True:
        began = time.monotonic()
        try:
            if len(labels) == 1:
                id = None if ids is None else ids[0]
                made = [await mq.produce(topic, payloads[0], id=id, delay=delay)]
            else:
                made = await mq.produce_many(topic, payloads, ids=ids, delay=delay)
            break
        except ProduceUnknown as error:
            work.unknown += 1
            ids = list(error.ids)
        except ServerUnavailable:
            pass
        finally:
            work.longest = max(work.longest, time.monotonic() - began)
    for label, id in zip(labels, made, strict=True):
        work.ids[label].add(id)


async def _settled(trial: Trial, direct: MessageQueue) -> None:
    """Wait until nothing is in progress any more."""
    deadline = time.monotonic() + WAIT
    live = -1
    while live and time.monotonic() < deadline:
        stats = [await direct.admin.stats(topic) for topic in TOPICS]
        live = sum(one.pending + one.delayed + one.processing for one in stats)
        await asyncio.sleep(0.05)
    trial.expect(
        live == 0, f"real components: {live} messages are still in progress after {WAIT} s"
    )


async def _judge(trial: Trial, direct: MessageQueue, work: Work) -> None:
    """Check that every label has one id, in the right state."""
    ends: dict[State, set[int]] = {State.DEAD: set(), State.QUARANTINED: set()}
    for topic in TOPICS:
        for state, labels in ends.items():
            for one in await list_archived(direct.store, topic, state, count=1000):
                data = read(one.data)[1] if state is State.QUARANTINED else one.data
                payload = msgspec.json.decode(codec.decode(data, topic, one.id).payload)
                label = int(str(payload).removeprefix("strange "))
                work.seen[label].add(one.id)
                labels.add(label)
        for violation in await direct.admin.audit(topic):
            trial.violated(f"real components: audit: {violation}")
    for label, ids in work.ids.items():
        found = work.seen[label]
        trial.count("messages lost", not found)
        trial.count("duplicates created", max(0, len(found) - 1))
        trial.expect(found == ids, f"label {label} was produced as {ids} and found as {found}")
        for state, wanted in ((State.DEAD, _dies), (State.QUARANTINED, _is_strange)):
            right = (label in ends[state]) == wanted(label)
            trial.expect(right, f"label {label} is in the {state} ones, or should be")
    trial.expect(work.seen.keys() == work.ids.keys(), "labels were found that were never produced")
    for id, runs in work.runs.items():
        trial.expect(
            runs - 1 <= work.causes[id],
            f"{id} ran {runs} times; its lease was lost or it failed {work.causes[id]} times",
        )


FAULT: Final = Fault(
    "cuts",
    "network cuts, each script × each mode",
    _run,
    unit="cuts",
    short=100,
    full=5000,
)
