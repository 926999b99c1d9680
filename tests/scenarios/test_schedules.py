"""Schedules over several processes: once per tick, through kills and clocks that are set."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING

import pytest

from mx_rmq import MessageQueue
from tests.lab.crew import PLAIN, History, Member, until
from tests.lab.servers import Kind, Server
from tests.lab.shims import SetClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECOND = "* * * * * *"
TICKS = 6


class Crew:
    """Worker processes on a server whose clock can be set."""

    def __init__(self, directory: Path) -> None:
        self.clock = SetClock(directory)
        self.server = Server(Kind.VALKEY_9_1, directory / "d", environment=self.clock.environment)
        self.history = History(directory / "history")
        self._directory = directory
        self.members: list[Member] = []

    async def add(self) -> None:
        member = Member(self.server.url, self._directory, lease=2.0, concurrency=10)
        self.members.append(member)
        await asyncio.to_thread(member.until_ready)

    def kill(self) -> None:
        alive = [member for member in self.members if member.is_alive()]
        random.choice(alive).end(signal.SIGKILL)

    async def until_more(self, name: str, count: int) -> None:
        await until(lambda: len(self.ticks(name)) >= count, 60)

    def ticks(self, name: str) -> list[int]:
        """Return the ticks of a schedule that were handled, in order."""
        ids = set(self.history.ids("end"))
        mine = [id for id in ids if id.endswith(f"@{name}")]
        return sorted(int(id.removeprefix("cron-").partition("@")[0]) // 1000 for id in mine)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(tmp_path)
    with crew.server:
        yield crew
        for member in crew.members:
            if member.is_alive():
                member.end(signal.SIGKILL)


async def produced(mq: MessageQueue) -> list[str]:
    """Return the id of every message that was ever produced, as the history has it."""
    found = await mq.store.caller.command("XRANGE", mq.store.keys.of(PLAIN).history, "-", "+")
    ids: list[str] = []
    for _, fields in found:
        pairs = (
            fields
            if isinstance(fields, dict)
            else dict(zip(fields[::2], fields[1::2], strict=True))
        )
        if pairs[b"what"] == b"produced":
            ids += pairs[b"ids"].decode().split(" ")
    return ids


@pytest.mark.timeout(180)
async def test_a_tick_fires_once_while_workers_are_killed(crew: Crew) -> None:
    async with MessageQueue(crew.server.url) as mq:
        for _ in range(3):
            await crew.add()
        await mq.admin.schedule("a", PLAIN, SECOND, {})
        await mq.admin.schedule("b", PLAIN, SECOND, {})
        for _ in range(3):
            seen = len(crew.ticks("a"))
            await crew.until_more("a", seen + TICKS // 3)
            crew.kill()
            await crew.add()
        assert await mq.admin.unschedule("a")
        gone_at = await mq.admin.now()
        last = len(crew.ticks("b"))
        await until(lambda: len(crew.ticks("b")) >= last + 3, 60)
        made = await produced(mq)
        assert len(made) == len(set(made))
        ticks = [
            int(id.removeprefix("cron-").partition("@")[0]) // 1000
            for id in made
            if id.endswith("@a")
        ]
        assert sorted(ticks) == list(range(min(ticks), max(ticks) + 1))  # and none was missed
        assert max(ticks) <= gone_at
        assert await mq.admin.audit(PLAIN) == []


@pytest.mark.timeout(240)
async def test_a_tick_fires_once_while_the_clock_is_set(crew: Crew) -> None:
    async with MessageQueue(crew.server.url) as mq:
        for _ in range(2):
            await crew.add()
        await mq.admin.schedule("a", PLAIN, SECOND, {}, missed="once")
        await until(lambda: len(crew.ticks("a")) >= 2, 60)
        for jump in (120.0, -5.0, 3600.0):
            crew.clock.set(crew.clock.seconds + jump)
            crew.kill()
            await crew.add()
            seen = len(crew.ticks("a"))
            await crew.until_more("a", seen + 2)
        made = await produced(mq)
        assert len(made) == len(set(made))
        assert await mq.admin.audit(PLAIN) == []
