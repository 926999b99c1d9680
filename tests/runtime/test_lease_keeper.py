"""The lease keeper: also while the event loop stands still."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from redis import Redis as SyncRedis
from redis.asyncio import Redis

from mx_rmq import Delivery, Worker
from mx_rmq.core import events
from mx_rmq.core.errors import ServerUnavailable
from mx_rmq.core.message import State
from mx_rmq.runtime.lease_keeper import CHECK_IDLE_EVERY
from mx_rmq.store.store import Store
from tests.lab.proxy import Proxy
from tests.runtime.stage import Seen, on_a_server, queue, slots_of, until, until_so

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from mx_rmq import MessageQueue
    from mx_rmq.store.results import Leased
    from tests.lab.servers import Server

pytestmark = on_a_server

LEASE = 1.5
"""Seconds. A busy machine may keep a thread, or the server, from running for half of it."""


async def test_a_handler_that_outlives_its_lease_keeps_it(raw: Redis, server: Server) -> None:
    async with queue(server.url, lease=LEASE) as mq:
        seen, runs = Seen(mq.events), []

        @mq.handler("t")
        async def handle(payload: int) -> None:
            runs.append(payload)
            await asyncio.sleep(2.2 * LEASE)

        await mq.produce("t", 1)
        async with Worker(mq, name="w1"), Worker(mq, name="w2"):
            await seen.wait(events.Completed)
        assert runs == [1]
        assert seen.of(events.TakenOver) == []


async def test_what_waits_for_a_slot_keeps_its_lease(
    raw: Redis, server: Server, ten_ahead: None
) -> None:
    async with queue(server.url, lease=LEASE) as mq:
        seen, runs = Seen(mq.events), []

        @mq.handler("t")
        async def handle(payload: int) -> None:
            runs.append(payload)
            await asyncio.sleep(LEASE / 2)

        await mq.produce_many("t", range(5))
        async with Worker(mq, name="w1", concurrency=1):
            await seen.wait(events.Completed, 5)
        assert sorted(runs) == list(range(5))
        assert seen.of(events.TakenOver) == []


async def test_a_handler_that_blocks_the_loop_for_three_leases_is_not_taken_over(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, lease=0.5) as mq:
        seen, runs, took = Seen(mq.events), [], list[float]()

        @mq.handler("t")
        async def blocks_the_loop(payload: int) -> None:
            runs.append(payload)
            began = time.monotonic()
            time.sleep(1.6)
            took.append(time.monotonic() - began)

        await mq.produce("t", 1)
        async with Worker(mq, name="w1"):
            await seen.wait(events.Completed)
        assert runs == [1]
        assert seen.of(events.TakenOver) == []
        assert seen.of(events.LeaseLost) == []
        (blocked,) = seen.of(events.LoopBlocked)
        assert blocked.handler.endswith("blocks_the_loop")
        assert "time.sleep(1.6)" in blocked.stack
        assert 1 <= blocked.seconds < took[0] + CHECK_IDLE_EVERY


async def test_the_loop_is_reported_again_when_it_is_blocked_again(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url) as mq:
        seen = Seen(mq.events)

        @mq.handler("t")
        async def handle(payload: int) -> None:
            assert worker._engine is not None
            keeper = worker._engine._lease_keeper
            for number in range(2):
                deadline = time.monotonic() + 10
                while time.monotonic() < deadline and len(seen.of(events.LoopBlocked)) <= number:
                    time.sleep(0.01)
                await until(lambda: not keeper._reported)

        async with Worker(mq) as worker:
            await mq.produce("t", 1)
            await seen.wait(events.Completed)
        assert len(seen.of(events.LoopBlocked)) == 2


async def test_code_that_blocks_the_loop_is_told_from_a_handler(raw: Redis, server: Server) -> None:
    async with queue(server.url) as mq:
        seen = Seen(mq.events)
        begun, ended = asyncio.Event(), asyncio.Event()

        @mq.handler("t")
        async def handle(payload: int) -> None:
            begun.set()
            await ended.wait()

        async with Worker(mq):
            await mq.produce("t", 1)
            await begun.wait()
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and not seen.of(events.LoopBlocked):
                time.sleep(0.01)
            ended.set()
        assert seen.of(events.LoopBlocked)[0].handler == "code outside of handlers"


async def test_a_lost_lease_cancels_the_handler_and_is_told(raw: Redis, server: Server) -> None:
    async with queue(server.url, lease=0.6) as mq:
        seen, ended = Seen(mq.events), []
        running = asyncio.Event()

        @mq.handler("t")
        async def handle(payload: int) -> None:
            running.set()
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        id = await mq.produce("t", 1)
        async with Worker(mq, name="w1"):
            await running.wait()
            view = await mq.admin.get("t", id)
            assert view is not None
            token = view.token
            await steal(mq, raw, id)
            lost = await seen.one(events.LeaseLost)
            assert (lost.id, lost.fence) == (id, token)
            await until(lambda: ended)
        view = await mq.admin.get("t", id)
        assert view is not None
        assert (view.state, view.worker, view.attempts) == (State.PROCESSING, "thief", 0)
        assert seen.of(events.Completed) == []


async def test_a_message_whose_lease_was_lost_while_it_waited_is_never_run(
    raw: Redis, server: Server, ten_ahead: None
) -> None:
    async with queue(server.url, lease=0.6) as mq:
        seen, runs = Seen(mq.events), []
        gate = asyncio.Event()

        @mq.handler("t")
        async def handle(payload: int) -> None:
            runs.append(payload)
            await gate.wait()

        async with Worker(mq, name="w1", concurrency=1) as worker:
            await mq.produce_many("t", range(5))
            await until(lambda: len(runs) == 1)
            slots = slots_of(worker)
            await until(lambda: slots.waiting > 0)
            waiting = next(held for held in slots.held if held.started_at is None)
            taken = await steal(mq, raw, waiting.leased.id)
            await seen.wait(events.LeaseLost, id=waiting.leased.id)
            gate.set()
            await seen.wait(events.Completed, 4)
        assert len(runs) == 4
        assert await mq.store.complete_message("t", "thief", [taken]) == ["1"]


async def test_an_idle_keeper_sends_nothing(raw: Redis, server: Server, tmp_path: Path) -> None:
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        queue(proxy.url, lease=0.3) as mq,
    ):
        seen, sha = Seen(mq.events), _sha("extend_lease")

        @mq.handler("t")
        async def handle(payload: int) -> None:
            before = proxy.count(sha)
            await until(lambda: proxy.count(sha) > before)

        async with Worker(mq):
            await mq.produce("t", 1)
            await seen.wait(events.Completed, 1)
            await asyncio.sleep(0.2)  # one may be on its way
            extended = proxy.count(sha)
            await asyncio.sleep(0.7)
            assert proxy.count(sha) == extended
            await mq.produce("t", 1)
            await seen.wait(events.Completed, 2)


async def test_leases_survive_a_server_that_is_away_for_less_than_them(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    proxy = Proxy(server.socket, tmp_path / "p.sock")
    async with proxy, queue(proxy.url, lease=2.0) as mq:
        seen, runs = Seen(mq.events), []
        running, gate = asyncio.Event(), asyncio.Event()

        @mq.handler("t")
        async def handle(payload: int) -> None:
            runs.append(payload)
            running.set()
            await gate.wait()

        await mq.produce("t", 1)
        async with Worker(mq):
            await running.wait()
            await proxy.close()
            await asyncio.sleep(1.0)
            await proxy.__aenter__()
            await asyncio.sleep(1.5)
            gate.set()
            await seen.wait(events.Completed)
        assert runs == [1]
        assert seen.of(events.LeaseLost) == []


async def test_a_reply_that_is_lost_costs_nobody_a_lease(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        queue(proxy.url, lease=3.0) as mq,
    ):
        seen, gate = Seen(mq.events), asyncio.Event()

        @mq.handler("t")
        async def handle(payload: int) -> None:
            await gate.wait()

        extend = _sha("extend_lease")
        proxy.hold_reply(match=extend)
        await mq.produce("t", 1)
        async with Worker(mq):
            await until(lambda: proxy.count(extend) >= 4)
            gate.set()
            await seen.wait(events.Completed)
        assert seen.of(events.TakenOver) == []


async def test_a_server_that_is_silent_for_longer_than_a_lease_costs_nobody_his_message(
    raw: Redis, server: Server
) -> None:
    lease = 4.0
    async with queue(server.url, lease=lease) as holder, queue(server.url, lease=lease) as other:
        runs: list[int] = []
        gate = asyncio.Event()

        async def handle(payload: int) -> None:
            runs.append(payload)
            await gate.wait()

        for mq in (holder, other):
            for topic in ("a", "b"):
                mq.handler(topic)(handle)
        seen = [Seen(mq.events) for mq in (holder, other)]
        async with Worker(holder), Worker(other):
            for number in range(3):  # so that their leases do not run out all at once
                for topic in ("a", "b"):
                    await holder.produce(topic, number)
                await asyncio.sleep(lease / 8)
            await until(lambda: len(runs) == 6)
            await raw.client_pause(round(lease * 1200))
            async with Redis.from_url(server.url, socket_timeout=60) as patient:
                await patient.ping()  # answered when it is over
            await asyncio.sleep(lease)  # if anybody took something over, it would be now
            gate.set()
            await until(lambda: sum(len(one.of(events.Completed)) for one in seen) == 6)
        assert sorted(runs) == [0, 0, 1, 1, 2, 2]
        assert [event for one in seen for event in one.of(events.TakenOver)] == []


async def test_a_broken_topic_does_not_cost_the_others_their_leases(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, lease=0.6, audit=False) as mq:
        running = []
        gate = asyncio.Event()

        async def handle(payload: str) -> None:
            running.append(payload)
            await gate.wait()

        mq.handler("broken")(handle)
        mq.handler("whole")(handle)
        async with Worker(mq, grace=0):
            await mq.produce("broken", "broken")
            await until(lambda: "broken" in running)
            await mq.produce("whole", "whole")
            await until(lambda: "whole" in running)
            broken, whole = mq.store.keys.of("broken"), mq.store.keys.of("whole")
            await raw.delete(broken.expire_monitor)
            await raw.set(broken.expire_monitor, "no sorted set")
            found: Any = await raw.zrange(whole.expire_monitor, 0, -1, withscores=True)
            ((id, before),) = found

            async def is_extended() -> bool:
                return bool((await raw.zscore(whole.expire_monitor, id) or 0) > before)

            await until_so(is_extended)
            gate.set()


async def test_a_keeper_that_ends_by_itself_while_it_is_told_to_ends_all_the_same(
    raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with queue(server.url) as mq:
        mq.handler("t")(lambda payload: None)
        async with Worker(mq) as worker:
            assert worker._engine is not None
            keeper = worker._engine._lease_keeper
            assert keeper._thread is not None
            loop = keeper._thread.loop
            assert loop is not None
            (thread,) = (one for one in threading.enumerate() if one.name == "mx-rmq-keeper")
            tell = loop.call_soon_threadsafe

            def too_late(*args: Any) -> Any:
                thread.join()
                return tell(*args)

            monkeypatch.setattr(loop, "call_soon_threadsafe", too_late)
        assert loop.is_closed()


async def steal(mq: MessageQueue, raw: Redis, id: str) -> Leased:
    """Let a lease run out, and take the message over for ten minutes."""
    async with asyncio.timeout(5):
        while True:
            await raw.zadd(mq.store.keys.of("t").expire_monitor, {id: 1}, xx=True)
            taken = await mq.store.handle_timeout_message("t", "thief", count=1, recovery=600_000)
            if taken.messages and taken.messages[0].id == id:
                return taken.messages[0]


def _sha(name: str) -> bytes:
    from mx_rmq.store.script import load

    return load(name).sha.encode()


async def test_what_waits_behind_a_handler_that_blocks_the_loop_is_handed_back(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, lease=0.5) as mq:
        seen = Seen(mq.events)
        free: list[Any] = []
        runs: list[tuple[int, int]] = []

        @mq.handler("t")
        async def handle(payload: int, delivery: Delivery) -> None:
            runs.append((payload, delivery.attempt))
            if len(runs) > 1:
                return
            with SyncRedis.from_url(server.url) as other:  # another worker would see this
                deadline = time.monotonic() + 8
                while time.monotonic() < deadline and len(free) < 9:
                    time.sleep(0.02)
                    free[:] = other.lrange(mq.store.keys.of("t").pending, 0, -1)

        await mq.produce_many("t", range(10))
        async with Worker(mq, concurrency=10):
            await seen.wait(events.Completed, 10)
        assert len(free) == 9
        assert sorted(runs) == [(number, 1) for number in range(10)]
        assert seen.of(events.TakenOver) == []


async def test_what_cannot_be_handed_back_at_once_is_handed_back_later(
    raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, tries = Store.release_message, 0

    async def away_at_first(self: Store, *args: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ServerUnavailable("for a moment")
        return await release(self, *args)

    monkeypatch.setattr(Store, "release_message", away_at_first)
    async with queue(server.url, lease=0.5) as mq:
        seen, free = Seen(mq.events), list[Any]()

        @mq.handler("t")
        async def handle(payload: int) -> None:
            if free:
                return
            with SyncRedis.from_url(server.url) as other:
                deadline = time.monotonic() + 8
                while time.monotonic() < deadline and len(free) < 2:
                    time.sleep(0.02)
                    free[:] = other.lrange(mq.store.keys.of("t").pending, 0, -1)

        await mq.produce_many("t", range(3))
        async with Worker(mq):
            await seen.wait(events.Completed, 3)
        assert len(free) == 2


async def test_a_handler_that_cleans_up_after_its_timeout_keeps_its_lease(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, lease=LEASE) as mq:
        seen, steps = Seen(mq.events), []

        @mq.handler("t", timeout=0.1, retry=0)
        async def handle(payload: int, delivery: Delivery) -> None:
            steps.append(f"start {delivery.attempt}")
            if delivery.attempt == 1:
                try:
                    await asyncio.sleep(60)
                finally:
                    await asyncio.sleep(2.2 * LEASE)
                    steps.append("clean")

        await mq.produce("t", 1)
        async with Worker(mq, name="w1"), Worker(mq, name="w2"):
            await seen.wait(events.Completed)
        assert steps == ["start 1", "clean", "start 2"]
        assert seen.of(events.TakenOver) == []


async def test_a_handler_that_cleans_up_while_its_worker_stops_keeps_its_lease(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, lease=LEASE) as mq:
        seen, steps = Seen(mq.events), []

        @mq.handler("t")
        async def handle(payload: int, delivery: Delivery) -> None:
            steps.append(f"start {delivery.attempt}")
            if len(steps) == 1:
                try:
                    await asyncio.sleep(60)
                finally:
                    await asyncio.sleep(2.2 * LEASE)
                    steps.append("clean")

        await mq.produce("t", 1)
        stops = Worker(mq, name="stops", grace=0)
        await stops.start()
        await until(lambda: steps)
        async with Worker(mq, name="stays"):
            assert await stops.stop()
            await seen.wait(events.Completed)
        assert steps == ["start 1", "clean", "start 1"]  # handed back uncounted
        assert seen.of(events.TakenOver) == []
