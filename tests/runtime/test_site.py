"""A site and the dispatcher: from a ring to messages in local slots."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.status import Kept
from mx_rmq.runtime.dispatcher import Dispatcher
from mx_rmq.runtime.doorbell_listener import LONGEST_WAIT, MAX_TOPICS, WAIT, DoorbellListener
from mx_rmq.runtime.event_bus import Events
from mx_rmq.runtime.janitor import OFTEN, RESULTS_EVERY, Janitor
from mx_rmq.runtime.scheduler import STAND_IN
from mx_rmq.runtime.site import SURVEY_EVERY, Site
from mx_rmq.store.store import Store
from tests.lab.messages import TOPIC, dead, delayed, draft, leased, pending
from tests.lab.proxy import Proxy
from tests.runtime.stage import handler, on_servers, recovery, slots_for, take_in, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq.runtime.slots import TopicSlots
    from tests.lab.clock import Clock
    from tests.lab.servers import Server

pytestmark = on_servers

steady = pytest.mark.usefixtures("steady")


class Post:
    """A site and a dispatcher, and nobody who runs anything."""

    def __init__(
        self,
        store: Store,
        *topics: str,
        concurrency: int = 10,
        lease: float = 30,
        ordered: bool = False,
    ) -> None:
        options = {"partitions": 1, "concurrency": 1} if ordered else {}
        handlers = {topic: handler(topic, **options) for topic in topics or (TOPIC,)}
        self.store = store
        self.slots = slots_for(handlers.values(), concurrency=concurrency)
        self.quiet = 0
        self.taken = 0
        self.dispatcher = Dispatcher(
            store,
            self.slots,
            worker="w1",
            lease=30_000,
        )
        consumer: Any = self
        self.dispatcher.consumer = consumer
        self._listen_again = self.dispatcher.listen_again
        self.dispatcher.listen_again = self._on_quiet  # type: ignore[method-assign]
        self.site = Site(
            store,
            0,
            self.dispatcher,
            recovery(store, Events(), "w1", lease),
            Events(),
            (),
            lease=lease,
        )
        self.site.handlers.update(handlers)
        self.scheduler, self.monitor = self.site.scheduler, self.site.monitor
        for topic in handlers:
            self.scheduler.on_ring(topic)
        self.listener = DoorbellListener(store, store.doorbell(), self.dispatcher, self.scheduler)
        self.listener.topics |= self.slots.topics

    def start_ready(self) -> None:
        """Stand in for the consumer."""
        self.taken += 1

    def _on_quiet(self, topic: TopicSlots) -> None:
        self.quiet += 1
        self._listen_again(topic)

    def listens_to(self) -> list[str]:
        skipped = self.dispatcher.to_skip(self.slots.topics.values())
        return [name for name, topic in self.slots.topics.items() if topic not in skipped]

    async def close(self) -> None:
        await self.listener.stop()
        await self.site.stop_taking()
        await self.dispatcher.stop(5)


@pytest.fixture
async def post(store: Store) -> AsyncIterator[Post]:
    post = Post(store)
    yield post
    await post.close()


async def until_blocked(raw: Redis) -> None:
    async with asyncio.timeout(5):
        while not (await raw.info("clients"))["blocked_clients"]:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.002)


# the dispatcher


async def test_room_that_a_topic_did_not_need_goes_to_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = Post(store, TOPIC, "empty", concurrency=4)
    dispatch, asked, answer = store.dispatch_message, [], asyncio.Event()

    async def answer_late(topic: str, *args: Any, **options: Any) -> Any:
        asked.append(topic)
        if topic == "empty":
            await answer.wait()
        return await dispatch(topic, *args, **options)

    monkeypatch.setattr(store, "dispatch_message", answer_late)
    take_in(post.slots, post.slots.topics[TOPIC], 1)  # so it has no claim to a slot
    await pending(store, 2)
    post.dispatcher.wake("empty")
    await until(lambda: asked)
    post.dispatcher.wake(TOPIC)
    assert asked == ["empty"]  # which has asked for all the room that there is
    answer.set()
    await until(lambda: len(post.slots.held) == 3, within=5)
    for held in list(post.slots.held):
        post.slots.forget_waiting(held)
    await post.close()


async def test_a_topic_that_is_ready_is_taken_from_until_there_is_no_room(post: Post) -> None:
    await pending(post.store, 25)
    post.dispatcher.wake(TOPIC)
    await until(lambda: len(post.slots.held) == 10)
    await asyncio.sleep(0.02)
    assert len(post.slots.held) == 10
    assert post.taken >= 1
    assert post.listens_to() == []


async def test_when_room_is_made_more_is_taken(post: Post) -> None:
    await pending(post.store, 12)
    post.dispatcher.wake(TOPIC)
    await until(lambda: len(post.slots.held) == 10)
    for held in list(post.slots.held)[:5]:
        post.slots.topics[TOPIC].waiting.remove(held)
        post.slots.forget(held)
    post.dispatcher.fill(post.slots.topics[TOPIC])
    await until(lambda: len(post.slots.held) == 7)
    await until(lambda: post.quiet)
    assert post.listens_to() == [TOPIC]


async def test_an_answer_that_is_not_full_makes_the_topic_quiet(post: Post) -> None:
    await pending(post.store, 3)
    assert await post.dispatcher.take(TOPIC)
    assert len(post.slots.held) == 3
    assert post.quiet == 1
    assert post.slots.backlog == {}


async def test_without_room_nothing_is_asked_for(store: Store) -> None:
    post = Post(store, concurrency=1)
    await pending(store, 2)
    assert await post.dispatcher.take(TOPIC)
    assert not await post.dispatcher.take(TOPIC)
    assert len(post.slots.held) == 1
    await post.close()


async def test_a_dispatch_that_fails_is_made_again_and_reserves_nothing(
    store: Store, server: Server, clock: Clock, tmp_path: Path
) -> None:
    await pending(store, 3)
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        await Store.open(proxy.url, clock=clock, patience=0) as through,
    ):
        post = Post(through)
        proxy.cut_request(2)
        post.dispatcher.wake(TOPIC)
        await until(lambda: len(post.slots.held) == 3)
        assert post.slots.topics[TOPIC].committed == 3
        await post.close()


async def test_a_stopped_dispatcher_asks_for_nothing_more_but_keeps_what_still_comes(
    post: Post,
) -> None:
    await pending(post.store, 4)
    taking = asyncio.create_task(post.dispatcher.take(TOPIC))
    await asyncio.sleep(0)
    await post.dispatcher.stop(5)
    assert await taking
    assert len(post.slots.held) == 4
    await pending(post.store, 4)
    post.dispatcher.wake(TOPIC)
    assert not await post.dispatcher.take(TOPIC)
    assert len(post.slots.held) == 4


async def test_of_an_ordered_topic_nothing_is_taken_while_another_worker_has_something(
    store: Store,
) -> None:
    post = Post(store, concurrency=10, ordered=True)
    (theirs,) = await leased(store, worker="w2")
    waiting = await pending(store, 2)
    assert await post.dispatcher.take(TOPIC)
    assert post.slots.held == {}
    assert await store.complete_message(TOPIC, "w2", [theirs]) == ["1"]
    assert await post.dispatcher.take(TOPIC)
    (held,) = post.slots.held
    assert held.leased.id == waiting[0]
    await post.close()


# the site


async def test_a_ring_reaches_the_dispatcher(post: Post) -> None:
    await pending(post.store, 2)
    assert await post.listener.listen() == 0.0
    assert len(post.slots.held) == 2


@steady
async def test_a_ring_of_a_due_time_reaches_the_scheduler(post: Post) -> None:
    assert await post.scheduler.step() is None
    await delayed(post.store, 7000)
    await post.listener.listen()
    assert await post.scheduler.step() == pytest.approx(7, abs=0.1)


async def test_a_ring_without_room_is_given_back_and_not_heard_again_by_who_gave_it(
    store: Store, raw: Redis
) -> None:
    post = Post(store, concurrency=1)
    await pending(store, 3)

    async def fill_up(*_: Any) -> bool:
        return False

    post.dispatcher.take = fill_up  # type: ignore[assignment,method-assign]
    post.slots.reserve(post.slots.topics[TOPIC], 0)
    await post.listener.listen()
    assert await raw.llen(store.keys.of(TOPIC).doorbell) == 1
    assert post.slots.topics[TOPIC] in post.slots.backlog
    assert TOPIC not in post.listens_to()
    await post.close()


async def test_a_topic_that_falls_quiet_is_heard_at_once(store: Store, raw: Redis) -> None:
    post = Post(store, TOPIC, "other", concurrency=4)
    post.slots.backlog[post.slots.topics[TOPIC]] = None  # something is known to wait
    listening = asyncio.create_task(post.listener.listen())
    await until_blocked(raw)
    post.slots.backlog.clear()
    post.dispatcher.listen_again(post.slots.topics[TOPIC])
    begun = time.monotonic()
    await asyncio.wait_for(listening, 2)
    assert time.monotonic() - begun < WAIT / 2
    listening = asyncio.create_task(post.listener.listen())
    await until_blocked(raw)
    await pending(store)
    await asyncio.wait_for(listening, 2)
    assert len(post.slots.held) == 1
    await post.close()


async def test_a_wait_that_hears_everything_already_is_left_alone(post: Post, raw: Redis) -> None:
    listening = asyncio.create_task(post.listener.listen())
    await until_blocked(raw)
    for _ in range(10):
        post.dispatcher.listen_again(post.slots.topics[TOPIC])
    await asyncio.sleep(0.05)
    assert not listening.done()
    listening.cancel()
    await asyncio.wait([listening])


async def test_a_wait_is_ended_although_the_one_before_is_still_being_ended(
    post: Post, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    doorbell, late = post.listener._doorbell, asyncio.Event()
    unblock, wait, waits = doorbell.unblock, doorbell.wait, []

    async def unblock_and_answer_late() -> None:
        await unblock()
        await late.wait()

    async def count_waits(*args: Any) -> Any:
        waits.append(args)
        return await wait(*args)

    monkeypatch.setattr(doorbell, "unblock", unblock_and_answer_late)
    monkeypatch.setattr(doorbell, "wait", count_waits)
    post.listener.loop.start()
    await until_blocked(raw)
    post.listener.listen_again()
    await until(lambda: len(waits) == 2)  # the first has ended, and nobody knows yet
    post.listener.listen_again()
    late.set()
    await until(lambda: len(waits) == 3, within=WAIT / 2)
    await asyncio.sleep(0.05)
    assert len(waits) == 3


async def test_a_survey_finds_what_no_ring_told(post: Post, raw: Redis) -> None:
    await pending(post.store, 2)
    await raw.delete(post.store.keys.of(TOPIC).doorbell)
    assert await post.site.survey() == SURVEY_EVERY
    await until(lambda: len(post.slots.held) == 2)


@steady
async def test_a_survey_tells_due_times_and_deadlines(store: Store) -> None:
    post = Post(store)
    assert await post.scheduler.step() is None
    await leased(store, lease=8000)
    await delayed(store, 5000)
    await post.site.survey()
    assert await post.scheduler.step() == pytest.approx(5 + STAND_IN, abs=0.1)
    assert await post.monitor.step() == pytest.approx(8, abs=0.1)
    await post.close()


async def test_a_short_lease_is_looked_after_more_often(store: Store) -> None:
    post = Post(store, lease=0.7)
    assert await post.site.survey() == 0.7
    await post.close()


async def test_rings_are_handed_back_where_something_is_pending(store: Store, raw: Redis) -> None:
    post = Post(store, TOPIC, "other")
    await pending(store)
    await raw.delete(store.keys.of(TOPIC).doorbell)
    await post.site.hand_back_rings()
    assert await raw.llen(store.keys.of(TOPIC).doorbell) == 1
    assert await raw.llen(store.keys.of("other").doorbell) == 0
    await post.close()


async def test_many_topics_are_seen_together_and_heard_by_several_listeners(
    store: Store, raw: Redis
) -> None:
    topics = [f"t{number}" for number in range(3 * MAX_TOPICS + 1)]
    post = Post(store, *topics)
    for topic in post.slots.topics.values():
        post.site.add(topic)
    assert [len(one.topics) for one in post.site.listeners] == [*[MAX_TOPICS] * 3, 1]
    for name in (topics[-1], topics[0], topics[MAX_TOPICS]):
        held = len(post.slots.held)
        await store.produce_normal_message(name, [draft(1)])
        await until(lambda held=held: len(post.slots.held) == held + 1)  # type: ignore[misc]
    await store.produce_normal_message("t7", [draft(1)])
    await raw.delete(store.keys.of("t7").doorbell)
    await post.site.survey()
    await until(lambda: len(post.slots.held) == 4)
    await post.close()


async def test_all_listeners_together_wait_no_oftener_than_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = Post(store)
    waits: list[float] = []

    async def wait(topics: Any, delays: Any, seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(post.listener._doorbell, "wait", wait)
    for listeners in (1, 4, 1000):
        post.dispatcher.listeners = listeners
        await post.listener.listen()
    assert waits == [WAIT, 4 * WAIT, LONGEST_WAIT]
    await post.close()


async def test_when_room_is_made_others_that_had_none_are_heard_again(
    store: Store, raw: Redis
) -> None:
    post = Post(store, TOPIC, "other", concurrency=2)
    slots, (busy, other) = post.slots, post.slots.topics.values()
    (here,) = take_in(slots, other, 1)
    slots.reserve(busy, 5)  # the worker is full
    assert post.listens_to() == []
    listening = asyncio.create_task(post.listener.listen())
    await until_blocked(raw)
    slots.receive(busy, 5, [], time.monotonic())
    post.dispatcher.listen_again(busy)
    await asyncio.wait_for(listening, 2)
    assert post.dispatcher.skipped == {}
    assert post.listens_to() == [TOPIC, "other"]
    slots.forget_waiting(here)
    await post.close()


# the janitor


async def test_the_janitor_drops_what_is_over_its_age(
    store: Store, server: Server, clock: Clock
) -> None:
    await dead(store, 3)
    janitor = Janitor(store, lambda: [TOPIC, "other"])
    await janitor.step()
    assert (await store.views.counts(TOPIC)).dead == 3
    clock.advance(91 * 86_400_000)
    await janitor.step()
    assert (await store.views.counts(TOPIC)).dead == 3  # the next round is in an hour
    await Janitor(store, lambda: [TOPIC, "other"]).step()
    assert (await store.views.counts(TOPIC)).dead == 0


async def test_the_janitor_drops_expired_results_soon(
    store: Store, server: Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Janitor(store, lambda: [TOPIC, "other"], lambda: [TOPIC])
    caring = Janitor(store, lambda: [TOPIC, "other"])
    for janitor in (serving, caring):
        await janitor.step()  # the round through all topics
    line = Kept(attempt=1, created_at=clock.now, ttl=1000).with_result(b"1")

    async def expired(count: int) -> None:
        results = [(one, line) for one in await leased(store, count)]
        await store.complete_with_result(TOPIC, "w1", results, ttl=1000)
        await serving.step()
        clock.advance(1000)
        await caring.step()
        assert (await store.views.counts(TOPIC)).completed == count

    await expired(3)
    await serving.step()
    assert (await store.views.counts(TOPIC)).completed == 0
    await expired(2)
    later = time.monotonic() + RESULTS_EVERY
    monkeypatch.setattr(time, "monotonic", lambda: later)
    await caring.step()
    assert (await store.views.counts(TOPIC)).completed == 0


async def test_the_janitor_measures_the_histories_that_are_written_to(
    store: Store, server: Server
) -> None:
    await pending(store, 3)
    janitor = Janitor(store, lambda: ["other"])
    await janitor.step()  # the round through all topics
    assert store.fits == {}
    await pending(store, 3)
    assert await janitor.step() == OFTEN
    assert set(store.fits) == {TOPIC}
    store.fits.clear()
    await janitor.step()  # nothing was written
    assert store.fits == {}


@pytest.mark.corrupts
async def test_a_dispatch_that_fails_pauses_its_own_topic_only(store: Store, raw: Redis) -> None:
    await pending(store, 10)
    await raw.set(store.keys.of("broken").meta, "no hash")
    post = Post(store, "broken", TOPIC)
    broken = post.slots.topics["broken"]
    post.dispatcher._backoffs[broken]._pause = 60
    post.dispatcher.wake("broken")
    await until(lambda: broken in post.dispatcher._paused)
    calls = (await raw.info("commandstats"))["cmdstat_evalsha"]["calls"]
    post.dispatcher.wake("broken")  # it rests; nothing is asked for, and no room is kept for it
    assert broken not in post.slots.backlog
    assert post.listens_to() == [TOPIC]
    post.dispatcher.wake(TOPIC)
    await until(lambda: len(post.slots.held) == 9)  # but one slot for the topic that rests
    assert (await raw.info("commandstats"))["cmdstat_evalsha"]["calls"] == calls + 1
    await post.close()


@pytest.mark.corrupts
async def test_a_topic_that_was_mended_is_taken_from_after_its_pause(
    store: Store, raw: Redis
) -> None:
    await pending(store, 3)
    meta = store.keys.of(TOPIC).meta
    await raw.rename(meta, "aside") if await raw.exists(meta) else None
    await raw.set(meta, "no hash")
    post = Post(store)
    post.dispatcher.wake(TOPIC)
    await until(lambda: post.dispatcher._paused)
    await raw.delete(meta)
    await until(lambda: len(post.slots.held) == 3)
    assert post.dispatcher._paused == {}
    await post.close()
