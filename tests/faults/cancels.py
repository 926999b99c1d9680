"""Cancellations: a worker, a produce or an operator call is cancelled at any of its awaits.

A life is a real queue and worker behind a slow network. Its tasks are watched: whenever one is
suspended in an await, it may be cancelled there, at once or just as the reply arrives, preferably
at an await where none was cancelled before. Then a fresh worker must find everything within a
lease.

Some awaits happen only when connections are opened or calls fail. To reach those, the lab closes
connections or makes calls fail. `Worker.stop` does its work in a separate task, which its caller's
cancellation does not reach: while it runs, the lab cancels its caller, perhaps twice, or one of
the tasks that it waits for.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis

from mx_rmq import Delivery, MessageQueue, MxRmqError, Reject, Worker
from mx_rmq.core import events
from mx_rmq.core.message import State
from tests.faults.trial import Fault
from tests.lab.proxy import Fault as Network
from tests.lab.proxy import Order, Proxy
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import CodeType

    from tests.faults.trial import Trial

TOPIC: Final = "work"
FRAGILE: Final = "fragile"
"""Its messages die when they lose their worker once."""
LEASE: Final = 1.0
SLOW: Final = 0.003
"""Seconds by which replies are late."""
EACH: Final = 10
"""Cancellations in one life."""
SIDE_BY_SIDE: Final = 4
WITHIN: Final = 2.0
"""Seconds in which a task must reach an await; otherwise another one is chosen."""
IMPATIENT: Final = 0.2
"""Seconds for which a call is repeated while calls fail."""
DRAINED_WITHIN: Final = 30.0

AGAIN: Final = ("dispatch", "lifecycle", "consumer", "keeper", "produce", "produce_many", "admin")
"""Tasks that may be cancelled. The last three belong to an application."""
DUTIES: Final = (
    *(
        "monitor",
        "scheduler",
        "expirer",
        "survey",
        "doorbell listener",
        "janitor",
        "registry",
        "caretaker",
    ),
)
"""Loops: one that is cancelled is restarted by the watchdog."""
FIRST: Final = ("start", "open")
LAST: Final = ("stop", "close", "lifecycle", "dispatch", "consumer", "keeper")
"""The last four run while the worker stops."""
COLD: Final = 4
"""One in this many lives begins without open connections, so opening them is cancelled, too."""
MORE: Final = 40
"""At most this many extra lives, for awaits that were never cancelled."""
MISSED: Final = 0.1
"""The share of the awaits seen that a campaign may leave uncancelled."""
MUST: Final = (
    *(f"monitor, {what}" for what in ("handle_timeout_message", "retry_message", "move_to_dlq")),
    "monitor, handle_parse_error",
    *(f"lifecycle, {what}" for what in ("complete_message", "retry_message", "release_message")),
    *(f"lifecycle, {what}" for what in ("move_to_dlq", "handle_parse_error")),
)
"""Which task must have been cancelled during which call."""
CAST: Final = frozenset((*AGAIN[:4], *DUTIES))
CALLERS: Final = frozenset((*AGAIN[4:], *FIRST, *LAST[:2]))


class Watched(Coroutine[Any, Any, Any]):
    """A coroutine that reports each of its suspensions."""

    def __init__(self, inner: Coroutine[Any, Any, Any], life: Life) -> None:
        self._inner = inner
        self._life = life

    def send(self, value: Any) -> Any:
        return self._suspended(self._inner.send(value))

    def throw(self, *error: Any) -> Any:
        return self._suspended(self._inner.throw(*error))

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def _suspended(self, waits_for: Any) -> Any:
        task = asyncio.current_task()
        if task is not None:
            self._life.suspended(task, self._inner, waits_for)
        return waits_for


LIFE: Final[ContextVar[Life | None]] = ContextVar("life", default=None)


def watching(life: Life | None = None) -> Callable[..., asyncio.Task[Any]]:
    """Return a task factory that watches the tasks of a life."""

    def make(
        loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], context: Any = None
    ) -> asyncio.Task[Any]:
        whose = life or LIFE.get()
        if whose is None or not asyncio.iscoroutine(coro):
            return asyncio.Task(coro, loop=loop, context=context)
        return asyncio.Task(Watched(coro, whose), loop=loop, context=context)

    return make


@dataclass
class Wanted:
    """The next cancellation."""

    kind: str
    after: int
    """Suspensions to skip first, unless one is new."""
    answered: bool
    """Cancel when the reply has arrived, before it is read."""
    target: str = ""
    """The await to cancel, one that never was. '': any."""
    twice: bool = False
    """Cancel the same task once more, wherever it is by then."""
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def needs_failures(self) -> bool:
        """Whether a failed call waits there for its next try."""
        return "_insist:" in self.target or "Loop._run:9" in self.target

    @property
    def needs_opening(self) -> bool:
        """Whether a connection is opened there."""
        return "Wire.open" in self.target


class Await:
    """An await at which a watched task was seen, and how often one was cancelled there."""

    def __init__(self) -> None:
        self.times = {False: 0, True: 0}
        """At once, and when the reply had arrived."""

    @property
    def total(self) -> int:
        return sum(self.times.values())


Awaits = dict[str, Await]
"""By the task and what it waits for."""


@dataclass
class Message:
    """What is known of a message."""

    end: State | None = None
    """Where it must end; None: completed."""
    acknowledged: bool = False
    cancelled: bool | None = False
    """By an operator; None: maybe."""
    ids: set[str] = field(default_factory=set)
    fence: int = 0
    runs: int = 0
    failed: int = 0
    """As planned."""
    ended: bool = False
    completed: int = 0


class Life:
    """A queue, a worker, and the calls made with them."""

    def __init__(
        self, trial: Trial, server: Server, awaits: Awaits, number: int, plan: list[Wanted]
    ) -> None:
        self._trial = trial
        self._awaits = awaits
        self._server = server
        self._number = number
        self._name = f"life {number}"
        self._prefix = f"c{number}"
        self._plan = plan
        self._wanted: Wanted | None = None
        self._messages: dict[str, Message] = {}
        self._labels: dict[str, str] = {}
        self._own: list[dict[str, str]] = []
        """Messages produced with a custom id: the label."""
        self._numbers = iter(range(1_000_000))
        self._feeding = True
        self._impatient = any(wanted.needs_failures for wanted in plan)
        self._loop = asyncio.get_running_loop()

    # watching

    def suspended(self, task: asyncio.Task[Any], inner: Any, waits_for: Any) -> None:
        """Handle a task that waits for something."""
        kind = task.get_name().removeprefix("mx-rmq ")
        if kind not in (CALLERS if kind == task.get_name() else CAST):
            return
        seen = self._awaits.setdefault(f"{kind}: {_place(inner)}", Await())
        wanted = self._wanted
        again = wanted is not None and wanted.done.is_set()
        if wanted is None or wanted.kind != kind or (task.cancelling() and not again):
            return
        wanted.after -= 1
        answered = wanted.answered and waits_for is not None
        if seen.times[answered] and (wanted.target or wanted.after > 0):
            return
        if again or not wanted.twice:
            self._wanted = None
        seen.times[answered] += 1
        self._trial.count(f"cancelled: {kind}")
        if answered:
            waits_for.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()
        self._loop.call_soon_threadsafe(wanted.done.set)

    async def _cancel(self, wanted: Wanted, act: Callable[[], Awaitable[Any]] | None) -> None:
        """Cancel something; without an act, something that happens anyway."""
        self._wanted = wanted
        provoking = asyncio.create_task(self._provoke(wanted), name="provoke")
        struck = asyncio.create_task(wanted.done.wait(), name="struck")
        waited: list[asyncio.Task[Any]] = [struck]
        if act is not None:
            name = wanted.kind if wanted.kind in CALLERS else "act"
            doing = asyncio.create_task(_awaited(act), name=name)
            waited.append(doing)
        await asyncio.wait(waited, timeout=WITHIN, return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done.is_set():
            self._wanted = None
        struck.cancel()
        provoking.cancel()
        await asyncio.wait([provoking])
        if wanted.done.is_set():
            self._trial.count("cancellations")
        else:
            self._trial.count("chosen, but the task never reached such an await")
        if act is not None:
            await asyncio.wait([doing])
            if not doing.cancelled():
                with suppress(*([MxRmqError] if self._impatient else [])):
                    doing.result()
        self._wanted = None

    async def _provoke(self, wanted: Wanted) -> None:
        """Make the tasks reach awaits that are rare."""
        slow = self._proxy.choose
        try:
            if wanted.needs_failures:
                self._proxy.choose = lambda _: Order(Network.CUT_REQUEST)
            while wanted.needs_opening:
                for node in self._mq.store.caller.servers.nodes():
                    node.hang_up()
                await asyncio.sleep(0.1)
            await asyncio.sleep(WITHIN)
        finally:
            self._proxy.choose = slow

    # living

    async def live(self) -> None:
        """Live, get cancelled here and there, and leave the rest to others."""
        token = LIFE.set(self)
        path = self._trial.directory / f"{self._prefix}.sock"
        try:
            async with self._queue(self._server.url) as clean:
                await clean.store.register_topics({TOPIC: 1, FRAGILE: 1})
                await self._seed(clean)
                async with Proxy(self._server.socket, path) as proxy:
                    proxy.choose = lambda _: Order(Network.SLOW, late=(0.0, SLOW))
                    self._proxy = proxy
                    await self._live(proxy.url, clean)
        finally:
            LIFE.reset(token)
        await self._judge()

    async def _live(self, url: str, clean: MessageQueue) -> None:
        mq = self._mq = self._queue(url, patience=IMPATIENT if self._impatient else 10.0)
        worker = Worker(mq, concurrency=10, grace=0.2, name=f"{self._prefix}-cancelled")
        plan = iter(self._plan)
        first, duty = next(plan), next(plan)
        if first.kind == "open":
            await self._cancel(first, mq.open)
        while not mq.is_open:
            await self._despite_impatience(mq.open)
        if self._number % COLD:
            await self._check_connections(mq)
        if first.kind == "start":
            await self._cancel(first, worker.start)
        feeding = asyncio.create_task(self._feed(clean), name="feed")
        self._wanted = duty
        while worker._engine is None:
            await self._despite_impatience(worker.start)
        assert worker._engine is not None
        self._watch_keeper(worker._engine._lease_keeper)
        await self._cancel(duty, None)
        *rest, last = plan
        for wanted in rest:
            acts: dict[str, Callable[[], Awaitable[Any]]] = {
                "produce": lambda: self._produce(mq),
                "produce_many": lambda: self._produce_many(mq),
                "admin": lambda: self._operate(mq, clean),
            }
            await self._cancel(wanted, acts.get(wanted.kind))
            await self._check_connections(mq)
        self._feeding = False
        await feeding
        if self._own:
            await self._acknowledge(mq, self._own, ids=[one["label"] for one in self._own])
        await self._cancel(last, mq.close if last.kind == "close" else worker.stop)
        await worker.stop()
        if mq.is_open:
            await mq.close()

    async def _despite_impatience(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Call, and again if that fails: on a busy machine an impatient queue may."""
        with suppress(*([MxRmqError] if self._impatient else [])):
            await call()

    def _watch_keeper(self, keeper: Any) -> None:
        """Watch the lease keeper, whose tasks have their own loop."""
        loop = keeper._thread.loop
        loop.call_soon_threadsafe(loop.set_task_factory, watching(self))

    def _queue(self, url: str, patience: float = 10.0) -> MessageQueue:
        mq = MessageQueue(url, prefix=self._prefix, lease=LEASE, patience=patience)

        @mq.handler(TOPIC, retry=0.02, max_attempts=50)
        async def work(payload: dict[str, str], delivery: Delivery) -> None:
            label, act = payload["label"], payload["act"]
            self._labels[delivery.id] = label
            message = self._messages[label]
            message.ids.add(delivery.id)
            if delivery.fence <= message.fence:
                self.violated(f"the fence of {label} went backwards")
            if message.completed:
                self.violated(f"{label} ran after its completion")
            message.fence = delivery.fence
            message.runs += 1
            if act == "once" and message.runs == 1:
                message.failed += 1
                raise ValueError("as planned")
            if act == "reject":
                raise Reject("as planned")
            await asyncio.sleep({"long": 0.6, "short": 0.01}.get(act, 0))
            message.ended = True

        @mq.handler(FRAGILE, max_crashes=1)
        async def fragile(payload: dict[str, str]) -> None:
            self.violated(f"{payload} ran, though its worker was lost")

        def on_completed(event: Any) -> None:
            self._messages[self._labels[event.id]].completed += 1

        mq.events.subscribe(on_completed, events.Completed)
        return mq

    # what happens meanwhile

    def _new(self, act: str, *, own: bool = False, end: State | None = None) -> dict[str, str]:
        label = f"m{next(self._numbers)}"
        self._messages[label] = Message(end)
        payload = {"label": label, "act": act}
        if own:
            self._own.append(payload)
        return payload

    async def _seed(self, clean: MessageQueue) -> None:
        """Leave messages that another worker lost, and some that wait."""
        payloads = [self._new("ok") for _ in range(6)]
        await self._acknowledge(clean, payloads)
        gone = await clean.store.dispatch_message(TOPIC, "gone", count=3, lease=1)
        assert len(gone.messages) == 3
        lost = [self._new("", end=end) for end in (State.DEAD, State.QUARANTINED, State.DEAD)]
        await self._acknowledge(clean, lost, topic=FRAGILE)
        gone = await clean.store.dispatch_message(FRAGILE, "gone", count=3, lease=1)
        assert len(gone.messages) == 3
        async with Redis.from_url(self._server.url) as raw:  # so that no one can read it
            record = clean.store.keys.of(FRAGILE).payload
            await raw.hset(record, lost[1]["label"], "no record")
        await self._acknowledge(clean, [self._new("short") for _ in range(4)], delay=0.1)

    async def _feed(self, clean: MessageQueue) -> None:
        """Keep the workers busy."""
        acts = ("ok", "short", "once", "ok", "long")
        while self._feeding:
            await self._acknowledge(clean, [self._new(act) for act in acts])
            await self._acknowledge(clean, [self._new("reject", end=State.DEAD)])
            misfit: dict[str, Any] = self._new("", end=State.QUARANTINED)
            misfit["act"] = 0  # the handler's type refuses it
            await self._acknowledge(clean, [misfit])
            await asyncio.sleep(0.05)

    async def _acknowledge(
        self,
        mq: MessageQueue,
        payloads: list[dict[str, str]],
        *,
        topic: str = TOPIC,
        ids: list[str] | None = None,
        delay: float | None = None,
    ) -> None:
        if self._messages[payloads[0]["label"]].end is not None:
            ids = [payload["label"] for payload in payloads]  # used to find it at the end
        await mq.produce_many(topic, payloads, ids=ids, delay=delay)
        for payload in payloads:
            self._messages[payload["label"]].acknowledged = True

    async def _produce(self, mq: MessageQueue) -> None:
        """Produce; repeat what was cancelled with the same id, if it has one."""
        generated, own = self._new("ok"), self._new("ok", own=True)
        try:
            await mq.produce(TOPIC, generated)
            self._messages[generated["label"]].acknowledged = True
            await mq.produce(TOPIC, own, id=own["label"])
        except asyncio.CancelledError:
            await mq.produce(TOPIC, own, id=own["label"])
            raise
        finally:
            self._messages[own["label"]].acknowledged = True
        hasty = self._new("ok", own=True)
        produce = mq.produce(TOPIC, hasty, id=hasty["label"])
        try:
            await asyncio.wait_for(produce, SLOW / 2)
        except TimeoutError:
            self._trial.count("produces that ran out of time")
            await mq.produce(TOPIC, hasty, id=hasty["label"])
        self._messages[hasty["label"]].acknowledged = True

    async def _produce_many(self, mq: MessageQueue) -> None:
        payloads = [self._new("ok", own=True) for _ in range(5)]
        ids = [payload["label"] for payload in payloads]
        delay = 0.05 if len(self._messages) % 2 else None
        try:
            await mq.produce_many(TOPIC, payloads, ids=ids, delay=delay)
        except asyncio.CancelledError:
            await mq.produce_many(TOPIC, payloads, ids=ids, delay=delay)
            raise
        finally:
            for id in ids:
                self._messages[id].acknowledged = True

    async def _operate(self, mq: MessageQueue, clean: MessageQueue) -> None:
        unwanted = self._new("ok")
        message = self._messages[unwanted["label"]]
        await clean.produce(TOPIC, unwanted, id=unwanted["label"], delay=0.5)
        message.acknowledged = True
        message.cancelled = None
        message.cancelled = bool(await mq.admin.cancel(TOPIC, unwanted["label"]))
        await mq.admin.pause(TOPIC)
        try:
            await mq.admin.stats(TOPIC)
        finally:
            await mq.admin.resume(TOPIC)
        await mq.admin.list(TOPIC, "processing")

    async def _check_connections(self, mq: MessageQueue) -> None:
        """Check that every connection gives each caller its own reply."""

        async def ask() -> None:
            word = secrets.token_bytes(8)
            for node in mq.store.caller.servers.nodes():
                if await node.send(("ECHO", word), 30.0) != word:
                    self.violated("a caller got another's reply")
                    self._trial.count("replies to the wrong caller")

        await asyncio.gather(*(ask() for _ in range(8)))

    # afterwards

    async def _judge(self) -> None:
        async with self._queue(self._server.url) as mq:
            await mq.admin.resume(TOPIC)
            began = time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAINED_WITHIN):
                    await Worker(mq, name=f"{self._prefix}-fresh").drain(delayed=True)
            took = round(time.monotonic() - began, 2)
            left = 0
            for topic in (TOPIC, FRAGILE):
                stats = await mq.admin.stats(topic)
                left += stats.pending + stats.delayed + stats.processing
            slowest = self._trial.figures.get("longest until everything was done, s", 0.0)
            assert not isinstance(slowest, str)
            self._trial.figures["longest until everything was done, s"] = max(slowest, took)
            if left:
                self._trial.count("stranded after a lease", left)
                self.violated(f"not everything was found: {left} messages")
            archived: dict[str, State] = {}
            for topic in (TOPIC, FRAGILE):
                for violation in await mq.admin.audit(topic):
                    self.violated(f"audit: {violation}")
                for state in (State.DEAD, State.QUARANTINED):
                    page = await mq.admin.list(topic, state, limit=1_000)
                    if page.cursor is not None:
                        self.violated("more is archived than this lab can read")
                    archived.update((one.id, state) for one in page.messages)
        for label, message in self._messages.items():
            self._judge_one(label, message, archived.pop(label, None))
        for id, state in archived.items():
            self.violated(f"{id} is {state}, which was not planned")

    def _judge_one(self, label: str, message: Message, archived: State | None) -> None:
        self._trial.count("messages")
        if message.end is not None:
            self._trial.count(message.end)
        if archived is not None and archived is not message.end:
            self.violated(f"{label} is {archived}: {message}")
        self._trial.count("extra runs", max(0, message.runs - 1 - message.failed))
        if not message.acknowledged:
            self._trial.count("produces without a reply")
        if message.cancelled is True and message.runs:
            self.violated(f"{label} ran although it was cancelled")
        ended = message.ended if message.end is None else archived is not None
        if message.acknowledged and message.cancelled is False and not ended:
            self._trial.count("lost")
            self.violated(f"{label} is lost: {message}")
        if len(message.ids) > 1 or message.completed > 1:
            self._trial.count("duplicates created")
            self.violated(f"{label} was made twice: {message}")

    def violated(self, what: str) -> None:
        """Note a violation."""
        kinds = ", ".join(f"{one.kind}/{one.after}/{one.answered}" for one in self._plan)
        self._trial.violated(f"{self._name} ({kinds}): {what}")


def _place(inner: Any) -> str:
    """Name the await at which a coroutine waits: our innermost function, and the script."""
    names = []
    script = ""
    while inner is not None:
        code: CodeType | None = getattr(inner, "cr_code", None) or getattr(inner, "ag_code", None)
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "ag_frame", None)
        if code is not None and "mx_rmq" in code.co_filename and frame is not None:
            names.append(f"{code.co_qualname}:{frame.f_lineno - code.co_firstlineno}")
            if code.co_name == "_insist":
                script = f" ({frame.f_locals.get('what')})"
        inner = getattr(inner, "cr_await", None) or getattr(inner, "ag_await", None)
    return f"{names[-1] if names else 'itself'}{script}"


async def run(trial: Trial) -> None:
    """Run lives until there were as many cancellations as the size says."""
    for name in ("lost", "stranded after a lease", "duplicates created"):
        trial.count(name, 0)
    trial.count("replies to the wrong caller", 0)
    awaits: Awaits = {}
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    free = asyncio.Semaphore(SIDE_BY_SIDE)
    lives = 0

    async def live(number: int, server: Server, *, aims: bool) -> None:
        async with free:
            plan = _plan(trial, awaits, aims=aims)
            life = Life(trial, server, awaits, number, plan)
            try:
                await life.live()
            except Exception as error:  # noqa: BLE001 - any error is a violation
                life.violated(f"{type(error).__name__}: {error}")
        trial.say(f"{trial.figures.get('cancellations', 0)} of {trial.size} cancellations")

    async def live_all(count: int, *, aims: bool = False) -> None:
        nonlocal lives
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                server = redis if lives % 4 == 3 else valkey
                group.create_task(live(lives, server, aims=aims))
                lives += 1

    loop.set_task_factory(watching())
    try:
        with (
            Server(Kind.VALKEY_9_1, trial.directory / "v") as valkey,
            Server(Kind.REDIS_7_0, trial.directory / "r") as redis,
        ):
            while (left := trial.size - int(trial.figures.get("cancellations", 0))) > 0:
                await live_all(-(-left // EACH))
            most = lives + MORE if trial.size >= FAULT.full else 0
            while lives < most and not all(one.total for one in awaits.values()):
                await live_all(2 * SIDE_BY_SIDE, aims=True)
    finally:
        loop.set_task_factory(before)
    trial.figures["lives"] = lives
    _tell(trial, awaits)


def _tell(trial: Trial, awaits: Awaits) -> None:
    """Report where tasks were cancelled, and where they were seen but never cancelled."""
    places = sorted(awaits.items())
    missed = [place for place, one in places if not one.total]
    trial.figures["awaits seen"] = len(places)
    trial.figures["awaits cancelled"] = len(places) - len(missed)
    trial.tables["cancellations by place"] = [
        ["where", "at once", "as the reply arrived"],
        *([place, str(one.times[False]), str(one.times[True])] for place, one in places),
    ]
    if trial.size < FAULT.full:
        return
    hit = trial.figures["awaits cancelled"]
    trial.expect(len(missed) <= len(places) * MISSED, f"only {hit} awaits were cancelled: {missed}")
    for must in MUST:
        who, _, script = must.partition(", ")
        trial.expect(
            any(
                one.total
                for place, one in places
                if place.startswith(f"{who}: Wire.ask") and place.endswith(f"({script})")
            ),
            f"never cancelled: {who} in {script}",
        )


async def _awaited(act: Callable[[], Awaitable[Any]]) -> None:
    await act()


def _plan(trial: Trial, awaits: Awaits, *, aims: bool) -> list[Wanted]:
    """Plan the cancellations of one life. `aims`: awaits where none was cancelled yet."""
    plan = [_wanted(trial, awaits, kinds, aims=aims) for kinds in (FIRST, DUTIES, LAST)]
    again: tuple[str, ...] = AGAIN
    if any(wanted.needs_failures for wanted in plan) or trial.random.random() < 0.1:
        again = AGAIN[:4]  # an application's calls would fail, too
    middle = [_wanted(trial, awaits, again, aims=aims) for _ in range(EACH - 3)]
    if again is AGAIN:
        for wanted in middle:
            wanted.target = "" if wanted.needs_failures else wanted.target
    return [*plan[:2], *middle, plan[2]]


def _wanted(trial: Trial, awaits: Awaits, kinds: tuple[str, ...], *, aims: bool) -> Wanted:
    """Choose a cancellation, now and then at an await where none was cancelled yet."""
    left = [
        place
        for place, one in sorted(awaits.items())
        if not one.total and place.partition(":")[0] in kinds
    ]
    target = trial.random.choice(left) if left else ""
    if not aims and trial.random.random() < 0.7:
        target = ""
    return Wanted(
        target.partition(":")[0] or trial.random.choice(kinds),
        trial.random.randint(1, 6),
        trial.random.random() < 0.5,
        target,
        twice=kinds in (FIRST, LAST) and trial.random.random() < 0.5,
    )


FAULT: Final = Fault(
    name="cancels",
    title="worker tasks, produce calls and operator calls are cancelled at their awaits",
    run=run,
    unit="cancellations",
    short=60,
    full=2000,
)
