"""What a server that is killed forgets when its disk is slow, as docs/guarantees.md says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from mx_rmq import MessageQueue
from tests.lab.servers import Kind, Server, chosen
from tests.lab.shims import FsyncLog

if TYPE_CHECKING:
    from pathlib import Path

SLOW = {"always": 0.1, "everysec": 0.9}
"""Seconds that every fsync takes longer."""


@pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1))
@pytest.mark.parametrize("fsync", SLOW)
async def test_only_everysec_forgets_what_was_stored_while_an_fsync_was_under_way(
    kind: Kind, fsync: str, short_path: Path
) -> None:
    slow = FsyncLog(short_path / "slow", delay=SLOW[fsync]).environment
    options = ("--appendonly", "yes", "--appendfsync", fsync)
    server = Server(kind, short_path / "server", *options, environment=slow).start()
    stored = 0
    try:
        async with MessageQueue(server.url) as mq, Redis.from_url(server.url) as raw:
            for _ in range(3):
                await mq.produce("t", stored)
                stored += 1
            while fsync == "everysec" and not (await raw.info())["aof_buffer_length"]:
                await mq.produce("t", stored)
                stored += 1
            server.kill()  # before the fsync ends, and what waits for it is written
        server.start()
        async with MessageQueue(server.url) as mq:
            left = (await mq.admin.stats("t")).pending if await mq.admin.topics() else 0
            assert left == stored if fsync == "always" else left < stored
    finally:
        server.kill()
