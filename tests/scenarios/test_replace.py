"""Updates that replace each other, while their workers are killed: the newest is never lost."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import MessageQueue
from tests.lab import crew
from tests.lab.appended import whole_lines
from tests.lab.releases import ROOT, TOPIC, start
from tests.lab.servers import Kind, chosen

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.servers import Server

IDS = 12
ROUNDS = 60

until = partial(crew.until, seconds=60)


@pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1, Kind.REDIS_7_0))
async def test_the_newest_update_of_each_id_is_handled_though_workers_are_killed(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    history = tmp_path / "history"
    history.touch()
    workers: list[Any] = []

    def work() -> None:
        workers.append(start(ROOT / "src", "this", "worker", server.url, history))

    def handled() -> list[int]:
        return [int(line.split()[2]) for line in whole_lines(history)]

    async def is_idle() -> bool:
        stats = await mq.admin.stats(TOPIC)
        return not (stats.pending or stats.delayed or stats.processing)

    try:
        async with MessageQueue(server.url, lease=1.0) as mq:
            for _ in range(2):
                work()
            for number in range(IDS * ROUNDS):
                payload = {"number": number, "fails": 0, "work": number % 5 / 100}
                delay = 0.05 if number % 7 == 0 else None
                id = f"own{number % IDS}"
                await mq.produce(TOPIC, payload, id=id, delay=delay, on_duplicate="replace")
                await asyncio.sleep(0.003)
                if number % (IDS * ROUNDS // 4) == IDS * 10:
                    await until(handled)
                    workers[-2].send_signal(signal.SIGKILL)
                    work()
            await until(is_idle)
            newest = set(range(IDS * (ROUNDS - 1), IDS * ROUNDS))
            assert newest <= {*handled()}
            stats = await mq.admin.stats(TOPIC)
            assert (stats.dead, stats.quarantined, stats.dropped) == (0, 0, 0)
            assert stats.totals.replaced > 0
            assert await mq.admin.audit(TOPIC) == []
    finally:
        for one in workers:
            one.kill()
            one.wait(20)
