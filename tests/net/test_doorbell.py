"""The doorbells, heard on one connection."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import ServerUnavailable
from mx_rmq.net.doorbell import Doorbell, Ring
from mx_rmq.store.store import Store
from tests.lab.messages import TOPIC, delayed, pending, take
from tests.lab.proxy import Proxy
from tests.lab.servers import Kind, chosen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1, Kind.REDIS_7_0))


@pytest.fixture
async def bell(store: Store) -> AsyncIterator[Doorbell]:
    bell = store.doorbell()
    yield bell
    await bell.close()


async def blocked(raw: Redis) -> bool:
    return bool((await raw.info("clients"))["blocked_clients"])


async def until_blocked(raw: Redis) -> None:
    async with asyncio.timeout(30):
        while not await blocked(raw):  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.002)


async def test_a_produce_rings(store: Store, bell: Doorbell) -> None:
    await pending(store)
    assert await bell.wait([TOPIC], [TOPIC], 5) == Ring(TOPIC, False)


async def test_an_earlier_due_time_rings(store: Store, bell: Doorbell) -> None:
    await delayed(store, 1000)
    assert await bell.wait([TOPIC], [TOPIC], 5) == Ring(TOPIC, True)


async def test_a_ring_that_comes_while_it_waits_is_heard(
    store: Store, bell: Doorbell, raw: Redis
) -> None:
    waiting = asyncio.create_task(bell.wait(["other", TOPIC], [], 30))
    await until_blocked(raw)
    await pending(store)
    assert await asyncio.wait_for(waiting, 20) == Ring(TOPIC, False)


async def test_no_ring_is_none_after_the_agreed_time(bell: Doorbell) -> None:
    begun = time.monotonic()
    assert await bell.wait([TOPIC], [TOPIC], 0.2) is None
    assert 0.15 < time.monotonic() - begun < 20


async def test_a_doorbell_that_is_not_listened_to_keeps_its_ring(
    store: Store, bell: Doorbell
) -> None:
    await pending(store)
    assert await bell.wait(["other"], ["other"], 0.1) is None
    assert await bell.wait([TOPIC], [], 5) == Ring(TOPIC, False)


async def test_one_of_two_listeners_hears_a_ring(store: Store, bell: Doorbell, raw: Redis) -> None:
    other = store.doorbell()
    try:
        waits = [asyncio.create_task(one.wait([TOPIC], [], 30)) for one in (bell, other)]
        await until_blocked(raw)
        await pending(store)
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in (bell, other):
            await one.unblock()
        heard = await asyncio.gather(*waits)
        assert sorted(heard, key=str) == [None, Ring(TOPIC, False)]
    finally:
        await other.close()


async def test_unblocking_ends_a_wait(bell: Doorbell, raw: Redis) -> None:
    waiting = asyncio.create_task(bell.wait([TOPIC], [], 30))
    await until_blocked(raw)
    await bell.unblock()
    assert await asyncio.wait_for(waiting, 20) is None


async def test_unblocking_ends_a_wait_that_has_not_reached_the_server_yet(
    bell: Doorbell,
) -> None:
    await bell.wait([TOPIC], [], 0.01)  # connected
    for _ in range(20):
        waiting = asyncio.create_task(bell.wait([TOPIC], [], 30))
        await asyncio.sleep(0)
        await bell.unblock()
        assert await asyncio.wait_for(waiting, 20) is None


async def test_unblocking_ends_a_wait_that_is_still_connecting(
    store: Store, server: Server, tmp_path: Path
) -> None:
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        await Store.open(proxy.url) as through,
    ):
        connecting, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            connecting.set()
            await go_on.wait()

        proxy.delay_reply(1, match=b"$2\r\nID\r\n", then=slow)
        bell = through.doorbell()
        waiting = asyncio.create_task(bell.wait([TOPIC], [], 60))
        await connecting.wait()
        unblocking = asyncio.create_task(bell.unblock())
        await asyncio.sleep(0.05)
        go_on.set()
        begun = time.monotonic()
        await waiting
        await unblocking
        await bell.close()
        assert time.monotonic() - begun < 30


async def test_unblocking_when_nobody_waits_does_nothing(store: Store, bell: Doorbell) -> None:
    await bell.unblock()
    await pending(store)
    await bell.unblock()
    assert await bell.wait([TOPIC], [], 5) == Ring(TOPIC, False)


async def test_a_cancelled_wait_leaves_no_reply_to_the_next_one(
    store: Store, bell: Doorbell, raw: Redis
) -> None:
    waiting = asyncio.create_task(bell.wait(["other"], [], 30))
    await until_blocked(raw)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await pending(store)
    assert await bell.wait([TOPIC], [], 5) == Ring(TOPIC, False)
    assert not await blocked(raw)


async def test_a_connection_that_breaks_is_told_and_the_next_wait_opens_another(
    store: Store, server: Server, tmp_path: Path
) -> None:
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        await Store.open(proxy.url) as through,
    ):
        bell = through.doorbell()
        proxy.cut_request(1, match=b"BLPOP")
        with pytest.raises(ServerUnavailable, match="cannot listen"):
            await bell.wait([TOPIC], [], 5)
        await pending(store)
        assert await bell.wait([TOPIC], [], 5) == Ring(TOPIC, False)
        await bell.close()


async def test_a_connection_that_stays_silent_for_too_long_is_given_up(
    store: Store, server: Server, tmp_path: Path
) -> None:
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        await Store.open(proxy.url) as through,
    ):
        bell = through.doorbell()
        proxy.hold_reply(1, match=b"BLPOP")
        begun = time.monotonic()
        with pytest.raises(ServerUnavailable):
            await bell.wait([TOPIC], [], 0.1)
        assert 2 <= time.monotonic() - begun < 30
        await bell.close()


async def test_a_ring_that_a_broken_connection_took_is_only_a_ring(
    store: Store, server: Server, tmp_path: Path
) -> None:
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        await Store.open(proxy.url) as through,
    ):
        bell = through.doorbell()
        await pending(store)
        proxy.cut_reply(1, match=b"BLPOP")
        with pytest.raises(ServerUnavailable):
            await bell.wait([TOPIC], [], 5)
        assert await bell.wait([TOPIC], [], 0.05) is None
        assert len(await take(store)) == 1
        await bell.close()


@pytest.mark.corrupts
async def test_a_broken_doorbell_does_not_deafen_the_others(
    store: Store, bell: Doorbell, raw: Redis
) -> None:
    await raw.set(store.keys.of("broken").doorbell, "no list")
    await pending(store)
    assert await bell.wait(["broken", TOPIC], [], 2) == Ring(TOPIC, False)


async def test_a_doorbell_that_rings_again_and_again_does_not_drown_the_others(
    raw: Redis, store: Store
) -> None:
    bell = store.doorbell()
    heard: list[Ring | None] = []
    keys = store.keys
    await raw.lpush(keys.of("b").doorbell, "1")
    await raw.lpush(keys.of("c").doorbell_delay, "1")
    for _ in range(4):
        await raw.lpush(keys.of("a").doorbell, "1")
        heard.append(await bell.wait(["a", "b"], ["c"], 1.0))
    await bell.close()
    assert Ring("b", delay=False) in heard
    assert Ring("c", delay=True) in heard
    await raw.delete(keys.of("a").doorbell)
