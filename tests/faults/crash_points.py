"""Crash points: a process dies in every call of every part, and others finish its work.

A run is one or two lives that end at a point, each with its own messages, then an heir that drains
what is left. The journals of the processes and the contents of the server must then agree: every
message ends once, and every second run has a cause.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from redis.asyncio import Redis

from mx_rmq.admin import Admin
from mx_rmq.core import codec
from mx_rmq.core.errors import MessageDied, MxRmqError
from mx_rmq.core.message import State
from mx_rmq.core.outcome import Park
from mx_rmq.core.status import Kept
from mx_rmq.store.keys import Keys
from mx_rmq.store.lanes import maker_of
from mx_rmq.store.quarantine import QuarantineReason
from mx_rmq.store.script import load, names
from mx_rmq.store.store import Store
from mx_rmq.waiters import Waiters
from tests.faults.trial import Fault
from tests.lab.archives import list_archived
from tests.lab.injector import Journal, Line, Point, When
from tests.lab.messages import FAILURE, draft
from tests.lab.mortal import KINDS, Lives, Order, topic
from tests.lab.nodes import until_true
from tests.lab.ports import free_ports
from tests.lab.servers import Kind, Server, chosen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mx_rmq.store.results import Leased
    from tests.faults.trial import Trial

AT_ONCE: Final = 24
"""Runs at the same time: most of a run is waiting for a lease to end."""

PAIRS: Final = {1: 10, 3: 1000}
TRIES: Final = 24
RESULT_WITHIN: Final = 300.0
ANSWER_WITHIN: Final = 10.0
"""Seconds after the end in which each waiter must know its result."""
YEAR_2001: Final = 978_307_200_000

CALLS: Final = {
    "application": (
        ("opening", "preflight"),
        ("producer", "register_topics"),
        ("producer", "produce_normal_message"),
        ("producer", "produce_normal_message, confirmed"),
        ("producer", "produce_delay_message"),
        ("producer", "replace_message"),
    ),
    "operator": (
        ("operator", "pause_topic"),
        ("operator", "resume_topic"),
        ("operator", "requeue_message"),
        ("operator", "discard_message"),
        ("operator", "cancel_message"),
        ("operator", "abort_message"),
        ("operator", "reschedule_message"),
        ("operator", "repair_topic"),
        ("operator", "repair_message"),
        ("operator", "limit_key"),
        ("operator", "repair_lines"),
        ("operator", "register_topics"),
        ("operator", "list_schedule"),
        ("operator", "store_schedule"),
        ("operator", "pause_schedule"),
        ("operator", "resume_schedule"),
        ("operator", "remove_schedule"),
        ("operator", "signal_message"),
        ("operator", "repair_waits"),
        ("operator", "scan_signals"),
        ("operator", "remove_subscription"),
        ("operator", "count_messages"),
        ("operator", "scan_fields"),
        ("operator", "weigh_fields"),
    ),
    "worker": (
        ("registry", "register_topics"),
        ("registry", "declare_subscription"),
        ("registry", "beat_worker"),
        ("relay", "fan_out"),
        ("dispatcher", "dispatch_message"),
        ("dispatcher", "dispatch_in_turn"),
        ("lifecycle", "complete_message"),
        ("lifecycle", "complete_with_result"),
        ("lifecycle", "retry_message"),
        ("lifecycle", "move_to_dlq"),
        ("lifecycle", "handle_parse_error"),
        ("lifecycle", "release_message"),
        ("scheduler", "process_delay_message"),
        ("scheduler", "get_next_delay_task"),
        ("expirer", "undated_messages"),
        ("expirer", "set_expiry"),
        ("expirer", "expire_message"),
        ("expirer", "move_to_dlq"),
        ("expirer", "handle_parse_error"),
        ("expirer", "ring_doorbell"),
        ("monitor", "handle_timeout_message"),
        ("monitor", "retry_message"),
        ("monitor", "release_replaced"),
        ("monitor", "move_to_dlq"),
        ("monitor", "handle_parse_error"),
        ("monitor", "ring_doorbell"),
        ("monitor", "survey_topics"),
        ("keeper", "extend_lease"),
        ("progress", "note_progress"),
        ("registry", "note_record"),
        ("crons", "produce_cron_message, looking"),
        ("crons", "produce_cron_message"),
        ("schedules", "declare_crons"),
        ("janitor", "trim_archive"),
        ("caretaker", "tend_topics"),
        ("wakeups", "survey_topics"),
        ("shutdown", "ring_doorbell"),
        ("shutdown", "survey_topics"),
        ("shutdown", "forget_worker"),
        ("shutdown", "give_up_turn"),
    ),
    "blocked": (("keeper", "release_message"),),
}
"""Who calls what in each scene. Every call is taken at three points."""

ELSEWHERE: Final = {call for calls in CALLS.values() for call in calls} | {
    ("wakeups", "ring_doorbell"),  # a ring that arrived just as the last slot was taken
    ("registry", "extend_lease"),  # the event loop stands in for a lease keeper that is late
}
SCENE: Final = {call: scene for scene, calls in CALLS.items() for call in calls}

STANDS: Final = {
    State.PENDING: "pending",
    State.DELAYED: "delayed",
    State.WAITING: "waiting",
    State.PROCESSING: "in processing",
    State.DEAD: "dead",
    State.QUARANTINED: "quarantined",
    State.COMPLETED: "completed",
}

TARGETS: Final = {
    "produce_normal_message": "pending",
    "produce_normal_message, confirmed": "pending",
    "produce_delay_message": "delayed",
    "produce_cron_message": "pending",
    "replace_message": "pending",
    "release_replaced": "pending",
    "complete_message": "gone",
    "complete_with_result": "completed",
    "retry_message": "delayed",
    "release_message": "pending",
    "move_to_dlq": "dead",
    "handle_parse_error": "quarantined",
    "extend_lease": "in processing",
    "signal_message": "delayed",
    "handle_timeout_message": "in processing, taken over",
    "expire_message": "in processing, taken over",
    "process_delay_message": "pending",
    "fan_out": "gone",  # from the topic
    "trim_archive": "gone",
    "requeue_message": "pending",
    "discard_message": "gone",
    "cancel_message": "gone",
    "abort_message": "dead",
    "reschedule_message": "delayed",
    "pause_topic": "paused",
    "resume_topic": "not paused",
    "store_schedule": "stored",
    "remove_schedule": "not stored",
    "pause_schedule": "paused",
    "resume_schedule": "not paused",
    "beat_worker": "listed",
    "forget_worker": "not listed",
    "give_up_turn": "no turn",
}
"""The state of the messages of a call once the server has run it."""

DISPATCH: Final = ("dispatch_message", "dispatch_in_turn")

OR_ELSE: Final = {
    ("delayed", "waiting"),  # its handler waits for a signal
    ("delayed", "pending"),  # due by now: a promotion was under way when the process died
    ("in processing, taken over", "in processing"),  # the call was late, and refused for that
}

RING: Final = {
    "process_delay_message",
    "produce_cron_message",
    "release_message",
    "release_replaced",
}
"""The same worker may take what they make pending before their reply arrives."""


class Payload(msgspec.Struct):
    """What identifies a message, and what its handler does."""

    label: str
    act: str


@dataclass
class Lab:
    """The servers and processes that all runs of a trial share."""

    trial: Trial
    lives: Lives
    stores: list[Store]
    raws: list[Any]
    servers: list[Server]
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    outcomes: defaultdict[Point, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """What happened to the messages of a point, in words."""
    usual: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)
    """How often each call is made in a scene where no process dies."""


class Run:
    """One run: its messages, and how each must end."""

    def __init__(self, lab: Lab, points: Sequence[Point | str]) -> None:
        self._lab = lab
        self._trial = lab.trial
        self._points = points
        """Where each life ends; the name of a scene: it does not die."""
        self._number = next(lab.numbers)
        at = self._number % len(lab.servers)
        self._server, self._raw = lab.servers[at], lab.raws[at]
        shared = lab.stores[at]
        self._prefix = f"r{self._number}"
        keys = Keys(self._prefix)
        self._store = Store(shared.caller, keys, shared._found)
        self._aged = Store(shared.caller, keys, shared._found, clock=lambda: YEAR_2001)
        self._path: Path = lab.trial.directory / f"{self._prefix}.journal"
        self._path.touch()
        self._ends: dict[str, set[str]] = {}
        """By label: how a message may end."""
        self._labels: dict[str, str] = {}
        """By id."""
        self._subjects: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        """By script and topic: the messages of a call that names none."""
        self._waiters = Waiters(self._store)
        self._results: dict[str, asyncio.Task[Any]] = {}
        """By label: the tasks that wait for the result."""
        self._replaced: set[str] = set()
        """The ids of messages that were replaced while a worker held them: settling them does
        nothing but tell the worker."""
        self._dead: dict[int, str] = {}
        """The killed processes, and the names of their workers."""

    def __str__(self) -> str:
        return f"run {self._prefix} [{', then '.join(map(str, self._points))}]"

    async def take(self) -> bool:
        """Run it; return whether every life ended at its point."""
        reached = True
        stands: list[tuple[Point, Line, dict[str, str]]] = []
        for life, point in enumerate(self._points, 1):
            scene = point if isinstance(point, str) else SCENE[point[:2]]
            order = await self._seed(scene, life)
            order.doom = None if isinstance(point, str) else point
            pid, code = await self._lab.lives.live(order)
            if code == -9 and isinstance(point, Point):
                self._dead[pid] = order.worker
                death = self._lines()[-1]
                if death.what != "death":  # another of its threads wrote one more line
                    death = next(line for line in self._lines()[::-1] if line.what == "death")
                stood = await self._look(death, order)
                self._check_stood(death, stood)
                stands.append((point, death, stood))
            elif code != 0:
                self.violated(f"life {life} ended with {code}: {self._said()}")
            elif isinstance(point, Point):
                reached = False
            else:
                self._lab.usual[point] = self._calls(pid)
            self._check_calls(pid)
        heir = self._order("heir", len(self._points), "heir")
        _, code = await asyncio.wait_for(self._lab.lives.live(heir), 120)
        if code != 0:
            self.violated(f"the heir ended with {code}: {self._said()}")
        ends = await self._judge()
        await self._judge_results(ends)
        if reached:
            for point, death, stood in stands:
                self._tell(point, death, stood, ends)
        return reached

    # before

    def _order(self, scene: str, life: int, worker: str, **fields: Any) -> Order:
        return Order(
            url=self._server.url,
            prefix=self._prefix,
            journal=str(self._path),
            scene=scene,
            worker=worker,
            life=life,
            confirm=True,
            **fields,
        )

    async def _seed(self, scene: str, life: int) -> Order:
        """Make the messages that a life works on."""
        order = self._order(scene, life, f"w{life}")
        await self._store.register_topics({topic(kind, life): 1 for kind in KINDS})
        if scene == "worker":
            order.wait_for = await self._seed_worker(life)
        elif scene == "blocked":
            await self._make("work", life, "block", act="block")
            for name in ("behind1", "behind2"):
                order.wait_for.append(await self._make("work", life, name))
        elif scene == "operator":
            order.targets = await self._seed_operator(life)
        return order

    async def _seed_worker(self, life: int) -> list[str]:
        await self._age(life)
        lost = [
            await self._make("work", life, "lost"),
            await self._make("work", life, "lost-garbage", ends="quarantined"),
            await self._make("fragile", life, "lost-dead", ends="dead"),
        ]
        replaced = await self._make("work", life, "lost-replaced", id=f"{life}.replaced")
        self._replaced.add(replaced)
        lost_line = await self._make("line", life, "lost-line")
        held = {"work": [*lost[:2], replaced], "fragile": lost[2:], "line": [lost_line]}
        for kind, ids in held.items():
            self._subjects["handle_timeout_message", topic(kind, life)] = ids
        await self._spoil("work", life, lost[1])
        for kind, ids in held.items():
            name = topic(kind, life)
            taken = await self._store.dispatch_message(name, "gone", count=len(ids), lease=1)
            assert len(taken.messages) == len(ids)
        newer = msgspec.to_builtins(Payload(f"{life}.lost-replaced", "ok"))
        await self._store.replace_message(topic("work", life), draft(newer, id=replaced))
        settled = [
            *lost,
            replaced,
            await self._make("work", life, "ok"),
            await self._make("work", life, "own", id=f"{life}.own"),
            await self._make("work", life, "once", act="once"),
            await self._make("work", life, "steps", act="steps"),
            await self._await_result(life),
            await self._make("work", life, "fail", act="fail", ends="dead"),
            await self._make("work", life, "late", delay=1),
            await self._make("work", life, "garbage", ends="quarantined"),
        ]
        self._subjects["process_delay_message", topic("work", life)] = [settled[-2]]
        await self._spoil("work", life, settled[-1])
        expired = [
            await self._make("work", life, "expired", ends="dead", ttl=1, delay=600_000),
            await self._make(
                "work", life, "expired-garbage", ends="quarantined", ttl=1, delay=600_000
            ),
        ]
        self._subjects["expire_message", topic("work", life)] = expired
        await self._spoil("work", life, expired[1])
        brief = await self._make("brief", life, "brief", ends="dead", delay=600_000)
        self._subjects["expire_message", topic("brief", life)] = [brief]
        self._subjects["set_expiry", topic("brief", life)] = [brief]
        await self._make("work", life, "hang", act="hang")
        await self._make("line", life, "hang-line", act="hang")
        in_line = [
            await self._make("keyed", life, "in line", act="once", key="k"),
            await self._make("keyed", life, "behind it", key="k"),
        ]
        shared = await self._make("shared", life, "shared")
        self._subjects["fan_out", topic("shared", life)] = [shared]
        tick = topic("tick", life)
        await self._raw.hset(self._store.keys.of(tick).meta, "tick", str(YEAR_2001))
        self._ends[f"{tick} "] = {"handled"}
        return [*settled, *expired, brief, *in_line, shared]

    async def _await_result(self, life: int) -> str:
        """Make a message with a result, and start waiting for it."""
        id = await self._make("kept", life, "kept", act="say")
        wait = self._waiters.result(topic("kept", life), id, timeout=RESULT_WITHIN, type=str)
        self._results[f"{life}.kept"] = asyncio.create_task(wait)
        return id

    async def _seed_operator(self, life: int) -> dict[str, str]:
        found = {}
        for name in ("requeue dead", "discard dead", "requeue all"):
            found[name] = await self._bury(life, name)
        for name in ("requeue quarantined", "discard quarantined", "discard all"):
            found[name] = await self._set_aside(life, name)
        found["signal"] = await self._parked(life)
        held = await self._make("ops", life, "abort held")
        await self._store.dispatch_message(topic("ops", life), "w", count=1, lease=1)
        found["abort held"] = held
        found["abort pending"] = await self._make("ops", life, "abort pending")
        found["abort delayed"] = await self._make("ops", life, "abort delayed", delay=600)
        found["reschedule"] = await self._make("ops", life, "reschedule")
        found["cancel pending"] = await self._make("ops", life, "cancel pending", ends="handled")
        found["cancel delayed"] = await self._make("ops", life, "cancel delayed", delay=600)
        return found

    async def _make(
        self,
        kind: str,
        life: int,
        name: str,
        *,
        act: str = "ok",
        ends: str = "handled",
        store: Store | None = None,
        **fields: Any,
    ) -> str:
        store = store or self._store
        label = f"{life}.{name}"
        one = draft(msgspec.to_builtins(Payload(label, act)), **fields)
        call = store.produce_delay_message if one.delay else store.produce_normal_message
        ((id, _),) = await call(topic(kind, life), [one])
        self._labels[id] = label
        self._ends[label] = {ends}
        return id

    async def _parked(self, life: int) -> str:
        """Make a message wait for an approval."""
        await self._make("ops", life, "signal", act="approve", id=f"{life}.signal")
        taken = await self._store.dispatch_message(topic("ops", life), "w", count=1, lease=60_000)
        (one,) = taken.messages
        park = Park(codec.decode(one.record), ("approval",), None, "approval")
        assert await self._store.park_message(topic("ops", life), "w", [(one, park)]) == ["1"]
        return one.id

    async def _spoil(self, kind: str, life: int, id: str) -> None:
        """Overwrite a record with nonsense."""
        key = self._store.keys.of(topic(kind, life)).payload
        await self._raw.hset(key, id, b"\x00 no record")

    async def _taken(self, kind: str, life: int, name: str, ends: str, store: Store) -> Leased:
        await self._make(kind, life, name, ends=ends, store=store)
        taken = await store.dispatch_message(topic(kind, life), "w", count=1, lease=60_000)
        return taken.messages[0]

    async def _bury(self, life: int, name: str) -> str:
        one = await self._taken("ops", life, name, "dead", self._store)
        failed = codec.decode(one.record).failed(FAILURE)
        assert await self._store.move_to_dlq(topic("ops", life), "w", one, failed)
        return one.id

    async def _set_aside(self, life: int, name: str) -> str:
        one = await self._taken("ops", life, name, "quarantined", self._store)
        name = topic("ops", life)
        why = QuarantineReason.of(id=one.id, topic=name, error=ValueError("no"), data=one.record)
        assert await self._store.handle_parse_error(name, "w", one, why)
        return one.id

    async def _age(self, life: int) -> None:
        """Leave a dead letter that is older than allowed."""
        name = topic("work", life)
        one = await self._taken("work", life, "aged", "dropped by age", self._aged)
        failed = codec.decode(one.record).failed(FAILURE)
        assert await self._aged.move_to_dlq(name, "w", one, failed)
        self._subjects["trim_archive", name] = [one.id]

    # between

    def _lines(self) -> list[Line]:
        return Journal.read(self._path)

    def _calls(self, pid: int) -> Counter[tuple[str, str]]:
        lines = [line for line in self._lines() if line.pid == pid and line.what == "call"]
        return Counter((line.component, line.script) for line in lines)

    def _check_calls(self, pid: int) -> None:
        for call in self._calls(pid).keys() - ELSEWHERE:
            self.violated(f"a call without a crash point: {' × '.join(call)}")

    async def _look(self, death: Line, order: Order) -> dict[str, str]:
        """Return the states of the messages of the call in which a process died."""
        known = [id for id in death.ids if id in self._labels or maker_of(id) or _is_ours(id)]
        stood = {}
        absent = "not stored" if death.script.startswith("produce") else "gone"
        for id in known or self._subjects[death.script, death.topic]:
            found = await self._store.views.pages.find(death.topic, id)
            stood[id] = STANDS[found.state] if found else absent
        if death.script in (*DISPATCH, "handle_timeout_message", "expire_message"):
            leases = await self._raw.hgetall(self._store.keys.of(death.topic).processing)
            for id, lease in leases.items():
                if lease.partition(b":")[2].partition(b" ")[0].decode() == order.worker:
                    if id.decode() in stood:
                        stood[id.decode()] += ", taken over"
                    elif death.script in DISPATCH:
                        stood[id.decode()] = STANDS[State.PROCESSING]
        if death.script in ("pause_topic", "resume_topic"):
            counts = await self._store.views.counts(death.topic)
            stood[""] = "paused" if counts.paused else "not paused"
        if death.script in ("store_schedule", "remove_schedule"):
            schedules = (await self._store.read_schedules()).schedules
            stood[""] = "stored" if topic("s", order.life) in schedules else "not stored"
        if death.script in ("pause_schedule", "resume_schedule"):
            stored = (await self._store.read_schedules()).schedules[topic("s", order.life)]
            stood[""] = "paused" if stored.pause else "not paused"
        if death.script in ("beat_worker", "forget_worker"):
            listed = await self._raw.hexists(self._store.keys.workers, order.worker)
            stood[""] = "listed" if listed else "not listed"
        if death.script == "give_up_turn":
            has_turn = await self._raw.exists(self._store.keys.caretaker)
            stood[""] = "a turn" if has_turn else "no turn"
        return stood

    def _check_stood(self, death: Line, stood: dict[str, str]) -> None:
        """Check that a call that ran took effect, and that one that was not sent did not."""
        target = TARGETS.get(death.script)
        if target is None or len(self._points) > 1:
            return
        if death.nth > 1 and not stood.keys() & set(death.ids):  # it finds the first one's effect
            return
        if not stood:
            self.violated(f"{death.script} had no messages: {death.ids}")
        for id, stand in stood.items():
            moves = death.script != "extend_lease"
            if id in self._replaced and death.script == "retry_message":
                moves = False
            if death.detail == When.BEFORE:
                right = stand != target
            else:
                right = stand == target or (target, stand) in OR_ELSE
                right = right or (death.script in RING and stand == STANDS[State.PROCESSING])
            if moves and not right:
                self.violated(f"{self._labels.get(id, id)} is {stand} if {death.detail}")

    # after

    async def _judge(self) -> dict[str, str]:
        """Check the run; return how each message ended, by label."""
        lines = self._lines()
        for line in lines:
            if line.what in ("start", "done") and line.label and line.id:
                known = self._labels.setdefault(line.id, line.label)
                if known != line.label and not line.label.startswith("tick"):
                    self.violated(f"{line.id} is {known} and {line.label}")
        self._allow(lines)
        archived = await self._archived()
        ends = self._find_ends(lines, archived)
        self._check_once(lines)
        self._check_runs(lines)
        for life in range(1, len(self._points) + 1):
            for name in _topics(life):
                counts = await self._store.views.counts(name)
                if counts.pending or counts.delayed or counts.waiting or counts.processing:
                    self.violated(f"{name} is not empty: {counts}")
            await self._store.drop_schedule(topic("s", life))  # wherever its operator died
        if left := (await self._store.read_schedules()).schedules:
            self.violated(f"schedules are left: {left}")
        for name in await Admin(self._store).topics():
            for violation in await self._store.audit.topic(name):
                self.violated(f"audit: {violation}")
        return ends

    async def _judge_results(self, ends: dict[str, str]) -> None:
        """Check that a message has a result if and only if it completed, and its waiter has it."""
        for life in range(1, len(self._points) + 1):
            name = topic("kept", life)
            for one in await list_archived(self._store, name, State.COMPLETED):
                label = self._labels.get(one.id, one.id)
                if ends.get(label) != "handled" or Kept.read(one.data)[1] != f'"{label}"'.encode():
                    self.violated(f"{label} is {ends.get(label)} and has a result: {one.data!r}")
        for label, result in self._results.items():
            try:
                if await asyncio.wait_for(result, ANSWER_WITHIN) != label:
                    self.violated(f"the waiter for {label} was told {result.result()}")
            except MessageDied:
                if ends[label] != "dead":
                    self.violated(f"the waiter for {label} was told that it is dead")
            except (MxRmqError, TimeoutError) as error:
                self.violated(f"the waiter for {label}: {type(error).__name__}: {error}")
            self._trial.count("results")
        await self._waiters.close()

    def _allow(self, lines: list[Line]) -> None:
        """Widen or narrow how messages may end, by what was tried and what succeeded."""
        done = {(line.detail, line.label or line.id) for line in lines if line.what == "done"}
        for line in lines:
            if line.what != "tried":
                continue
            label = line.label or self._labels[line.id]
            surely = (line.detail, line.label or line.id) in done
            if line.detail == "produce":
                self._ends[label] = {"handled"} if surely else {"handled", "never stored"}
                continue
            after = {
                "requeue": "handled",
                "discard": "discarded",
                "cancel": "cancelled",
                "abort": "dead",
                "reschedule": "handled",
                "signal": "handled",
            }
            before = set() if surely else self._ends[label]
            self._ends[label] = {after[line.detail], *before}

    async def _archived(self) -> dict[str, str]:
        """Return which messages are archived, by label."""
        found: dict[str, str] = {}
        for life in range(1, len(self._points) + 1):
            for name in _topics(life):
                for state in (State.DEAD, State.QUARANTINED):
                    for one in await list_archived(self._store, name, state):
                        label = self._labels.get(one.id, one.id)
                        if label in found:
                            self.violated(f"{label} is archived twice")
                        found[label] = STANDS[state]
                        if state is State.DEAD:
                            self._allow_crashed(label, codec.decode(one.data).crashes)
        return found

    def _allow_crashed(self, label: str, crashes: int) -> None:
        """Allow a message to be dead if it lost as many workers as its handler allows."""
        if crashes >= 3:
            self._ends[label].add("dead")
            self._trial.count("dead after three crashes")

    def _find_ends(self, lines: list[Line], archived: dict[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        ended = {line.label for line in lines if line.what == "end"}
        tried = {self._labels.get(line.id): line.detail for line in lines if line.what == "tried"}
        for label in self._ends:
            if label.startswith("tick"):
                ticks = [one for one in ended if one.startswith(label)]
                found |= dict.fromkeys(ticks, "handled")
                end = "handled" if len(ticks) == 1 else f"missing: {len(ticks)} ticks"
            elif label in archived:
                end = archived[label]
            elif label in ended:
                end = "handled"
            elif label.endswith(".aged"):
                end = "dropped by age"
            else:
                gone = {"discard": "discarded", "cancel": "cancelled"}
                end = gone.get(tried.get(label, ""), "missing")
                if end == "missing" and "never stored" in self._ends[label]:
                    end = "never stored"
            if end not in self._ends[label]:
                wanted = " or ".join(sorted(self._ends[label]))
                self.violated(f"message {label} is {end}, not {wanted}")
                if end.startswith("missing"):
                    self._trial.count("lost")
            found[label] = end
            self._trial.count("messages")
        return found

    def _check_once(self, lines: list[Line]) -> None:
        """Check that no label is two messages, and none is completed twice."""
        ids: defaultdict[str, set[str]] = defaultdict(set)
        for line in lines:
            if line.what == "start":
                ids[line.label].add(line.id)
        for label, made in ids.items():
            if len(made) > 1 or (label not in self._ends and not label.startswith("tick")):
                self.violated(f"message {label} exists as {sorted(made)}")
                self._trial.count("duplicates created")
        completed = Counter(line.id for line in lines if line.what == "Completed")
        for id, times in completed.items():
            if times > 1:
                self.violated(f"{self._labels[id]} was completed {times} times")

    def _check_runs(self, lines: list[Line]) -> None:
        """Check that every extra run has a cause, and that attempts are counted."""
        ends: dict[str, Line] = {}
        events: defaultdict[str, Counter[str]] = defaultdict(Counter)
        lost: set[tuple[str, str]] = set()
        for line in lines:
            if line.what == "start":
                self._check_run(line, ends.get(line.id), events[line.id], lost)
            if line.what in ("start", "end", "failed", "stopped", "suspended"):
                ends[line.id] = line
            if line.what == "TakenOver":
                lost.add((line.id, line.worker))
            events[line.id][line.what] += 1

    def _check_run(
        self, run: Line, last: Line | None, events: Counter[str], lost: set[tuple[str, str]]
    ) -> None:
        label = run.label
        most = 1 + events["failed"] + events["TakenOver"]
        if not 1 + events["Retried"] <= run.attempt <= most:
            self.violated(f"{label} ran as attempt {run.attempt}: {dict(events)}")
        if last is None:
            return
        if run.fence <= last.fence:
            self.violated(f"the fence of {label} went from {last.fence} to {run.fence}")
        if events["Completed"]:
            self.violated(f"{label} ran after its completion")
        if last.pid in self._dead:
            self._trial.count("extra runs: their worker died")
        elif last.what == "failed":
            self._trial.count("runs after a failure")
        elif last.what == "suspended":
            self._trial.count("runs after a sleep or a wait")
        elif last.what == "stopped":
            self._trial.count("runs after a release")
        elif (run.id, last.worker) in lost:
            self._trial.count("extra runs: a living worker lost its lease")
        else:
            self._trial.count("extra runs without a cause")
            self.violated(f"{label} ran again without a cause: {last}")

    def _tell(self, point: Point, death: Line, stood: dict[str, str], ends: dict[str, str]) -> None:
        """Note what happened to the messages of the call in which a process died."""
        lines = self._lines()
        at = lines.index(death)
        told: set[str] = set()
        for id, stand in stood.items():
            parts = [stand]
            if any(line.what == "TakenOver" and line.id == id for line in lines[at:]):
                parts.append("its lease ran out")
            if any(line.what == "start" and line.id == id for line in lines[at:]):
                before = any(line.what == "start" and line.id == id for line in lines[:at])
                parts.append("ran again" if before else "ran")
            label = self._labels.get(id, "")
            if label and ends.get(label, stand) != stand:
                parts.append(ends[label])
            told.add(", ".join(parts))
        words = "; ".join(sorted(told)) or "no message concerned"
        self._lab.outcomes[point._replace(nth=1)][words] += 1

    def _said(self) -> str:
        log = self._path.with_suffix(".log")
        return log.read_text()[-1500:] if log.exists() else ""

    def violated(self, what: str) -> None:
        """Note a violation."""
        self._trial.violated(f"{self}: {what}")


async def run(trial: Trial) -> None:
    """Run every point as often as the size says, then random pairs."""
    for name in ("lost", "duplicates created", "extra runs without a cause"):
        trial.count(name, 0)
    async with AsyncExitStack() as stack:
        lab = await _open(trial, stack)
        await _check_complete(trial, lab.raws)
        await _all(trial, [_once(lab, scene) for scene in CALLS])
        missing = [call for call, scene in SCENE.items() if not lab.usual[scene][call]]
        for component, script in missing:
            trial.violated(f"{component} never calls {script}: {SCENE[component, script]}")
        points = [
            Point(component, script, when)
            for component, script in SCENE
            for when in When
            if (component, script) not in missing
        ]
        single = [
            point._replace(nth=1 + turn % lab.usual[SCENE[point[:2]]][point[:2]])
            for turn in range(trial.size)
            for point in points
        ]
        pairs = [
            (trial.random.choice(points), trial.random.choice(points))
            for _ in range(PAIRS.get(trial.size, 100 * trial.size))
        ]
        trial.figures["points"] = len(points)
        await _all(trial, [_take(lab, (point,)) for point in single])
        await _all(trial, [_take(lab, pair) for pair in pairs], pairs=True)
    trial.tables["component × point"] = [
        ["component", "script", "dies", "runs", "what became of its messages"],
        *(_row(point, lab.outcomes[point]) for point in points),
    ]


async def _open(trial: Trial, stack: AsyncExitStack) -> Lab:
    kinds = chosen(Kind.VALKEY_9_1, Kind.REDIS_7_0)
    servers = []
    for kind, port in zip(kinds, free_ports(len(kinds)), strict=True):
        server = Server(kind, trial.directory / kind, port=port)
        servers.append(stack.enter_context(server))
        replica = Server(
            kind, trial.directory / f"{kind}-replica", "--replicaof", "127.0.0.1", str(port)
        )
        stack.enter_context(replica)
    raws = [await stack.enter_async_context(Redis.from_url(server.url)) for server in servers]
    for raw in raws:
        await until_true(partial(_has_replica, raw), "a replica")
    stores = [await stack.enter_async_context(await Store.open(server.url)) for server in servers]
    lives = await stack.enter_async_context(Lives())
    return Lab(trial, lives, stores, raws, servers)


async def _has_replica(raw: Any) -> bool:
    info = await raw.info("replication")
    return bool(info["connected_slaves"] and info["slave0"]["state"] == "online")


async def _check_complete(trial: Trial, raws: list[Any]) -> None:
    """Check that every script that changes something has crash points."""
    taken = {script for _, script in SCENE}
    for name in names():
        for command in load(name).commands:
            (about,) = (await raws[0].execute_command("COMMAND", "INFO", command)).values()
            if "write" in about["flags"] and name not in taken:
                trial.violated(f"the script {name} has no crash point")


async def _all(trial: Trial, runs: Iterable[Any], *, pairs: bool = False) -> None:
    """Do all runs, a limited number at a time."""
    free = asyncio.Semaphore(AT_ONCE)
    every = list(runs)
    over = 0

    async def one(run: Any) -> None:
        nonlocal over
        async with free:
            await run
        over += 1
        trial.say(f"{over} of {len(every)} {'pairs' if pairs else 'runs'}")

    async with asyncio.TaskGroup() as group:
        for run in every:
            group.create_task(one(run))


async def _once(lab: Lab, scene: str) -> None:
    await _run(Run(lab, [scene]))


async def _run(run: Run) -> bool:
    try:
        return await run.take()
    except Exception as error:  # noqa: BLE001 - any error is a violation
        run.violated(f"{type(error).__name__}: {error}")
        return True


async def _take(lab: Lab, points: Sequence[Point]) -> None:
    """Run a point or a pair of them, again if it was not reached."""
    for _ in range(TRIES):
        if await _run(Run(lab, points)):
            lab.trial.count("runs" if len(points) == 1 else "pairs")
            lab.trial.count("processes killed", len(points))
            return
        lab.trial.count("runs that missed their point")
        points = [point._replace(nth=1) for point in points]
    lab.trial.violated(f"never reached: {', then '.join(map(str, points))}")


def _topics(life: int) -> list[str]:
    shared = topic("shared", life)
    return [*(topic(kind, life) for kind in (*KINDS, "tick")), shared, f"{shared}@s"]


def _is_ours(id: str) -> bool:
    """Return whether an id was given by one of our applications, or is a tick's."""
    if id.startswith("cron-"):
        return id != "cron-0"
    life, dot, name = id.partition(".")
    return bool(dot and name) and life.isdigit() and not name.isdigit()


def _row(point: Point, outcomes: Counter[str]) -> list[str]:
    words = [
        f"{words} ({times}×)" if len(outcomes) > 1 else words
        for words, times in outcomes.most_common()
    ]
    runs = str(outcomes.total())
    return [point.component, point.script, str(point.when), runs, " / ".join(words)]


FAULT: Final = Fault(
    name="crash_points",
    title="a process dies in every call of every part, at three points; then others take over",
    run=run,
    unit="rounds of all points",
    short=1,
    full=3,
)
