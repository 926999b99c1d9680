"""The story: orders come in, two workers work, one is killed, and nothing is lost."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mx_rmq.core.message import State
from mx_rmq.queue import MessageQueue
from mx_rmq_demo import shop
from mx_rmq_demo.account import Account
from mx_rmq_demo.screen import Row, View, screen
from mx_rmq_demo.workers import Crew

if TYPE_CHECKING:
    from mx_rmq_demo.screen import Screen
    from mx_rmq_demo.workers import Member

TOPICS: Final = tuple(shop.mq.handlers)
DOOMED: Final = frozenset(("payment-void", "payment-stolen", "order-broken"))
"""Messages that no handler can complete."""

ORDERS_A_TICK: Final = 5
TICK: Final = 0.1
"""Seconds between two batches of orders: a little less than two workers can handle."""
WORK: Final = 5.0
"""Seconds until the kill."""
MORE: Final = 2.0
"""Seconds for which orders still come after it."""
REMIND_AFTER: Final = 3.0

IN_HAND: Final = 10
"""Messages that a worker must have started on before it is killed."""
WITHIN: Final = 45.0
"""Seconds that the whole story may take."""
LOOK_EVERY: Final = 0.125
STOP_WITHIN: Final = 5.0

NEXT_STEPS: Final = """
Now you, in three terminals. The shop is {shop}
  {program} server
  {program} worker mx_rmq_demo.shop
  {program} produce --url embedded://./mx-rmq-data orders '{{"number": 1, "item": "tea"}}'
"""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoFailed(Exception):
    """The demo did not go as planned."""


async def run() -> bool:
    """Run the story on its own server; return whether it ended. Raises DemoFailed."""
    told_to_stop = asyncio.Event()
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
    with tempfile.TemporaryDirectory(prefix="mx-rmq-demo-") as directory, screen() as shown:
        url = f"embedded://{directory}"
        async with MessageQueue(url) as mq, Crew(url, Path(directory)) as crew:
            story = asyncio.create_task(Story(mq, crew, shown).tell(), name="story")
            account = await _unless(told_to_stop, story)
        if account is None:
            shown.end(["stopped; nothing is left behind"])
            return False
        problems = account.problems()
        shown.end([*account.lines(), *([] if problems else _next_steps())])
    if problems:
        raise DemoFailed("; ".join(problems))
    return True


def _next_steps() -> list[str]:
    ours = str(Path(sys.executable).with_name("mx-rmq"))
    program = "mx-rmq" if shutil.which("mx-rmq") == ours else _short(ours)
    return NEXT_STEPS.format(program=program, shop=_short(shop.__file__)).splitlines()


def _short(path: str) -> str:
    """Return a path relative to the current directory, if it is below."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


async def _unless(event: asyncio.Event, story: asyncio.Task[Account]) -> Account | None:
    """Return the account of a story; None if it was stopped."""
    waiting = asyncio.create_task(event.wait(), name="stop")
    try:
        await asyncio.wait([story, waiting], return_when=asyncio.FIRST_COMPLETED)
        return story.result() if story.done() else None
    finally:
        waiting.cancel()
        story.cancel()
        with suppress(
            asyncio.CancelledError, Exception
        ):  # raised above already, or no longer relevant
            await story


class Story:
    """The four phases, and the task that shows them."""

    def __init__(self, mq: MessageQueue, crew: Crew, shown: Screen) -> None:
        self._mq = mq
        self._crew = crew
        self._shown = shown
        self._started = time.monotonic()
        self._produced: set[str] = set()
        self._killed: Member | None = None
        self._unsettled = 0

    async def tell(self) -> Account:
        """Run all phases; return the account."""
        try:
            async with asyncio.timeout(WITHIN):
                return await self._tell()
        except TimeoutError:
            raise DemoFailed(
                f"the story did not end within {WITHIN:g} s; {self._unsettled} messages are open"
            ) from None
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _tell(self) -> Account:
        first, second = [await self._crew.hire(name) for name in ("worker-1", "worker-2")]
        await self._until_they_work()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(), name="watch")
            self._shown.begin(1, "two workers at work")
            ordering = group.create_task(self._order(), name="producer")
            await asyncio.sleep(WORK)

            killed_at, held = await self._kill(first)
            busy = f"{len(held)} messages in processing"
            self._shown.begin(2, f"kill -9 {first.name} (pid {first.pid}) with {busy}")
            await asyncio.sleep(1)  # time to read; the leases last longer

            self._shown.begin(3, f"their leases run out, and {second.name} takes over")
            await self._take_over(first, second, killed_at, len(held))
            await ordering
            while await self._look():
                self._check()
                await asyncio.sleep(LOOK_EVERY)

            self._shown.begin(4, "the account")
            watching.cancel()
        if not await second.stop(STOP_WITHIN):
            raise DemoFailed(f"{second.name} did not stop cleanly: {second.last_words()}")
        await self._look()
        return await self._account(held, held & first.begun & second.begun)

    # the producer

    async def _order(self) -> None:
        """Produce orders, and among them everything that can go wrong."""
        for card in ("void", "stolen", "busy"):
            await self._produce("payments", shop.Payment(0, card), f"payment-{card}")
        await self._produce("orders", {"number": "seven"}, "order-broken")
        number = 0
        for tick in range(round((WORK + MORE) / TICK)):
            due = asyncio.get_running_loop().time() + TICK
            numbers = range(number + 1, number + ORDERS_A_TICK + 1)
            number = numbers[-1]
            orders = [shop.Order(n, "teapot", f"customer{n}@example.org") for n in numbers]
            ids = [f"order-{n}" for n in numbers]
            self._produced.update(await self._mq.produce_many("orders", orders, ids=ids))
            self._produced.update(
                f"mail-{n}" for n in numbers
            )  # the handler of the order produces it
            await self._produce("payments", shop.Payment(number, "good"), f"payment-{number}")
            if tick % 10 == 0:
                reminder = shop.Reminder(number)
                await self._produce("reminders", reminder, f"reminder-{number}", delay=REMIND_AFTER)
            await asyncio.sleep(due - asyncio.get_running_loop().time())

    async def _produce(
        self, topic: str, payload: object, id: str, *, delay: float | None = None
    ) -> None:
        self._produced.add(await self._mq.produce(topic, payload, id=id, delay=delay))

    # the processes

    async def _until_they_work(self) -> None:
        missing = {member.name for member in self._crew.members}
        while missing:
            self._check()
            missing -= {worker.name for worker in await self._mq.admin.workers()}
            await asyncio.sleep(LOOK_EVERY)

    async def _kill(self, member: Member) -> tuple[float, frozenset[str]]:
        """Kill a worker while it is busy; return when that was, and what it held."""
        while len(member.running) < IN_HAND:
            self._check()
            await asyncio.sleep(0.01)
        self._killed = member
        await member.kill()
        now = time.monotonic()
        await asyncio.sleep(0.1)  # by then the server has run what it sent before
        return now, frozenset(await self._held_by(member))

    async def _take_over(self, lost: Member, by: Member, since: float, number: int) -> None:
        """Wait until the killed worker holds nothing any more."""
        while left := len(await self._held_by(lost)):
            self._check()
            self._shown.progress(
                f"their leases run out, and {by.name} takes over: {number - left} of {number}"
            )
            await asyncio.sleep(LOOK_EVERY)
        seconds = time.monotonic() - since
        self._shown.conclude(
            f"{by.name} has taken over {number} of {number}, {seconds:.1f} s after the kill"
        )

    async def _held_by(self, member: Member) -> list[str]:
        return [
            message.id
            for topic in TOPICS
            for message in (await self._mq.admin.list(topic, State.PROCESSING, limit=1000)).messages
            if message.worker == member.name
        ]

    def _check(self) -> None:
        """Raise DemoFailed if a worker ended that was not killed by us."""
        for member in self._crew.members:
            if member.ended is not None and member is not self._killed:
                raise DemoFailed(
                    f"{member.name} ended with exit code {member.ended}: {member.last_words()}"
                )

    # the account

    async def _watch(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(LOOK_EVERY)

    async def _look(self) -> int:
        """Count and show the messages; return how many are not settled."""
        stats = [await self._mq.admin.stats(topic) for topic in TOPICS]
        self._unsettled = sum(one.pending + one.processing + one.delayed for one in stats)
        members = self._crew.members
        rows = [
            Row(
                one,
                done=sum(member.counts[one.topic] for member in members),
                rate=sum(member.rate(one.topic) for member in members),
            )
            for one in stats
        ]
        self._shown.show(
            View(time.monotonic() - self._started, rows, [self._state(one) for one in members])
        )
        return self._unsettled

    def _state(self, member: Member) -> str:
        if member is self._killed:
            state = "killed"
        elif member.ended is not None:
            state = "stopped cleanly"
        else:
            state = f"{len(member.running)} handlers run"
        return f"{member.name}  pid {member.pid}  {member.done.total()} done, {state}"

    async def _account(self, held: frozenset[str], begun_twice: frozenset[str]) -> Account:
        admin = self._mq.admin
        archived: dict[State, dict[str, str]] = {State.DEAD: {}, State.QUARANTINED: {}}
        violations: list[str] = []
        for topic in TOPICS:
            for state, ids in archived.items():
                page = await admin.list(topic, state, limit=1000)
                ids |= {message.id: message.reason or message.error for message in page.messages}
            violations += map(str, await admin.audit(topic))
        return Account(
            produced=frozenset(self._produced),
            doomed=DOOMED,
            done=self._crew.done(),
            dead=archived[State.DEAD],
            quarantined=archived[State.QUARANTINED],
            unsettled=self._unsettled,
            violations=tuple(violations),
            held=held,
            begun_twice=begun_twice,
        )
