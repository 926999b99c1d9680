"""Processes that die at a chosen point: real queues and workers, forked from a warm one.

`python -m tests.lab.mortal` is a fork server: each line that it reads is an order for one life, and
it replies with how that life ended. A life costs a fork, not the start of an interpreter.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import time
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import msgspec

from mx_rmq import Delivery, Limit, MessageQueue, Worker
from mx_rmq.core import events
from mx_rmq.core.outcome import Suspended
from mx_rmq.runtime import caretaker
from mx_rmq.store import store as store_module
from mx_rmq.store.script import load, names
from tests.lab.injector import ROLE, Injector, Journal, MortalCaller, Point
from tests.lab.servers import ROOT, die_with_parent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LEASE: Final = 0.8
RETRY: Final = 0.05
DELAY: Final = 0.2
BLOCK: Final = 2.4
"""Seconds for which a handler blocks its loop: a second or a lease until the keeper hands back,
plus the time that a busy machine needs."""
SAY: Final = 0.2
"""Seconds in which a handler's progress is sent."""
PATIENCE: Final = 20.0
"""Seconds after which a life ends, whatever it still waits for."""
HEIR_WITHIN: Final = 45.0
"""Seconds in which an heir finds everything. From its second crash on, a message may wait ten."""

KINDS: Final = ("work", "fragile", "line", "brief", "ops", "app", "kept", "keyed")
"""The topics of each life, besides that of its cron."""


class Order(msgspec.Struct, kw_only=True):
    """What a process must do."""

    url: str
    prefix: str
    journal: str
    scene: str
    worker: str
    life: int
    """Its number in the run; the topics of all lives up to it are served."""
    confirm: bool = False
    wait_for: list[str] = []
    """Messages that must be settled before it ends."""
    targets: dict[str, str] = {}
    """The messages of an operator, by what it does with them."""
    doom: Point | None = None


def topic(kind: str, life: int) -> str:
    """Return the topic of a kind that a life works on."""
    return f"{kind}{life}"


# what a process does


class Life:
    """One process: a queue, perhaps a worker, and what they do."""

    def __init__(self, order: Order, journal: Journal, injector: Injector) -> None:
        self._order = order
        self._journal = journal
        self._injector = injector
        self._settled: set[str] = set()
        self._news = asyncio.Event()
        self._mq = MessageQueue(order.url, prefix=order.prefix, lease=LEASE)
        self._mq.events.subscribe(self._on_event)
        for life in range(1, order.life + 1):
            self._declare(life)

    async def live(self) -> None:
        ROLE.set("opening")
        await self._mq.open()
        scenes: dict[str, Callable[[], Awaitable[None]]] = {
            "application": self._application,
            "operator": self._operator,
            "worker": self._worker,
            "blocked": self._worker,
            "heir": self._heir,
        }
        await scenes[self._order.scene]()
        await self._mq.close()

    # an application

    async def _application(self) -> None:
        ROLE.set("producer")
        own = self._own
        await self._produce(["plain"])
        await self._produce(["own"], id=own("own"))
        await self._produce(["late"], delay=DELAY)
        await self._produce(["own-late"], delay=DELAY, id=own("own-late"))
        await self._produce(["own-late"], id=own("own-late"), on_duplicate="replace")
        await self._produce(["m1", "m2", "m3"], many=True)
        await self._produce(["n1", "n2"], many=True, ids=[own("n1"), own("n2")])
        await self._produce(["l1", "l2"], many=True, delay=DELAY)
        if self._order.confirm:
            await self._produce(["sure"], confirm="replicated")
        await asyncio.gather(*(self._produce([f"together{n}"]) for n in range(4)))

    def _own(self, label: str) -> str:
        return f"{self._order.life}.{label}"

    async def _produce(self, labels: list[str], *, many: bool = False, **options: Any) -> None:
        payloads = [{"label": self._own(label), "act": "ok"} for label in labels]
        name = topic("app", self._order.life)
        for payload in payloads:
            self._journal.note("tried", label=payload["label"], detail="produce")
        if many:
            ids = await self._mq.produce_many(name, payloads, **options)
        else:
            ids = [await self._mq.produce(name, payloads[0], **options)]
        for payload, id in zip(payloads, ids, strict=True):
            self._journal.note("done", label=payload["label"], id=id, detail="produce")

    # an operator

    async def _operator(self) -> None:
        ROLE.set("operator")
        name, target = topic("ops", self._order.life), self._order.targets
        admin = self._mq.admin
        await admin.pause(name)
        await admin.stats(name)
        await self._act("requeue", target["requeue dead"], admin.requeue)
        await self._act("requeue", target["requeue quarantined"], admin.requeue)
        await self._act("discard", target["discard dead"], admin.discard)
        await self._act("discard", target["discard quarantined"], admin.discard)
        await self._act("cancel", target["cancel pending"], admin.cancel)
        await self._act("cancel", target["cancel delayed"], admin.cancel)
        await admin.resume(name)
        await self._act("requeue", target["requeue all"], self._requeue_all)
        await self._act("discard", target["discard all"], self._discard_all)
        for one in ("abort held", "abort pending", "abort delayed"):
            await self._act("abort", target[one], admin.abort)
        later = partial(admin.reschedule, delay=0.5)
        await self._act("reschedule", target["reschedule"], later)
        await admin.audit(name)
        await admin.repair(name)  # nothing is wrong; a death here must not change that
        await self._mq.store.repair_message(name, target["requeue all"].encode())
        await admin.limit(name, key="k", running=5)
        await admin.limit(name, key="k", running=None)
        await self._mq.store.repair_lines(name, [("key", b"k")])
        schedule = topic("s", self._order.life)
        await admin.schedule(schedule, name, "0 0 1 1 *")
        await admin.pause_schedule(schedule)
        await admin.resume_schedule(schedule)
        assert await admin.unschedule(schedule)
        await self._act("signal", target["signal"], partial(self._signal, "approval"))
        await self._mq.store.repair_waits(name, [target["signal"].encode()])
        await self._mq.store.remove_subscription(name, "none")

    async def _act(self, what: str, id: str, act: Callable[[str, str], Awaitable[Any]]) -> None:
        self._journal.note("tried", id=id, detail=what)
        assert await act(topic("ops", self._order.life), id), (what, id)
        self._journal.note("done", id=id, detail=what)

    async def _signal(self, signal: str, name: str, id: str) -> bool:
        return await self._mq.signal(name, id, signal, 1)

    async def _requeue_all(self, name: str, _: str) -> int:
        return await self._mq.admin.requeue_all(name, "dead")

    async def _discard_all(self, name: str, _: str) -> int:
        return await self._mq.admin.discard_all(name, "quarantined")

    # a worker

    async def _worker(self) -> None:
        ROLE.set("registry")
        worker = Worker(self._mq, name=self._order.worker, concurrency=20, grace=0.05)
        await worker.start()
        try:
            async with asyncio.timeout(PATIENCE):
                while not self._has_seen_all():
                    self._news.clear()
                    await self._news.wait()
                for call in (("keeper", "extend_lease"), ("caretaker", "tend_topics")):
                    while not self._injector.answers[call]:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
        except TimeoutError:
            self._journal.note("late", ids=sorted(set(self._order.wait_for) - self._settled))
        ROLE.set("shutdown")
        assert await worker.stop()

    def _has_seen_all(self) -> bool:
        return self._settled.issuperset(self._order.wait_for)

    async def _heir(self) -> None:
        ROLE.set("operator")
        for life in range(1, self._order.life + 1):
            name = topic("ops", life)
            if name in await self._mq.admin.topics():
                await self._mq.admin.resume(name)
                await self._mq.signal(name, f"{life}.signal", "approval", 1)
        ROLE.set("heir")
        try:
            async with asyncio.timeout(HEIR_WITHIN):
                await Worker(self._mq, name=self._order.worker, grace=5).drain(delayed=True)
        except TimeoutError:
            self._journal.note("late")  # the checker will find what is left

    # handlers

    def _declare(self, life: int) -> None:
        mq = self._mq
        for kind in KINDS:
            options: dict[str, Any] = {"retry": RETRY, "max_attempts": 2}
            if kind == "brief":
                options["ttl"] = 0.001
            if kind == "fragile":
                options["max_crashes"] = 1
            if kind == "line":
                options |= {"partitions": 1, "concurrency": 1}
            if kind == "kept":
                options["result_ttl"] = 600
            if kind == "keyed":
                options["per_key"] = Limit(running=1)
            mq.handler(topic(kind, life), **options)(self._handle)
        shared = mq.handler(topic("shared", life), subscription="s", retry=RETRY, max_attempts=2)
        shared(self._handle)

        @mq.cron(f"0 0 {life} 1 *", missed="once", topic=topic("tick", life))
        async def tick(delivery: Delivery) -> None:
            label = f"{delivery.topic} {delivery.id}"
            self._note("start", label, delivery)
            self._note("end", label, delivery)

    async def _handle(self, payload: dict[str, str], delivery: Delivery) -> str:
        label, act = payload["label"], payload["act"]
        self._note("start", label, delivery)
        if act == "fail" or (act == "once" and delivery.attempt == 1):
            self._note("failed", label, delivery)
            raise ValueError("as planned")
        if act == "hang" and self._order.scene != "heir":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self._note("stopped", label, delivery)
                raise
        if act == "block" and self._order.scene == "blocked":
            time.sleep(BLOCK)
        if act in ("steps", "approve"):
            await self._take_steps(label, act, delivery)
        if act == "say":
            delivery.progress(0.5, label)
            await asyncio.sleep(SAY)
        self._note("end", label, delivery)
        return label

    async def _take_steps(self, label: str, act: str, delivery: Delivery) -> None:
        try:
            if act == "approve":
                assert await delivery.wait("approval") == 1
                return
            assert await delivery.step("one", lambda: 1) == 1
            await delivery.sleep("nap", 0.01)
            with suppress(TimeoutError):
                await delivery.wait("never", timeout=0.01)
        except Suspended:
            self._note("suspended", label, delivery)
            raise

    def _note(self, what: str, label: str, delivery: Delivery) -> None:
        self._journal.note(
            what,
            label=label,
            id=delivery.id,
            fence=delivery.fence,
            attempt=delivery.attempt,
            worker=self._order.worker,
        )

    def _on_event(self, event: events.Event) -> None:
        id = getattr(event, "id", None)
        if id is None:
            return
        lost_by = getattr(event, "lost_by", "")
        self._journal.note(type(event).__name__, id=id, worker=lost_by)
        if isinstance(event, events.Completed | events.Died | events.Quarantined):
            self._settled.add(id)
            self._news.set()


# the fork server


class Lives:
    """Its handle. `async with Lives() as lives: code = await lives.live(order)`"""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.lab.mortal"),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            preexec_fn=die_with_parent,
        )
        self._waiting: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._number = 0
        self._hearing = asyncio.create_task(self._hear())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        await self._server.wait()
        await self._hearing

    async def live(self, order: Order) -> tuple[int, int]:
        """Run a process; return its pid and its exit code when it has ended."""
        assert self._server.stdin is not None
        self._number += 1
        number = self._number
        ended: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = ended
        line = json.dumps([number, msgspec.to_builtins(order)])
        self._server.stdin.write(line.encode() + b"\n")
        return await ended

    async def _hear(self) -> None:
        assert self._server.stdout is not None
        while line := await self._server.stdout.readline():
            number, pid, code = json.loads(line)
            self._waiting.pop(number).set_result((pid, code))


def _serve() -> None:
    setattr(caretaker, "ROUND", LEASE)  # noqa: B010 - a life is shorter than the usual one
    for name in names():
        load(name)
    children: dict[int, tuple[int, int]] = {}
    unread, is_open = b"", True
    while is_open or children:
        readable, _, _ = select.select([0, *children] if is_open else [*children], [], [])
        for one in readable:
            if one == 0:
                read = os.read(0, 65536)
                is_open = bool(read)
                *lines, unread = (unread + read).split(b"\n")
                for line in lines:
                    number, order = json.loads(line)
                    pid = _fork(order)
                    children[os.pidfd_open(pid)] = (number, pid)
            else:
                number, pid = children.pop(one)
                os.close(one)
                _, status = os.waitpid(pid, 0)
                code = os.waitstatus_to_exitcode(status)
                os.write(1, json.dumps([number, pid, code]).encode() + b"\n")
        if not is_open:  # nothing waits for them any more
            for _, pid in children.values():
                os.kill(pid, signal.SIGKILL)


def _fork(order: Any) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            _begin(msgspec.convert(order, Order))
        except BaseException:  # noqa: BLE001 - nothing may go back into the fork server
            traceback.print_exc()
        os._exit(1)
    return pid


def _begin(order: Order) -> NoReturn:
    path = Path(order.journal)
    log = os.open(path.with_suffix(".log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 2)
    os.dup2(log, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    journal = Journal(path)
    injector = Injector(journal, order.url.removeprefix("unix://"), order.doom)
    MortalCaller.injector = injector
    vars(store_module)["Caller"] = MortalCaller

    async def live() -> None:
        await Life(order, journal, injector).live()

    asyncio.run(live())
    os._exit(0)


if __name__ == "__main__":
    _serve()
