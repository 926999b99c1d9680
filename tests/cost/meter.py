"""Counts what messages cost: calls to the server, commands inside them, function calls of ours.

Counts say the same on a busy machine as on an idle one, if nothing that is counted depends on
time. Two things do. A worker takes ahead what it finishes in 20 ms, so a slow one makes more
calls; therefore its stopwatch is replaced here: a handler takes 100 µs, and nothing else takes any.
And it looks around in all topics every ten seconds, tells of itself, and hands back what has
waited for a slot for a second; here it does not.
"""

from __future__ import annotations

import asyncio
import cProfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import mx_rmq
from mx_rmq import MessageQueue, Worker
from mx_rmq.runtime import caretaker, consumer, registry, site, slots
from mx_rmq.runtime.slots import Slots
from mx_rmq.store.script import load, names
from tests.runtime.stage import commands, slots_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence
    from types import CodeType

    import pytest
    from redis.asyncio import Redis

OURS: Final = str(Path(mx_rmq.__file__).parent)

INSIDE: Final = frozenset(
    command.lower() for name in names() if name != "preflight" for command in load(name).commands
)
"""The commands that scripts run."""

WITHIN: Final = 60.0
"""Seconds after which messages that are not handled are stuck."""


class Cost(NamedTuple):
    """What one message costs, or may cost."""

    calls: float
    """Script calls: EVALSHA."""
    commands: float
    """Commands that the scripts run inside."""
    functions: float
    """Calls of functions, in Python or C, that our code makes or that lead into it. Those in the
    event loop's thread; what asyncio does by itself is not ours and depends on the moment."""


async def cost_of(raw: Redis, messages: int, work: Awaitable[object]) -> Cost:
    """Do some work with so many messages, and return what each of them cost."""
    before = await commands(raw)
    profile = cProfile.Profile()
    profile.enable()
    try:
        await work
    finally:
        profile.disable()
    after = await commands(raw)
    spent = {name: count - before.get(name, 0) for name, count in after.items()}
    inside = sum(count for name, count in spent.items() if name.partition("|")[0] in INSIDE)
    return Cost(
        calls=(spent.get("evalsha", 0) + spent.get("eval", 0)) / messages,
        commands=inside / messages,
        functions=_functions(profile) / messages,
    )


def _functions(profile: cProfile.Profile) -> int:
    total = 0
    for entry in profile.getstats():
        if _is_ours(entry.code):
            total += entry.callcount
            total += sum(one.callcount for one in entry.calls or () if not _is_ours(one.code))
    return total


def _is_ours(code: CodeType | str) -> bool:
    return not isinstance(code, str) and code.co_filename.startswith(OURS)


class Stopwatch:
    """Instead of `time`, in those who measure how quick a worker is."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.handled = 0
        for module in (slots, consumer):
            patch.setattr(module, "time", self)
        patch.setattr(site, "SURVEY_EVERY", 3600.0)
        patch.setattr(caretaker, "SPREAD", 3600.0)
        patch.setattr(registry, "BEAT", 3600.0)
        patch.setattr(consumer, "WAIT_HERE", 3600.0)

    def monotonic(self) -> float:
        return self.handled * 100e-6


class Handlers:
    """Handlers that do nothing, and know when all messages have come."""

    def __init__(self, mq: MessageQueue, watch: Stopwatch) -> None:
        self._mq = mq
        self._watch = watch
        self._left = 0
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        self._slots = Slots(concurrency=1, prefetch=0)

    def declare(self, *topics: str, plain: bool = False) -> None:
        """Declare a handler of each topic, async or plain."""

        async def nothing(payload: Any) -> None:
            self._note()

        def plain_nothing(payload: Any) -> None:
            self._note()

        for topic in topics:
            self._mq.handler(topic)(plain_nothing if plain else nothing)

    async def handle(self, messages: int, topics: Sequence[str], concurrency: int = 200) -> None:
        """Let a worker handle so many messages, which are there already, and settle them."""
        self._left = messages
        self._done.clear()
        async with Worker(self._mq, concurrency=concurrency, topics=topics) as worker:
            async with asyncio.timeout(WITHIN):
                await self._done.wait()
            await until(lambda: not slots_of(worker).held)

    @asynccontextmanager
    async def serve(self, raw: Redis, topics: Sequence[str]) -> AsyncIterator[None]:
        """Let a worker wait for messages; what it does at its start is over then."""
        async with Worker(self._mq, concurrency=200, topics=topics) as worker:
            self._slots = slots_of(worker)
            calls, before = 0, -1
            while calls != before:
                await asyncio.sleep(0.3)
                before, calls = calls, (await commands(raw))["evalsha"]
            yield

    async def one_by_one(self, topics: Sequence[str]) -> None:
        """Produce a message to each of these topics, each when the one before is completed."""
        for topic in topics:
            self._left = 1
            self._done.clear()
            await self._mq.produce(topic, None)
            async with asyncio.timeout(WITHIN):
                await self._done.wait()
            await until(lambda: not self._slots.held)

    def _note(self) -> None:
        self._watch.handled += 1
        self._left -= 1
        if self._left == 0:
            self._loop.call_soon_threadsafe(self._done.set)
