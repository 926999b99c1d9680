"""Channels, heard on connections of their own."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from mx_rmq.net import subscription as module
from mx_rmq.net.subscription import Subscription
from mx_rmq.store.store import Store
from tests.lab.cluster import Cluster
from tests.lab.servers import Kind, chosen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1, Kind.REDIS_7_0))

FIRST, SECOND = "mx-rmq:{a}:results", "mx-rmq:{b}:results"


class Ear:
    """A subscription, and what it has reported."""

    def __init__(self, store: Store) -> None:
        self.news: list[tuple[str, bytes]] = []
        self.gaps: list[str] = []
        self.changed = asyncio.Event()
        self.subscription = Subscription(store.caller, self._on_message, self._on_gap)

    def _on_message(self, channel: str, data: bytes) -> None:
        self.news.append((channel, data))
        self.changed.set()

    def _on_gap(self, channel: str) -> None:
        self.gaps.append(channel)
        self.changed.set()

    async def until(self, *, news: int = 0, gaps: int = 0) -> None:
        async with asyncio.timeout(30):
            while len(self.news) < news or len(self.gaps) < gaps:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def ear(store: Store) -> AsyncIterator[Ear]:
    ear = Ear(store)
    yield ear
    await ear.subscription.close()


async def listeners(raw: Redis) -> int:
    return len(await raw.client_list(_type="pubsub"))


async def test_a_message_on_an_added_channel_is_heard(ear: Ear, raw: Redis) -> None:
    assert await ear.subscription.add(FIRST)
    assert await raw.publish(FIRST, b"\x00one") == 1
    await ear.until(news=1)
    assert ear.news == [(FIRST, b"\x00one")]
    assert ear.gaps == []


async def test_many_channels_share_one_connection(ear: Ear, raw: Redis) -> None:
    channels = [f"mx-rmq:{{t{n}}}:results" for n in range(50)]
    assert all(await asyncio.gather(*map(ear.subscription.add, channels)))
    assert await listeners(raw) == 1
    for channel in channels:
        await raw.publish(channel, channel)
    await ear.until(news=50)
    assert sorted(ear.news) == sorted((channel, channel.encode()) for channel in channels)


async def test_those_who_add_the_same_channel_at_once_all_hear_it(ear: Ear, raw: Redis) -> None:
    assert await asyncio.gather(*(ear.subscription.add(FIRST) for _ in range(20))) == [True] * 20
    assert await raw.publish(FIRST, b"one") == 1


async def test_a_dropped_channel_is_not_heard_any_more_and_the_other_one_is(
    ear: Ear, raw: Redis
) -> None:
    await ear.subscription.add(FIRST)
    await ear.subscription.add(SECOND)
    ear.subscription.drop(FIRST)
    assert not ear.subscription.hears(FIRST)
    await raw.publish(FIRST, b"one")
    await raw.publish(SECOND, b"two")
    await ear.until(news=1)
    assert ear.news == [(SECOND, b"two")]


async def test_without_channels_there_is_no_connection(ear: Ear, raw: Redis) -> None:
    assert await ear.subscription.add(FIRST)
    ear.subscription.drop(FIRST)
    async with asyncio.timeout(30):
        while await listeners(raw):  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.002)
    assert await ear.subscription.add(FIRST)
    assert await raw.publish(FIRST, b"again") == 1


async def test_after_a_broken_connection_it_listens_again_and_tells_of_the_gap(
    ear: Ear, raw: Redis
) -> None:
    await ear.subscription.add(FIRST)
    await ear.subscription.add(SECOND)
    await raw.client_kill_filter(_type="pubsub")
    await ear.until(gaps=2)
    assert sorted(ear.gaps) == [FIRST, SECOND]
    assert await raw.publish(SECOND, b"two") == 1
    await ear.until(news=1)


async def test_a_connection_on_which_the_server_is_silent_is_replaced(
    ear: Ear, server: Server, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PING_EVERY", 0.05)
    monkeypatch.setattr(module, "WITHIN", 0.3)
    await ear.subscription.add(FIRST)
    os.kill(server.pid, signal.SIGSTOP)
    while ear.subscription.hears(FIRST):  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0.01)
    os.kill(server.pid, signal.SIGCONT)
    await ear.until(gaps=1)
    async with asyncio.timeout(30):
        while await raw.publish(FIRST, b"one") != 1:  # noqa: ASYNC110 - the old one closes later
            await asyncio.sleep(0.01)
    await ear.until(news=1)


async def test_a_user_who_may_not_listen_is_told_so_once_and_hears_nothing(
    store: Store, server: Server, raw: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    run = raw.execute_command
    rules = ("on", ">p", "~*", "+@all", "resetchannels", f"&{SECOND}")
    await run("ACL", "SETUSER", "deaf", *rules)  # type: ignore[no-untyped-call]
    address = server.url.replace("unix://", "unix://deaf:p@")
    async with await Store.open(address) as limited:
        ear = Ear(limited)
        assert not await ear.subscription.add(FIRST)
        assert await ear.subscription.add(SECOND)
        assert not await ear.subscription.add(FIRST)
        assert await raw.publish(SECOND, b"two") == 1
        await ear.until(news=1)
        await ear.subscription.close()
    assert caplog.text.count("cannot listen to") == 1
    await run("ACL", "DELUSER", "deaf")  # type: ignore[no-untyped-call]


async def test_it_does_not_add_channels_after_it_was_closed(ear: Ear, raw: Redis) -> None:
    await ear.subscription.add(FIRST)
    await ear.subscription.close()
    assert not await ear.subscription.add(FIRST)
    assert not await ear.subscription.add(SECOND)
    assert await listeners(raw) == 0


async def test_a_cluster_has_one_connection_per_node(tmp_path: Path, kind: Kind) -> None:
    async with Cluster(tmp_path, kind=kind) as cluster, await Store.open(cluster.url) as store:
        ear = Ear(store)
        channels = [f"mx-rmq:{{t{n}}}:results" for n in range(30)]
        assert all(await asyncio.gather(*map(ear.subscription.add, channels)))
        assert len(ear.subscription._lines) == len(store.caller.servers.nodes())
        for channel in channels:
            await store.caller.command("PUBLISH", channel, channel)
        await ear.until(news=30)
        assert sorted(channel for channel, _ in ear.news) == sorted(channels)
        await ear.subscription.close()
