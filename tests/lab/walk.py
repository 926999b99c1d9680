"""A random walk over every transition, against the model.

The walk drives the store's own methods. Each script call goes through a caller that compares reply
and server with the model. It can lose the reply, resend the call, or kill the client before or
after the server runs it; such a call may still arrive later.
"""

from __future__ import annotations

import re
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mx_rmq.core import codec, steps
from mx_rmq.core.duplicates import DuplicatePolicy
from mx_rmq.core.message import Priority, State
from mx_rmq.core.outcome import Park, SnoozeLater
from mx_rmq.core.schedule import Schedule
from mx_rmq.net.caller import RECEIPT_MS, Caller
from mx_rmq.net.url import connect
from mx_rmq.settings import Limits
from mx_rmq.store.keys import Keys
from mx_rmq.store.operator_calls import KEEP
from mx_rmq.store.preflight import Preflight, preflight
from mx_rmq.store.quarantine import QuarantineReason
from mx_rmq.store.results import Claim, HandedBack, Leased, RetryRequest, Settled, Signal
from mx_rmq.store.store import Store
from tests.lab.clock import Clock
from tests.lab.messages import FAILURE, TOPIC, draft, kept
from tests.lab.model import SUPERSEDED, Call, Model
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Coroutine, Mapping, Sequence

    from mx_rmq.core.duplicates import OnDuplicate
    from mx_rmq.core.message import Message
    from mx_rmq.net.connection import Check, Value
    from mx_rmq.net.topology import Servers
    from mx_rmq.store.script import Script

READS = {
    *("inspect_message", "scan_fields", "weigh_fields", "count_messages", "find_history"),
    *("read_status", "undated_messages", "scan_signals"),
}
BESIDE = {*READS, "preflight", "register_topics", "tend_topics", "give_up_turn", "repair_waits"}
"""Calls that move no message."""

AUDITED = 5
"""Steps between audits: an audit costs more than the rest of a step."""

MINUTE = 60_000
KEPT = 5 * MINUTE
"""How long results are kept."""

RESULT_TTL = 300_000
"""Milliseconds for which results are kept."""

LIMITS = Limits(
    dlq_max=2,
    dlq_ttl=1000,
    dlq_max_bytes=800,
    quarantine_max=2,
    quarantine_ttl=500,
    quarantine_max_bytes=900,
    results_max=3,
    results_bytes=1200,
    dedup=120,
)
"""Two dead letters and two quarantined messages fit, or one that failed several times; and three
results, or two long ones."""

DECLARED = (
    "",
    "",
    "- - - 1 - - 0",
    "- - - 1 - - 1",
    "- - - 2 200 2 0",
    "3 - - - - - 0",
    "- 50 2 - 400 1 0",
    "- 900 1 - - - 0",
    "2 333.33333333333331 1 2 - - 0",
)
"""Limits that handlers declare: see `keys.py`."""

faults = st.sampled_from(["none", "none", "resent", "resent", "doubled", "lost", "unsent"])
"""What happens to a call; doubled: it gets a reply, and a copy arrives later."""
priorities = st.sampled_from(list(Priority))
workers = st.sampled_from(["w1", "w2"])
counts = st.integers(1, 4)
CUSTOM = ["a", "b"]
own_ids = st.sampled_from(CUSTOM)
ttls = st.sampled_from([None, 1, 400, 31_000])
names = st.sampled_from(["x", "y", "z", "\x01child"])
recent = st.integers(0, 5)
"""Which one, counted from the latest: the recent ones are the interesting ones."""


class ClientDied(Exception):
    """The client is dead; no one sees the reply."""


class JudgingCaller(Caller):
    """Compares each reply with the model's, and injects one fault if told to."""

    def __init__(self, servers: Servers, model: Model, mutants: Mapping[str, Script]) -> None:
        super().__init__(servers, patience=5)
        self.model = model
        self.fault = "none"
        self.late: list[tuple[Script, list[str], list[Value]]] = []
        self._mutants = mutants

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Value],
        check: Check | None = None,
    ) -> Any:
        script = self._mutants.get(script.name, script)
        if script.name in BESIDE:
            return await super().run(script, keys, args, check)
        fault, self.fault = self.fault, "none"
        if fault == "unsent":
            self.late.append((script, list(keys), list(args)))
            raise ClientDied
        reply = await self.judged(script, keys, args)
        if fault == "lost":
            self.late.append((script, list(keys), list(args)))
            raise ClientDied
        if fault == "doubled":
            self.late.append((script, list(keys), list(args)))
        if fault == "resent":
            reply = await self.judged(script, keys, args)
        return reply

    async def judged(self, script: Script, keys: Sequence[str], args: Sequence[Value]) -> Any:
        """Run a call on the server and on the model."""
        reply = await super().run(script, keys, args)
        copies = re.search(r"\}@([^:]+):", keys[0])
        model = self.model.copies[copies[1]] if copies else self.model
        expected = model.apply(_call(script, keys, args))
        assert expected is SUPERSEDED or _plain(reply) == _plain(expected), script.name
        return reply

    async def arrive(self, position: int, now: int) -> None:
        """Let a call of a dead client arrive now, whether it arrived before or not."""
        script, keys, args = self.late.pop(position % len(self.late))
        if "now_ms" in script.args:
            args[script.args.index("now_ms")] = now
        await self.judged(script, keys, args)


class Walk(RuleBasedStateMachine):
    """Subclass with a url (and mutants) to run it."""

    url: str
    mutants: Mapping[str, Script] = {}
    loop: asyncio.AbstractEventLoop
    found: Preflight | None = None

    def __init__(self) -> None:
        super().__init__()
        # Random lane names would break ties differently in a second run.
        self.names = patch("mx_rmq.store.lanes.secrets", Random(0))
        self.names.start()
        # A list of three has a middle that is too deep to reach.
        self.shallow = [
            patch("mx_rmq.store.operator_calls.WALK", 1),
            patch("mx_rmq.store.upkeep_calls.WINDOW", 1),
            patch("mx_rmq.store.upkeep_calls.WALK", 1),
            patch("mx_rmq.store.upkeep_calls.SPARE", 1),
            patch("mx_rmq.store.worker_calls.MAX_SIGNALS", 2),
        ]
        for one in self.shallow:
            one.start()
        self.clock = Clock()
        self.model = Model()
        self.claims: list[tuple[str, Leased]] = []
        """Every lease that a worker ever got: most of them are stale."""
        self.ids: list[str] = []
        self.definitions = 0
        """How many schedules have been defined; the number is their generation."""
        self.steps = 0
        self.run(self._open())

    @initialize(first=st.lists(st.tuples(priorities, workers), max_size=6))
    def begin_busy(self, first: list[tuple[Priority, str]]) -> None:
        for priority, worker in first:
            self.produce("some", 2, priority, 0, "a", None, "none")
            self.dispatch(worker, 1, 1000, "none", alone=False)

    async def _open(self) -> None:
        servers = await connect(self.url)
        self.raw = servers.node_at(0).client
        await self.raw.flushall()
        self.caller = JudgingCaller(servers, self.model, self.mutants)
        keys = Keys()
        cls = type(self)
        if cls.found is None:
            cls.found = await preflight(self.caller, keys)
        self.store = self._store()

    def _store(self) -> Store:
        assert self.found is not None
        return Store(self.caller, Keys(), self.found, limits=LIMITS, clock=self.clock)

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def play(self, fault: str, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something with a fault; None if the client died of it."""
        self.caller.fault = fault
        try:
            return self.run(work)
        except ClientDied:
            return None
        finally:
            self.caller.fault = "none"

    # producers

    @rule(
        what=st.sampled_from(["some", "own", "delayed", "own delayed", "again"]),
        count=counts,
        priority=priorities,
        delay=st.sampled_from([0, 1, 500, 5000]),
        id=own_ids,
        ttl=ttls,
        fault=faults,
    )
    def produce(
        self,
        what: str,
        count: int,
        priority: Priority,
        delay: int,
        id: str,
        ttl: int | None,
        fault: str,
    ) -> None:
        if what == "some":
            drafts = [draft(number, priority=priority, ttl=ttl) for number in range(count)]
        elif what == "own":
            own = draft(id, id=id, priority=priority, ttl=ttl)
            drafts = [own, draft(2), draft(id, id=id)]
        elif what == "delayed":
            due = draft(2, at=self.clock.now - 5)
            drafts = [draft(1, delay=delay, priority=priority, ttl=ttl), due]
        elif what == "own delayed":
            drafts = [draft(1, id=id, delay=delay, ttl=ttl)]
        else:
            drafts = [draft(1, id=self._made_before(count - 1) or id)]
        late = "delayed" in what
        produce = self.store.produce_delay_message if late else self.store.produce_normal_message
        self._produced(self.play(fault, produce(TOPIC, drafts)))

    @rule(
        name=st.sampled_from(["produce_normal_message", "produce_delay_message"]),
        on_duplicate=st.sampled_from(["error", "ignore"]),
        dedup=st.sampled_from([None, 0, 5000]),
        id=own_ids,
        ttl=ttls,
        fault=faults,
    )
    def produce_on_terms(
        self,
        name: str,
        on_duplicate: OnDuplicate,
        dedup: int | None,
        id: str,
        ttl: int | None,
        fault: str,
    ) -> None:
        policy = DuplicatePolicy(on_duplicate, dedup)
        delay = 500 if name == "produce_delay_message" else 0
        drafts = [draft(1, id=id, ttl=ttl, delay=delay), draft(2, delay=delay)]
        call = self.store.prepare(name, TOPIC, drafts, [policy, policy])
        self._produced(self.play(fault, self.store.produce(call)))

    @rule(
        id=own_ids,
        made=st.sampled_from([None, None, None, 0, 1]),
        priority=priorities,
        delay=st.sampled_from([0, 0, 1, 500, 5000]),
        ttl=ttls,
        dedup=st.sampled_from([None, None, 0, 200_000]),
        fault=faults,
    )
    def replace(
        self,
        id: str,
        made: int | None,
        priority: Priority,
        delay: int,
        ttl: int | None,
        dedup: int | None,
        fault: str,
    ) -> None:
        if made is not None:
            id = self._made_before(made) or id
        new = draft("new", id=id, priority=priority, delay=delay, ttl=ttl)
        work = self.store.replace_message(TOPIC, new, DuplicatePolicy("replace", dedup))
        produced = self.play(fault, work)
        self._produced([produced] if produced else None)

    @rule(
        what=st.sampled_from(["now", "now", "late", "same", "older", "early", "look", "taken"]),
        priority=priorities,
        id=own_ids,
        ttl=ttls,
        fault=faults,
    )
    def cron(self, what: str, priority: Priority, id: str, ttl: int | None, fault: str) -> None:
        last = self.model.tick or self.clock.now
        ticks = {"late": self.clock.now - 500, "same": last, "older": last - 1}
        tick = self.clock.now + 1 if what == "early" else ticks.get(what, self.clock.now)
        taken = [id, *self.model.records, *self.model.quarantine, *self.model.dead][-1]
        new = draft(tick, id=taken if what == "taken" else None, priority=priority, ttl=ttl)
        work = self.store.produce_cron_message(TOPIC, tick, None if what == "look" else new)
        ticked = self.play(fault, work)
        if ticked and ticked.id:
            self._produced([(ticked.id, None)])

    @rule(
        what=st.sampled_from(
            ["store", "again", "move", "remove", "remove one", "pause", "resume", "tick", "look"]
        ),
        name=st.sampled_from(["s", "s", "t", ""]),
        generation=st.sampled_from([0, 0, 1]),
        fault=faults,
    )
    def schedule(self, what: str, name: str, generation: int, fault: str) -> None:
        """Change a schedule, or fire it; `generation`: how many definitions ago it was read."""
        known = str(max(0, self.definitions - generation))
        if what == "again" and name:  # as a deployment does, some time later
            self.schedule("store", name, generation, "none")
            self.clock.advance(1)
            self.schedule("store", name, generation, fault)
        elif what in ("store", "move") and name:
            self.definitions += 1
            expression = "* * * * *" if what == "store" else f"{self.definitions % 60} * * * *"
            stored = Schedule(name=name, topic=TOPIC, expression=expression)
            self.play(fault, self.store.store_schedule(stored, str(self.definitions)))
        elif what.startswith("remove") and name:
            only = known if what == "remove one" else ""
            self.play(fault, self.store.remove_schedule(TOPIC, name, generation=only))
        elif what == "pause":
            self.play(fault, self.store.pause_schedule(TOPIC, name, reason="why"))
        elif what == "resume":
            self.play(fault, self.store.resume_schedule(TOPIC, name))
        elif what in ("tick", "look"):
            tick = self.clock.now
            new = None if what == "look" else draft(tick, id=f"cron-{tick}@{name}")
            generation_of = known if name else ""
            work = self.store.produce_cron_message(
                TOPIC, tick, new, name=name, generation=generation_of
            )
            ticked = self.play(fault, work)
            if ticked and ticked.id:
                self._produced([(ticked.id, None)])

    def _made_before(self, position: int) -> str | None:
        """Return an id that exists: of a message, of a call whose client died, or archived."""
        ids = [id for id in self.ids if "-" in id]
        for script, _, args in self.caller.late:
            if script.name.startswith("produce") and script.each:
                ids += [str(id) for id in args[len(script.args) :: len(script.each)]]
        ids += [*self.model.quarantine, *self.model.dead]
        return ids[-1 - position % len(ids)] if ids else None

    def _produced(self, produced: Any) -> None:
        for id, _ in produced or []:
            if id not in self.ids:
                self.ids.append(id)

    # workers

    @precondition(lambda self: any(self.model.pending.values()))
    @rule(
        worker=workers,
        count=counts,
        lease=st.sampled_from([1, 1000, 30_000]),
        fault=faults,
        alone=st.sampled_from([False, False, False, True]),
    )
    def dispatch(self, worker: str, count: int, lease: int, fault: str, alone: bool) -> None:
        work = self.store.dispatch_message(TOPIC, worker, count=count, lease=lease, alone=alone)
        taken = self.play(fault, work)
        if taken:
            self.claims += [(worker, leased) for leased in taken.messages]

    @rule(
        keys=st.lists(st.sampled_from([None, "k", "k", "l", "m"]), min_size=1, max_size=4),
        cost=st.sampled_from([1, 1, 3]),
        priority=priorities,
        what=st.sampled_from(["some", "some", "own", "delayed", "replace"]),
        id=own_ids,
        ttl=ttls,
        fault=faults,
    )
    def produce_keyed(
        self,
        keys: list[str | None],
        cost: int,
        priority: Priority,
        what: str,
        id: str,
        ttl: int | None,
        fault: str,
    ) -> None:
        delay = 500 if what == "delayed" else 0
        drafts = [
            draft(key, key=key, cost=cost, priority=priority, ttl=ttl, delay=delay) for key in keys
        ]
        if what == "replace" and self.model.leases and len(keys) > 1:
            id = [*self.model.leases][-1]  # it runs
        if what in ("own", "replace"):
            drafts = [draft("own", id=id, key=keys[0], cost=cost, priority=priority, ttl=ttl)]
        if what == "replace":
            policy = DuplicatePolicy("replace", None)
            produced = self.play(fault, self.store.replace_message(TOPIC, drafts[0], policy))
            self._produced([produced] if produced else None)
            return
        late = what == "delayed"
        produce = self.store.produce_delay_message if late else self.store.produce_normal_message
        self._produced(self.play(fault, produce(TOPIC, drafts)))

    @rule(
        worker=workers,
        count=counts,
        limits=st.sampled_from(DECLARED),
        lease=st.sampled_from([1, 1000, 30_000]),
        fault=faults,
        alone=st.sampled_from([False, False, False, False, True]),
    )
    def dispatch_in_turn(
        self, worker: str, count: int, limits: str, lease: int, fault: str, alone: bool
    ) -> None:
        work = self.store.dispatch_in_turn(
            TOPIC, worker, count=count, lease=lease, limits=limits, alone=alone
        )
        taken = self.play(fault, work)
        if taken:
            self.claims += [(worker, leased) for leased in taken.messages]

    @rule(
        key=st.sampled_from([None, "k", "l"]),
        running=st.sampled_from(["", None, 0, 1, 2]),
        rate=st.sampled_from(["", None, [100.0, 1.0], [1000 / 3, 2.0]]),
        weight=st.sampled_from(["", None, 2.0]),
        pause=st.sampled_from(["", "", None, 500, "on"]),
        fault=faults,
    )
    def limit(
        self, key: str | None, running: Any, rate: Any, weight: Any, pause: Any, fault: str
    ) -> None:
        """Set limits; '' keeps one. All arguments have a JSON form, so a walk can be stored."""
        work = self.store.limit_key(
            TOPIC,
            key,
            running=KEEP if running == "" else running,
            interval=KEEP if rate == "" else rate and (rate[0], rate[1]),
            weight=KEEP if weight == "" else weight,
            pause=KEEP if pause == "" else inf if pause == "on" else pause,
            reason="so",
        )
        self.play(fault, work)

    @rule(
        running=st.sampled_from([None, None, 1, 2]),
        weight=st.sampled_from([None, 2.0]),
        cost=st.sampled_from([1, 3]),
        limits=st.sampled_from(DECLARED),
        count=counts,
        then=st.sampled_from(["", "", "complete", "release"]),
    )
    def take_turns(
        self,
        running: int | None,
        weight: float | None,
        cost: int,
        limits: str,
        count: int,
        then: str,
    ) -> None:
        """Let a few lines take turns twice, whatever the limits. No worker gets the rings."""
        self.limit(None, None, None, "", None, "none")
        self.limit("k", running, None, weight, None, "none")
        for keys in (["k", "l", None, "k"], ["l", None]):
            self.produce_keyed([*keys], cost, Priority.NORMAL, "some", "a", None, "none")
            self.dispatch_in_turn("w1", count, limits, 1000, "none", alone=False)
        self.something_else_happens("doorbells")
        if then and self.claims:
            self.settle_all("w1", then, "none")

    @precondition(lambda self: self.model.lines.waiting)
    @rule(
        asking=st.lists(st.sampled_from(["w1", "w2", "w3"]), min_size=2, max_size=4),
        limits=st.sampled_from(DECLARED),
        apart=st.sampled_from([0, 0, 500, 1500]),
    )
    def several_ask(self, asking: list[str], limits: str, apart: int) -> None:
        """Ask for messages that limits hold back: one worker is told to return, one stands in."""
        for worker in asking:
            self.dispatch_in_turn(worker, 9, limits, 30_000, "none", alone=False)
            self.clock.advance(apart)

    @precondition(lambda self: self.claims)
    @rule(position=recent, key=st.booleans(), delay=st.sampled_from([100, 500]), fault=faults)
    def snooze(self, position: int, key: bool, fault: str, delay: int = 500) -> None:
        worker, one = self._pick(position)
        later = SnoozeLater(codec.decode(one.record), delay, "later", key)
        self.play(fault, self.store.snooze_message(TOPIC, worker, [(one, later)]))

    @precondition(lambda self: self.model.lines.running)
    @rule(delays=st.permutations([100, 500]))
    def snooze_a_key_twice(self, delays: list[int]) -> None:
        leases, running = self.model.leases, self.model.lines.running
        good = [(name, one) for name, one in self.claims if leases.get(one.id) == (one.token, name)]
        keyed = [(name, one) for name, one in good if one.id in running]
        alike = [two for two in keyed if running[two[1].id] == running[keyed[0][1].id]]
        for (worker, one), delay in zip(alike, delays, strict=False):
            later = SnoozeLater(codec.decode(one.record), delay, "later", key=True)
            self.run(self.store.snooze_message(TOPIC, worker, [(one, later)]))

    @precondition(lambda self: self.claims)
    @rule(
        positions=st.lists(recent, min_size=1, max_size=4),
        what=st.sampled_from(["complete", "retry", "retry", "release", "extend"]),
        delay=st.sampled_from([0, 500]),
        fault=faults,
    )
    def settle(self, positions: list[int], what: str, delay: int, fault: str) -> None:
        picked = [self._pick(position) for position in positions]
        held = [one for _, one in picked]
        self.play(fault, self._settle(picked[0][0], held, what, delay))

    @precondition(lambda self: self.claims)
    @rule(position=recent, fault=faults)
    def release_replaced(self, position: int, fault: str) -> None:
        marked = [(name, one) for name, one in self.claims if one.id in self.model.marks]
        worker, one = marked[-1 - position % len(marked)] if marked else self._pick(position)
        self.play(fault, self.store.release_replaced(TOPIC, worker, one))

    @precondition(lambda self: self.claims)
    @rule(worker=workers, what=st.sampled_from(["release", "complete"]), fault=faults)
    def settle_all(self, worker: str, what: str, fault: str) -> None:
        if held := [one for name, one in self.claims if name == worker][-20:]:
            self.play(fault, self._settle(worker, held, what))

    @precondition(lambda self: self.claims)
    @rule(
        positions=st.lists(recent, min_size=1, max_size=3),
        size=st.sampled_from([1, 200, 400]),
        fault=faults,
    )
    def keep(self, positions: list[int], size: int, fault: str) -> None:
        picked = [self._pick(position) for position in positions]
        results = [(one, kept(b"1" * size, RESULT_TTL)) for _, one in picked]
        worker = picked[0][0]
        work = self.store.complete_with_result(
            TOPIC, worker, results[: 1 + (size == 1)], ttl=RESULT_TTL
        )
        self.play(fault, work)
        for id in {one.id for _, one in picked}:
            (found,) = self.run(self.store.read_status(TOPIC, [id]))
            assert (found is not None) == self.model.knows(id, self.clock.now - RESULT_TTL)

    @precondition(lambda self: self.claims)
    @rule(position=recent, share=st.sampled_from(["0", "0.5"]), fault=faults)
    def progress(self, position: int, share: str, fault: str) -> None:
        worker, one = self._pick(position)
        reports = [(one, share.encode())]
        self.play(fault, self.store.note_progress(TOPIC, worker, reports, keep=RECEIPT_MS))
        keys = self.store.keys.of(TOPIC)
        for id, words in self.model.progress.items():
            assert self.run(self.raw.get(keys.progress(id))) == words.encode()

    # steps and signals

    @precondition(lambda self: self.claims)
    @rule(positions=st.lists(recent, min_size=1, max_size=3), value=counts, fault=faults)
    def note(self, positions: list[int], value: int, fault: str) -> None:
        picked = [self._pick(position) for position in positions]
        done = steps.Steps(done={"step": msgspec.Raw(b"%d" % value)})
        notes = [(one, steps.write(codec.decode(one.record), done), "step") for _, one in picked]
        self.play(fault, self.store.note_record(TOPIC, picked[0][0], notes))

    @precondition(lambda self: self.claims)
    @rule(
        positions=st.lists(recent, min_size=1, max_size=3),
        awaits=st.lists(names, min_size=1, max_size=3),
        delay=st.sampled_from([None, None, 0, 500]),
        fault=faults,
    )
    def park(self, positions: list[int], awaits: list[str], delay: int | None, fault: str) -> None:
        picked = [self._pick(position) for position in positions]
        parked = [
            (one, Park(codec.decode(one.record), (*awaits,), delay, "signals")) for _, one in picked
        ]
        self.play(fault, self.store.park_message(TOPIC, picked[0][0], parked))

    @precondition(lambda self: self.ids)
    @rule(
        waiting=st.booleans(),
        positions=st.lists(recent, min_size=1, max_size=3),
        names=st.lists(names, min_size=1, max_size=2),
        value=st.sampled_from(["", "1", "a\tb\nc"]),
        wake=st.sampled_from([False, False, False, True]),
        fault=faults,
    )
    def signal(
        self,
        waiting: bool,
        positions: list[int],
        names: list[str],
        value: str,
        wake: bool,
        fault: str,
    ) -> None:
        known = [*self.model.waits.since] if waiting and self.model.waits.since else self.ids
        ids = [known[-1 - position % len(known)] for position in positions]
        signals = [Signal(id, name, value.encode(), wake) for id in ids for name in names]
        self.play(fault, self.store.signal_message(TOPIC, signals))
        for id in ids:
            found = self.run(self.store.signals_of(TOPIC, id))
            assert {name: _text(one) for name, one in found.items()} == self.model.waits.signals_of(
                id
            )

    @precondition(lambda self: any(self.model.pending.values()))
    @rule(
        early=st.booleans(),
        awaits=st.lists(names, min_size=1, max_size=2),
        delay=st.sampled_from([None, 500]),
        then=st.sampled_from(["signal", "cancel", "abort", "reschedule", "expire", "time", "die"]),
    )
    def wait_for_signals(
        self, early: bool, awaits: list[str], delay: int | None, then: str
    ) -> None:
        """Park a message, and end its wait in each way."""
        self.dispatch("w1", 1, 1000, "none", alone=False)
        if early and self.model.leases:
            signal = Signal([*self.model.leases][-1], "x", b"1")
            self.run(self.store.signal_message(TOPIC, [signal]))
        if self.claims:
            self.park([0], awaits, delay, "none")
        waiting = [*self.model.waits.since]
        if not waiting:
            return
        id = waiting[-1]
        if then == "signal":
            self.signal(True, [0], awaits, "1", False, "none")
        elif then == "cancel":
            self.run(self.store.cancel_message(TOPIC, id))
        elif then in ("abort", "reschedule"):
            message = codec.decode(seen := self.model.records[id])
            change = getattr(self.store, f"{then}_message")
            later = {"delay": 500} if then == "reschedule" else {}
            self.run(change(TOPIC, message=message, seen=seen, **later))
        elif then == "expire":
            self.run(self.store.set_expiry(TOPIC, [(id, self.clock.now)]))
            self.expire(4, "dlq", 1, "none")
        elif then == "time":
            self.clock.advance(500)
            self.promote(4, "none")
        else:
            self.signal(True, [0], ["x"], "1", True, "none")
            self.promote(4, "none")
            self.dispatch_in_turn("w1", 4, "", 1000, "none", alone=False)
            if self.claims:
                self.archive([0], parse=False, fault="none")

    def _pick(self, position: int) -> tuple[str, Leased]:
        """Return a lease: every other time a valid one, if there is any."""
        leases = self.model.leases
        good = [(name, one) for name, one in self.claims if leases.get(one.id) == (one.token, name)]
        chosen = good if good and position % 2 == 0 else self.claims
        return chosen[-1 - position % len(chosen)]

    async def _settle(self, worker: str, held: Sequence[Leased], what: str, delay: int = 0) -> Any:
        claims = list(held)
        if what == "complete":
            return await self.store.complete_message(TOPIC, worker, claims)
        if what == "extend":
            return await self.store.extend_lease(TOPIC, worker, claims, lease=10_000)
        messages = [codec.decode(one.record) for one in held]
        if what == "release":
            handed_back = [
                HandedBack(claim, message.priority, message.expires_at)
                for claim, message in zip(claims, messages, strict=True)
            ]
            return await self.store.release_message(TOPIC, worker, handed_back)
        retries = [
            RetryRequest(claim, message.failed(FAILURE), delay)
            for claim, message in zip(claims, messages, strict=True)
        ]
        return await self.store.retry_message(TOPIC, worker, retries)

    async def _release_replaced(
        self, worker: str, held: Sequence[Leased], settled: list[Settled]
    ) -> list[Settled]:
        """Release messages that were replaced; return all answers."""
        return [
            await self.store.release_replaced(TOPIC, worker, one)
            if answer is Settled.REPLACED
            else answer
            for one, answer in zip(held, settled, strict=True)
        ]

    @precondition(lambda self: any(id in self.model.leases for id in CUSTOM))
    @rule(parse=st.booleans())
    def archive_a_custom_id(self, parse: bool) -> None:
        for worker, one in self.claims:
            if one.id in CUSTOM:
                self.run(self._archive(worker, one, parse=parse))

    @precondition(lambda self: self.claims)
    @rule(positions=st.lists(recent, min_size=1, max_size=3), parse=st.booleans(), fault=faults)
    def archive(self, positions: list[int], parse: bool, fault: str) -> None:
        for position in positions:
            worker, one = self._pick(position)
            self.play(fault, self._archive(worker, one, parse=parse))

    async def _archive(self, worker: str, one: Leased, *, parse: bool) -> Settled:
        if parse:
            error = QuarantineReason.of(
                id=one.id, topic=TOPIC, error=ValueError("bad\n"), data=one.record
            )
            return await self.store.handle_parse_error(TOPIC, worker, one, error)
        message = codec.decode(one.record).failed(FAILURE)
        return await self.store.move_to_dlq(TOPIC, worker, one, message)

    def _guess_tokens(self) -> None:
        for worker, one in self.claims[-3:]:
            guesses = [Claim(one.id, one.token + 1), Claim(one.id, one.token - 1), Claim("none", 1)]
            own = Claim(one.id, one.token)
            for name, claims in ((worker, guesses), ("w3", [*guesses, own])):
                self.run(self.store.complete_message(TOPIC, name, claims))
                self.run(self.store.extend_lease(TOPIC, name, claims, lease=10_000))

    # monitor and scheduler

    @precondition(lambda self: self.model.leases)
    @rule(
        count=counts,
        then=st.sampled_from(["retry", "dlq", "crash"]),
        off=st.sampled_from([None, 0, 0, -6_000, 6_000]),
        far=st.sampled_from([None, None, 2_000]),
        grace=st.sampled_from([0, 0, 3_000]),
        fault=faults,
    )
    def monitor(
        self, count: int, then: str, off: int | None, far: int | None, grace: int, fault: str
    ) -> None:
        work = self.store.handle_timeout_message(
            TOPIC,
            "monitor",
            count=count,
            recovery=5000,
            expected=None if off is None else self.clock.now + off,
            jump=5_000,
            far=far,
            grace=grace,
        )
        taken = self.play(fault, work)
        if not taken or not taken.messages:
            return
        self.claims += [("monitor", one) for one in taken.messages]
        if then == "retry":
            self.run(self._settle("monitor", taken.messages, "retry", 0))
        elif then == "dlq":
            for one in taken.messages:
                self.run(self._archive("monitor", one, parse=False))

    @precondition(lambda self: self.model.expiries)
    @rule(
        count=counts,
        then=st.sampled_from(["dlq", "retry", "crash"]),
        later=st.sampled_from([0, 1, 400]),
        fault=faults,
    )
    def expire(self, count: int, then: str, later: int, fault: str) -> None:
        self.clock.advance(later)
        work = self.store.expire_message(TOPIC, "monitor", count=count, recovery=5000)
        taken = self.play(fault, work)
        if not taken or not taken.messages:
            return
        self.claims += [("monitor", one) for one in taken.messages]
        if then == "retry":
            self.run(self._settle("monitor", taken.messages, "retry", 0))
        elif then == "dlq":
            for one in taken.messages:
                self.run(self._archive("monitor", one, parse=False))

    @precondition(lambda self: self.model.records)
    @rule(positions=st.lists(st.integers(0, 9), min_size=1, max_size=3), fault=faults)
    def set_expiry(self, positions: list[int], fault: str) -> None:
        known = sorted(self.model.records)
        some = dict.fromkeys(known[position % len(known)] for position in positions)
        times = [(id, self.clock.now + 400) for id in [*some, "gone"]]
        self.play(fault, self.store.set_expiry(TOPIC, times))

    @precondition(lambda self: any(self.model.delayed.values()))
    @rule(count=counts, fault=faults)
    def promote(self, count: int, fault: str) -> None:
        self.run(self.store.get_next_delay_task(TOPIC))
        self.play(fault, self.store.process_delay_message(TOPIC, count=count))

    # operators

    @precondition(lambda self: self.model.dead or self.model.quarantine)
    @rule(
        what=st.sampled_from(["requeue", "requeue", "discard"]),
        stale=st.booleans(),
        keep=st.booleans(),
        fault=faults,
    )
    def operate(self, what: str, stale: bool, keep: bool, fault: str) -> None:
        dead = bool(self.model.dead)
        state = State.DEAD if dead else State.QUARANTINED
        index = self.model.dead if dead else self.model.quarantine
        id, at = max(reversed(index.items()), key=lambda entry: entry[0] in CUSTOM)
        if what == "discard":
            work = self.store.discard_message(TOPIC, state, id, archived=at - stale)
        else:
            data = self.model.dead_letters[id] if dead else self.model.quarantined[id]
            message = codec.decode(data if dead else data.partition(b"\n")[2])
            message = message if keep else message.revived()
            work = self.store.requeue_message(
                TOPIC, state, id, archived=at - stale, message=message
            )
        self.play(fault, work)

    @precondition(lambda self: self.ids)
    @rule(position=recent, fault=faults)
    def cancel(self, position: int, fault: str) -> None:
        id = self.ids[-1 - position % len(self.ids)]
        self.play(fault, self.store.cancel_message(TOPIC, id))

    @precondition(lambda self: self.model.records)
    @rule(position=recent, stale=st.sampled_from([False, False, False, True]), fault=faults)
    def abort(self, position: int, stale: bool, fault: str) -> None:
        seen, message = self._seen(position)
        message = msgspec.structs.replace(message, reason="aborted: enough")
        work = self.store.abort_message(TOPIC, message=message, seen=seen + b" " * stale)
        self.play(fault, work)

    @precondition(lambda self: self.model.records)
    @rule(
        position=recent,
        stale=st.sampled_from([False, False, False, True]),
        delay=st.sampled_from([0, 0, 1, 500, 5000]),
        absolute=st.booleans(),
        fault=faults,
    )
    def reschedule(
        self, position: int, stale: bool, delay: int, absolute: bool, fault: str
    ) -> None:
        seen, message = self._seen(position)
        at = self.clock.now + delay - 1 if absolute else None
        work = self.store.reschedule_message(
            TOPIC, message=message, seen=seen + b" " * stale, delay=0 if absolute else delay, at=at
        )
        self.play(fault, work)

    def _seen(self, position: int) -> tuple[bytes, Message]:
        """Return the record of a live message, and its contents; of a replaced one, if possible."""
        ids = [*self.model.records]
        if position % 2 == 0 and self.model.marks:
            ids = [*self.model.marks]
        record = self.model.records[ids[-1 - position % len(ids)]]
        return record, codec.decode(record)

    # the world

    @rule(ms=st.sampled_from([1, 50, 500, 5000, 31_000, 130_000, 600_000]))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.sampled_from([3_000, 20_000]))
    def the_clock_is_set_back(self, ms: int) -> None:
        self.clock.advance(-ms)

    @precondition(lambda self: self.caller.late)
    @rule(position=recent)
    def a_dead_clients_call_arrives(self, position: int) -> None:
        self.run(self.caller.arrive(position, self.clock.now))

    @rule(
        what=st.sampled_from(
            ["restart", "flush", "doorbells", "ring", "trim", "pause", "resume", "guess"]
        )
    )
    def something_else_happens(self, what: str) -> None:
        if what == "guess":
            self._guess_tokens()
        elif what == "pause":
            self.play("resent", self.store.pause_topic(TOPIC))
        elif what == "resume":
            self.play("resent", self.store.resume_topic(TOPIC))
        elif what == "restart":
            self.store = self._store()
        elif what == "flush":
            self.run(self.raw.script_flush())
        elif what == "trim":
            self.run(self.store.trim_archive(TOPIC, State.DEAD))
            self.run(self.store.trim_archive(TOPIC, State.QUARANTINED))
            self.run(self.store.trim_archive(TOPIC, State.COMPLETED))
        else:  # the rings are lost, or a worker took them and gives back what it cannot use
            keys = self.store.keys.of(TOPIC)
            self.run(self.raw.delete(keys.doorbell, keys.doorbell_delay))
            self.model.rung = self.model.rung_delay = False
            if what == "ring":
                self.play("resent", self.store.ring_doorbell(TOPIC, "w1"))

    # after every step, and at the end

    @invariant()
    def the_server_holds_what_the_model_holds(self) -> None:
        assert self.run(self._look()) == self.model.snapshot()

    async def _look(self) -> Snapshot:
        return await snapshot(self.raw, TOPIC)

    @invariant()
    def every_line_in_which_something_waits_has_a_turn_or_is_blocked(self) -> None:
        lines = self.model.lines
        waiting = {lines.places[id].key for id in lines.waiting}
        assert lines.ring.keys() | lines.blocked.keys() - {""} == waiting
        assert lines.ring.keys() & lines.blocked.keys() == set()

    @invariant()
    def what_runs_is_leased_or_holds_its_line_back(self) -> None:
        model = self.model
        delayed = {id for level in model.delayed.values() for id in level}
        assert model.lines.running.keys() <= model.leases.keys() | delayed
        assert {id for id in model.at_work if model.lines.has_line(id)} <= {*model.lines.running}
        assert model.lines.places.keys() <= model.records.keys()

    @invariant()
    def what_waits_is_delayed_and_misses_a_signal(self) -> None:
        model, waits = self.model, self.model.waits
        delayed = {id for level in model.delayed.values() for id in level}
        assert waits.since.keys() <= delayed
        assert {id for id, _ in waits.missing} == waits.since.keys()
        assert not waits.missing & waits.came.keys()
        existing = model.records.keys() | model.dead.keys() | model.quarantine.keys()
        assert {id for id, _ in waits.came} <= existing

    @invariant()
    def the_bytes_of_the_archives_are_noted(self) -> None:
        key = self.store.keys.of(TOPIC).archive_bytes
        noted = self.run(self.raw.hmget(key, "dead", "quarantined", "completed"))
        held = (self.model.dead_letters, self.model.quarantined, self.model.results)
        assert [int(one or 0) for one in noted] == [
            sum(map(len, contents.values())) for contents in held
        ]

    @invariant()
    def the_survey_tells_what_comes_next(self) -> None:
        self.run(self.store.survey_topics([TOPIC]))

    @invariant()
    def the_audit_is_clean(self) -> None:
        self.steps += 1
        if self.steps % AUDITED == 0:
            assert self.run(self.store.audit.topic(TOPIC)) == []
            assert all(ms > RECEIPT_MS - MINUTE for ms in self.run(self._memory()))

    async def _memory(self) -> list[int]:
        """Return for how long receipts and custom ids are remembered, in ms."""
        topic = self.store.keys.of(TOPIC)
        keys = [*await self.raw.keys(topic.receipt("*")), *await self.raw.keys(topic.recent)]
        return [await self.raw.pttl(key) for key in keys]

    def teardown(self) -> None:
        try:
            self.run(self._drain())
        finally:
            self.names.stop()
            for one in self.shallow:
                one.stop()
            self.run(self.caller.servers.close())

    async def _drain(self) -> None:
        """Check that once faults stop, every live message can be ended."""
        await self.store.resume_topic(TOPIC)
        for key in list(self.model.lines.limits):
            await self.store.limit_key(
                TOPIC, key, running=None, interval=None, weight=None, pause=None
            )
        for _ in range(20 + 3 * self.model.live()):
            if not self.model.live():
                break
            self.clock.advance(31_000)
            wake = [Signal(id, "x", b"", wake=True) for id in self.model.waits.since]
            await self.store.signal_message(TOPIC, wake)
            await self.store.process_delay_message(TOPIC, count=100)
            timed_out = await self.store.handle_timeout_message(
                TOPIC, "monitor", count=100, recovery=5000
            )
            if timed_out.messages:
                settled = await self._settle("monitor", timed_out.messages, "retry")
                settled = await self._release_replaced("monitor", timed_out.messages, settled)
                assert all(settled), "a monitor may not settle what it took over"
            taken = await self.store.dispatch_in_turn(TOPIC, "w9", count=100, lease=1000)
            if taken.messages:
                settled = await self._settle("w9", taken.messages, "complete")
                assert all(settled), "a worker may not settle what it holds"
        counted = await self.store.views.counts(TOPIC)
        assert (counted.pending, counted.delayed, counted.processing) == (0, 0, 0)
        assert counted.waiting == 0
        assert await self.store.audit.topic(TOPIC) == []


def _call(script: Script, keys: Sequence[str], args: Sequence[Value]) -> Call:
    named: dict[str, Any] = {
        name: int(value) if name in _NUMBERS else _text(value)
        for name, value in zip(script.args, args, strict=False)
    }
    if "archive" in script.keys:
        named["archive"] = re.sub(r".*\}(@[^:]+)?:", "", keys[script.keys.index("archive")])
    lane = keys[script.keys.index("receipt")].rpartition(":")[2] if "receipt" in script.keys else ""
    rest = [_text(value) for value in args[len(script.args) :]]
    width = len(script.each) or 1
    items = [tuple(rest[start : start + width]) for start in range(0, len(rest), width)]
    return Call(script.name, lane, named, items)


_NUMBERS = {
    "grace_ms",
    "now_ms",
    "call",
    "dedup_ms",
    "max_pending",
    "tick_ms",
    "max_count",
    "lease_ms",
    "recovery_ms",
    "jump_ms",
    "spare",
    "walk",
    "window",
    "keep",
    "ttl_ms",
    "hexpire_s",
    "max_bytes",
    "budget",
}


def _text(value: Value) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _plain(reply: Any) -> Any:
    """Return a reply with its bytes as text, to compare."""
    if isinstance(reply, list):
        return [_plain(part) for part in reply]
    return _text(reply) if isinstance(reply, bytes) else reply
