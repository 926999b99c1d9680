"""Cancellations: any await of a running worker, of a produce or of an operator is given up.

A life is a real queue and worker behind a slow network. Its tasks are watched: whenever one is
suspended in an await, it may be cancelled there, at once or in the moment in which the answer has
come. Then a fresh worker must find everything within a lease.
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

from mx_rmq import Delivery, MessageQueue, Worker
from mx_rmq.core import events
from tests.faults.trial import Fault
from tests.lab.proxy import Fault as Network
from tests.lab.proxy import Order, Proxy
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import CodeType

    from tests.faults.trial import Trial

TOPIC: Final = "work"
LEASE: Final = 1.0
SLOW: Final = 0.003
"""Seconds by which replies come late."""
EACH: Final = 10
"""Cancellations in one life."""
SIDE_BY_SIDE: Final = 4
WITHIN: Final = 2.0
"""Seconds in which a task must come to an await, else another one is chosen."""
DRAINED_WITHIN: Final = 30.0

AGAIN: Final = ("dispatch", "lifecycle", "consumer", "keeper", "produce", "produce_many", "admin")
"""Tasks of which the next one may be cancelled, too. The last three are an application's."""
DUTIES: Final = ("monitor", "scheduler", "lookout", "doorbell", "janitor", "beat")
"""Loops: who is cancelled is gone for the rest of the life."""
FIRST: Final = ("start", "open")
LAST: Final = ("stop", "close")
CAST: Final = frozenset((*AGAIN[:4], *DUTIES))
CALLERS: Final = frozenset((*AGAIN[4:], *FIRST, *LAST))


class Watched(Coroutine[Any, Any, Any]):
    """A coroutine whose every suspension is told."""

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
    """Return a task factory that watches the tasks of a life, else those of whoever makes them."""

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
    """Suspensions that pass first, unless one is new."""
    answered: bool
    """Cancel when the answer has come, and before it is taken."""
    done: asyncio.Event = field(default_factory=asyncio.Event)


Awaits = dict[str, int]
"""Every await in which a watched task was seen, and how often one was cancelled there."""


@dataclass
class Message:
    """What is known of a message."""

    acknowledged: bool = False
    cancelled: bool | None = False
    """By an operator. None: perhaps."""
    ids: set[str] = field(default_factory=set)
    fence: int = 0
    runs: int = 0
    failed: int = 0
    """As told."""
    ended: bool = False
    completed: int = 0


class Life:
    """A queue, a worker, and what is done with them."""

    def __init__(
        self, trial: Trial, server: Server, awaits: Awaits, number: int, plan: list[Wanted]
    ) -> None:
        self._trial = trial
        self._awaits = awaits
        self._server = server
        self._name = f"life {number}"
        self._prefix = f"c{number}"
        self._plan = plan
        self._wanted: Wanted | None = None
        self._messages: dict[str, Message] = {}
        self._labels: dict[str, str] = {}
        self._own: list[dict[str, str]] = []
        """Messages that were produced under an own id, the label."""
        self._numbers = iter(range(1_000_000))
        self._feeding = True
        self._loop = asyncio.get_running_loop()

    # watching

    def suspended(self, task: asyncio.Task[Any], inner: Any, waits_for: Any) -> None:
        """A task waits for something."""
        kind = task.get_name().removeprefix("mx-rmq ")
        if kind not in (CALLERS if kind == task.get_name() else CAST):
            return
        place = f"{kind}: {_place(inner)}"
        known = self._awaits.setdefault(place, 0)
        wanted = self._wanted
        if wanted is None or wanted.kind != kind or task.cancelling():
            return
        wanted.after -= 1
        if wanted.after > 0 and known:
            return
        self._wanted = None
        self._awaits[place] += 1
        self._trial.count(f"cancelled: {kind}")
        if wanted.answered and waits_for is not None:
            waits_for.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()
        self._loop.call_soon_threadsafe(wanted.done.set)

    async def _cancel(self, wanted: Wanted, act: Callable[[], Awaitable[Any]] | None) -> None:
        """Let something be cancelled; without an act, something that happens anyway."""
        self._wanted = wanted
        struck = asyncio.create_task(wanted.done.wait(), name="struck")
        waited: list[asyncio.Task[Any]] = [struck]
        if act is not None:
            doing = asyncio.create_task(_awaited(act), name=wanted.kind)
            waited.append(doing)
        await asyncio.wait(waited, timeout=WITHIN, return_when=asyncio.FIRST_COMPLETED)
        self._wanted = None
        struck.cancel()
        if wanted.done.is_set():
            self._trial.count("cancellations")
        else:
            self._trial.count("chosen in vain: the task did not come to an await")
        if act is not None:
            await asyncio.wait([doing])
            if not doing.cancelled():
                doing.result()

    # living

    async def live(self) -> None:
        """Live, be cancelled here and there, and leave everything to others."""
        token = LIFE.set(self)
        path = self._trial.directory / f"{self._prefix}.sock"
        try:
            async with self._queue(self._server.url) as clean:
                await clean.store.register_topics({TOPIC: 1})
                await self._seed(clean)
                async with Proxy(self._server.socket, path) as proxy:
                    proxy.choose = lambda _: Order(Network.SLOW, late=(0.0, SLOW))
                    await self._live(proxy.url, clean)
        finally:
            LIFE.reset(token)
        await self._judge()

    async def _live(self, url: str, clean: MessageQueue) -> None:
        mq = self._queue(url)
        worker = Worker(mq, concurrency=10, grace=0.2, name=f"{self._prefix}-cancelled")
        plan = iter(self._plan)
        first, duty = next(plan), next(plan)
        if first.kind == "open":
            await self._cancel(first, mq.open)
        if not mq.is_open:
            await mq.open()
        if first.kind == "start":
            await self._cancel(first, worker.start)
        feeding = asyncio.create_task(self._feed(clean), name="feed")
        self._wanted = duty
        if worker._cast is None:
            await worker.start()
        assert worker._cast is not None
        self._watch_keeper(worker._cast._keeper)
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
        await self._acknowledge(mq, self._own, ids=[payload["label"] for payload in self._own])
        await self._cancel(last, worker.stop if last.kind == "stop" else mq.close)
        await worker.stop()
        if mq.is_open:
            await mq.close()

    def _watch_keeper(self, keeper: Any) -> None:
        """Its tasks live in a loop of their own."""
        if keeper._loop is not None:
            keeper._loop.call_soon_threadsafe(keeper._loop.set_task_factory, watching(self))

    def _queue(self, url: str) -> MessageQueue:
        mq = MessageQueue(url, prefix=self._prefix, lease=LEASE)

        @mq.handler(TOPIC, retry=0.02, max_attempts=50)
        async def work(payload: dict[str, str], delivery: Delivery) -> None:
            label, act = payload["label"], payload["act"]
            self._labels[delivery.id] = label
            message = self._messages[label]
            message.ids.add(delivery.id)
            if delivery.fence <= message.fence:
                self.violated(f"the fence of {label} went back")
            if message.completed:
                self.violated(f"{label} ran after its completion")
            message.fence = delivery.fence
            message.runs += 1
            if act == "once" and message.runs == 1:
                message.failed += 1
                raise ValueError("as told")
            await asyncio.sleep({"long": 0.6, "short": 0.01}.get(act, 0))
            message.ended = True

        def on_completed(event: Any) -> None:
            self._messages[self._labels[event.id]].completed += 1

        mq.events.subscribe(on_completed, events.Completed)
        return mq

    # what is done meanwhile

    def _new(self, act: str, *, own: bool = False) -> dict[str, str]:
        label = f"m{next(self._numbers)}"
        self._messages[label] = Message()
        payload = {"label": label, "act": act}
        if own:
            self._own.append(payload)
        return payload

    async def _seed(self, clean: MessageQueue) -> None:
        """Leave messages that another worker has lost, and some that wait."""
        payloads = [self._new("ok") for _ in range(6)]
        await self._acknowledge(clean, payloads)
        gone = await clean.store.dispatch_message(TOPIC, "gone", count=3, lease=1)
        assert len(gone.messages) == 3
        await self._acknowledge(clean, [self._new("short") for _ in range(4)], delay=0.1)

    async def _feed(self, clean: MessageQueue) -> None:
        """Let there be always something to do."""
        acts = ("ok", "short", "once", "ok", "long")
        while self._feeding:
            await self._acknowledge(clean, [self._new(act) for act in acts])
            await asyncio.sleep(0.05)

    async def _acknowledge(
        self, mq: MessageQueue, payloads: list[dict[str, str]], **options: Any
    ) -> None:
        await mq.produce_many(TOPIC, payloads, **options)
        for payload in payloads:
            self._messages[payload["label"]].acknowledged = True

    async def _produce(self, mq: MessageQueue) -> None:
        """Produce; what was cancelled comes again under the same id, if it has one."""
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
        """Every connection must give each caller his own answer."""

        async def ask() -> None:
            word = secrets.token_bytes(8)
            for node in mq.store._servers.nodes():
                if await node.send(("ECHO", word), 30.0) != word:
                    self.violated("a caller got another's answer")
                    self._trial.count("answers to the wrong caller")

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
            stats = await mq.admin.stats(TOPIC)
            slowest = self._trial.figures.get("longest until all was done, s", 0.0)
            assert not isinstance(slowest, str)
            self._trial.figures["longest until all was done, s"] = max(slowest, took)
            if stats.total:
                self._trial.count("stranded after a lease", stats.total)
                self.violated(f"not everything was found: {stats}")
            for violation in await mq.admin.audit(TOPIC):
                self.violated(f"audit: {violation}")
        for label, message in self._messages.items():
            self._judge_one(label, message)

    def _judge_one(self, label: str, message: Message) -> None:
        self._trial.count("messages")
        self._trial.count("extra runs", max(0, message.runs - 1 - message.failed))
        if not message.acknowledged:
            self._trial.count("produces without an answer")
        if message.cancelled is True and message.runs:
            self.violated(f"{label} ran although it was cancelled")
        lost = message.acknowledged and message.cancelled is False and not message.ended
        if lost:
            self._trial.count("lost")
            self.violated(f"{label} is lost: {message}")
        if len(message.ids) > 1 or message.completed > 1:
            self._trial.count("duplicates created")
            self.violated(f"{label} was made twice: {message}")

    def violated(self, what: str) -> None:
        """Note something that must never be."""
        kinds = ", ".join(f"{one.kind}/{one.after}/{one.answered}" for one in self._plan)
        self._trial.violated(f"{self._name} ({kinds}): {what}")


def _place(inner: Any) -> str:
    """Name the await in which a coroutine waits: our innermost function, and the script."""
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
    """Let as many lives be cancelled as the size wants."""
    for name in ("lost", "stranded after a lease", "duplicates created"):
        trial.count(name, 0)
    trial.count("answers to the wrong caller", 0)
    awaits: Awaits = {}
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    free = asyncio.Semaphore(SIDE_BY_SIDE)

    async def live(number: int, server: Server) -> None:
        plan = [_wanted(trial, FIRST), _wanted(trial, DUTIES)]
        plan += [_wanted(trial, AGAIN) for _ in range(EACH - 3)]
        plan.append(_wanted(trial, LAST))
        async with free:
            life = Life(trial, server, awaits, number, plan)
            try:
                await life.live()
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not be
                life.violated(f"{type(error).__name__}: {error}")
        trial.say(f"{trial.figures.get('cancellations', 0)} of {trial.size} cancellations")

    loop.set_task_factory(watching())
    try:
        with (
            Server(Kind.VALKEY_9_1, trial.directory / "v") as valkey,
            Server(Kind.REDIS_7_0, trial.directory / "r") as redis,
        ):
            lives = 0
            while int(trial.figures.get("cancellations", 0)) < trial.size:
                left = trial.size - int(trial.figures.get("cancellations", 0))
                async with asyncio.TaskGroup() as group:
                    for _ in range(-(-left // EACH)):
                        server = redis if lives % 4 == 3 else valkey
                        group.create_task(live(lives, server))
                        lives += 1
    finally:
        loop.set_task_factory(before)
    trial.figures["lives"] = lives
    trial.figures["awaits seen"] = len(awaits)
    trial.figures["awaits cancelled"] = sum(1 for times in awaits.values() if times)
    trial.tables["cancellations by place"] = [
        ["where", "cancelled"],
        *([place, str(times)] for place, times in sorted(awaits.items()) if times),
    ]


async def _awaited(act: Callable[[], Awaitable[Any]]) -> None:
    await act()


def _wanted(trial: Trial, kinds: tuple[str, ...]) -> Wanted:
    return Wanted(
        trial.random.choice(kinds), trial.random.randint(1, 6), trial.random.random() < 0.5
    )


FAULT: Final = Fault(
    name="cancels",
    title="tasks of a worker, produces and operators are cancelled in any await",
    run=run,
    unit="cancellations",
    short=100,
    full=2000,
)
