"""A scene: a server, workers, producers and faults; at the end, nothing may be lost.

async with Scene(trial, server) as scene:
    scene.hire(3)
    scene.produce(10_000)
    …                       # faults
    await scene.settle()    # until nothing is left to do
    await scene.check()     # the history, the server, the audit
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sqlite3
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final, Self

from redis.asyncio import Redis

from mx_rmq import MessageQueue, MxRmqError
from mx_rmq.core.message import State
from tests.conftest import KNOWN_KEY
from tests.faults import member
from tests.faults.check import Checked, Ends, check, check_fences
from tests.faults.errand import TOPICS
from tests.faults.history import Journal, What, read
from tests.faults.member import FORKS, Hired, Order, Place
from tests.lab.crew import until

if TYPE_CHECKING:
    from tests.faults.trial import Trial
    from tests.lab.servers import Server

LEASE: Final = 2.0
PAGE: Final = 1_000
MORE: Final = 100
"""Messages that each producer may add when the workers have nothing to do."""


class Hand:
    """A worker process."""

    def __init__(self, place: Place, hired: Hired) -> None:
        self.name = hired.name
        self._process = member.start(member.work, place, hired)

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def join(self) -> int | None:
        """Wait for its end, and return its exit code; None: it still runs."""
        self._process.join(20)
        code: int | None = self._process.exitcode
        if code is not None:
            self._process.close()
        return code


class Scene:
    """Workers and producers on one server."""

    def __init__(
        self,
        trial: Trial,
        server: Server,
        *,
        lease: float = LEASE,
        patience: float = 10.0,
        fences: bool = False,
        batch: int = 0,
        bug: str = "",
        name: str = "",
    ) -> None:
        self.trial = trial
        self.server = server
        self.hands: list[Hand] = []
        self.lease = lease
        directory = trial.directory / f"scene-{name}"
        directory.mkdir()
        self.place = Place(
            server.url,
            directory / "history",
            directory / "log",
            lease,
            patience,
            directory / "fences" if fences else None,
            batch,
        )
        self._bug = bug
        self._hired = 0
        self._producers: list[Any] = []
        if fences:
            member.make_fences(directory / "fences")

    async def __aenter__(self) -> Self:
        self._journal = Journal(self.place.history, "lab")
        self.mq = MessageQueue(self.server.url, patience=30)
        await self.mq.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for hand in list(self.hands):
            self.kill(hand)
        for producer in self._producers:
            if producer.is_alive():
                producer.kill()
            producer.join(20)
        await self.mq.close()

    # the workers

    def hire(self, count: int = 1, **how: Any) -> list[Hand]:
        """Start workers."""
        hands = []
        for _ in range(count):
            self._hired += 1
            hired = Hired(f"w{self._hired}", bug=self._bug, **how)
            self.note(What.HIRED, hired.name)
            hands.append(Hand(self.place, hired))
        self.hands += hands
        return hands

    def kill(self, hand: Hand) -> None:
        """End a worker the way a crash does."""
        self._expect_alive(hand)
        self.note(What.KILLED, hand.name)
        with suppress(ProcessLookupError):
            hand.send(signal.SIGKILL)
        hand.join()
        self.hands.remove(hand)

    async def stop(self, hand: Hand) -> None:
        """Tell a worker to stop, and wait for it."""
        self._expect_alive(hand)
        hand.send(signal.SIGTERM)
        code = await asyncio.to_thread(hand.join)
        self.trial.expect(code == 0, f"{hand.name} was told to stop and ended with {code}")
        self.hands.remove(hand)

    def _expect_alive(self, hand: Hand) -> None:
        """Check that no worker dies unless the lab kills it."""
        self.trial.expect(hand.is_alive(), f"{hand.name} died on its own: {self.place.log}")

    def kill_pid(self, pid: int, name: str) -> None:
        """End a worker that a supervisor started."""
        self.note(What.KILLED, name)
        os.kill(pid, signal.SIGKILL)

    def freeze(self, hand: Hand) -> None:
        """Freeze a worker."""
        self.note(What.FROZEN, hand.name)
        hand.send(signal.SIGSTOP)

    def thaw(self, hand: Hand) -> None:
        """Let it continue."""
        self.note(What.THAWED, hand.name)
        hand.send(signal.SIGCONT)

    def trouble(self) -> None:
        """Note that from now on leases may be lost although no worker died."""
        self.note(What.TROUBLE)

    def forgot(self, seconds: float) -> None:
        """Note a kill of the server; what it did in this many seconds before may be undone."""
        self._journal.note(What.FORGOT, since=time.monotonic() - seconds)

    def calm(self) -> None:
        """Note that the trouble is over."""
        self.note(What.CALM)

    def note(self, what: What, who: str = "") -> None:
        self._journal.note(what, who=who)

    # the messages

    def produce(
        self, messages: int, *, producers: int = 1, paced: bool = False, **how: Any
    ) -> None:
        """Start producers; each makes its share. `paced`: only as many as `allow` says.

        A paced producer makes more than its share if the workers would run out of messages. So
        there is always a worker to kill that holds some.
        """
        self._messages = messages // producers
        self._allowed = FORKS.Value("d", 0 if paced else math.inf)
        for _ in range(producers):
            name = f"p{len(self._producers) + 1}"
            seed = f"{self.trial.seed} {name}"
            order = Order(name, seed, messages // producers, allowed=self._allowed, **how)
            self._producers.append(member.start(member.produce, self.place, order))

    def allow(self, share: float) -> None:
        """Let each producer continue until it has made this share of its messages."""
        self._allowed.value = max(self._allowed.value, share * self._messages)

    @property
    def is_producing(self) -> bool:
        return any(producer.is_alive() for producer in self._producers)

    async def left(self) -> int:
        """Return how many messages have not ended."""
        left = 0
        for topic in await self.mq.admin.topics():
            stats = await self.mq.admin.stats(topic)
            left += stats.pending + stats.processing + stats.delayed
        return left

    async def busy(self, besides: Hand | None = None) -> list[Hand]:
        """Wait until workers hold messages, and return them, but not `besides`."""
        found: list[Hand] = []

        async def look() -> bool:
            holders = await self._holders()
            found[:] = [one for one in self.hands if one.name in holders and one is not besides]
            if not found and not await self._ready():
                self._allowed.value += MORE
            return bool(found)

        try:
            await until(look, 60)
        except AssertionError:
            raise AssertionError(f"no worker holds a message: {await self._situation()}") from None
        return found

    async def catch(self, most: int = 1, besides: Hand | None = None) -> list[Hand]:
        """Stop workers while they hold messages, for the lab to kill or to freeze them."""
        caught: list[Hand] = []
        while not caught:
            busy = await self.busy(besides)
            for hand in self.trial.random.sample(busy, min(most, len(busy))):
                hand.send(signal.SIGSTOP)
                if hand.name in await self._holders():  # it has settled nothing since then
                    caught.append(hand)
                else:
                    hand.send(signal.SIGCONT)
        return caught

    async def _situation(self) -> dict[str, Any]:
        """Return what is left and which workers live, for the error of a stuck trial."""
        situation: dict[str, Any] = {"producing": self.is_producing}
        situation["alive"] = [hand.name for hand in self.hands if hand.is_alive()]
        async with Redis.from_url(self.server.url) as raw:
            for topic in TOPICS:
                situation[topic] = await self.mq.admin.stats(topic)
                situation[f"{topic} leases"] = await raw.hgetall(f"mx-rmq:{{{topic}}}:processing")
        return situation

    async def _ready(self) -> int:
        """Return how many messages a worker holds or could take; delayed ones do not count."""
        topics = await self.mq.admin.topics()
        stats = [await self.mq.admin.stats(topic) for topic in topics]
        return sum(one.pending + one.processing for one in stats)

    async def _holders(self) -> set[str]:
        leases: list[Any] = []
        async with Redis.from_url(self.server.url) as raw:
            for topic in TOPICS:
                leases += await raw.hvals(f"mx-rmq:{{{topic}}}:processing")
        return {lease.partition(b":")[2].partition(b" ")[0].decode() for lease in leases}

    async def settle(self, within: float = 120) -> None:
        """Wait until everything is produced and nothing is left to do; too long is a violation."""
        self._allowed.value = math.inf
        await until(lambda: not self.is_producing, 3_600)
        for producer in self._producers:
            self.trial.expect(producer.exitcode == 0, f"a producer ended with {producer.exitcode}")
        deadline = time.monotonic() + within
        while left := await self._left_or_more():
            if time.monotonic() > deadline:
                self.trial.violated(f"{left} messages have been stuck for {within:g} s")
                return
            await asyncio.sleep(0.05)

    async def _left_or_more(self) -> int:
        try:
            return await self.left()
        except MxRmqError:
            return 1

    # what must hold

    async def audit(self) -> None:
        """Check that every message is in exactly one state."""
        for topic in await self.mq.admin.topics():
            for violation in await self.mq.admin.audit(topic):
                self.trial.violated(f"audit: {violation}")

    async def check(self) -> Checked:
        """Check the history against the server. No worker may have died on its own."""
        for hand in self.hands:
            self._expect_alive(hand)
        await self.audit()
        found = {state: await self._messages_in(state) for state in State}
        ids = {state: set(labels) for state, labels in found.items()}
        labels = {id: label for one in found.values() for id, label in one.items() if label}
        history, ends = read(self.place.history), Ends(**ids, labels=labels)
        checked = await asyncio.to_thread(check, history, ends, lease=self.lease)
        self._check_fences(checked)
        for violation in checked.violations:
            self.trial.violated(violation)
        await self._check_keys()
        return checked

    async def _messages_in(self, state: State) -> dict[str, str]:
        """Return the ids of a state, and the labels that their records have."""
        found: dict[str, str] = {}
        for topic in TOPICS:
            if topic not in await self.mq.admin.topics():
                continue
            cursor = None
            while True:
                page = await self.mq.admin.list(topic, state, limit=PAGE, cursor=cursor)
                found.update((one.id, _label(one.payload)) for one in page.messages)
                cursor = page.cursor
                if cursor is None:
                    break
        return found

    async def _check_keys(self) -> None:
        async with Redis.from_url(self.server.url) as raw:
            async for key in raw.scan_iter(count=PAGE):
                self.trial.expect(KNOWN_KEY.fullmatch(key), f"an unknown key is left: {key!r}")

    def _check_fences(self, checked: Checked) -> None:
        if self.place.fences is None:
            return
        with closing(sqlite3.connect(self.place.fences)) as db:
            rows = db.execute("SELECT id, fence, accepted FROM attempts ORDER BY rowid")
            check_fences(rows, checked)


def _label(payload: Any) -> str:
    return str(payload.get("label", "")) if isinstance(payload, dict) else ""
