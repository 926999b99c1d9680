"""The dispatcher where messages have keys or a topic has limits: which script, and when to ask."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.limits import Limit, Rate
from mx_rmq.runtime.dispatcher import TRIES, Dispatcher
from tests.lab.messages import TOPIC, pending
from tests.runtime.stage import handler, on_servers, slots_for, take_in, until, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from redis.asyncio import Redis

    from mx_rmq.runtime.slots import TopicSlots
    from mx_rmq.store import Store
    from tests.lab.clock import Clock

pytestmark = on_servers


class Desk:
    """A dispatcher that notes its calls, and nobody who runs anything."""

    def __init__(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, *, concurrency: int = 4, **options: Any
    ) -> None:
        self.store = store
        self.calls: list[str] = []
        self.limits: list[str] = []
        for name in ("dispatch_message", "dispatch_in_turn"):
            monkeypatch.setattr(store, name, self._noting(name, getattr(store, name)))
        self.slots = slots_for([handler(TOPIC, **options)], concurrency=concurrency)
        self.dispatcher = Dispatcher(store, self.slots, worker="w1", lease=30_000)
        consumer: Any = self
        self.dispatcher.consumer = consumer

    def _noting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def noted(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            self.limits.append(options.get("limits", ""))
            return await call(*args, **options)

        return noted

    def start_ready(self) -> None:
        """Stand in for the consumer: what came takes its slot."""
        while self.slots.start_next() is not None:
            pass

    @property
    def topic(self) -> TopicSlots:
        return self.slots.topics[TOPIC]

    @property
    def held(self) -> int:
        return len(self.slots.held)

    async def complete(self) -> None:
        """Settle the oldest message."""
        held = next(iter(self.slots.held))
        self.slots.finished(held)
        await self.store.complete_message(TOPIC, "w1", [held.leased])
        self.slots.forget(held)
        self.dispatcher.freed(held.topic)

    async def close(self) -> None:
        await self.dispatcher.stop(5)
        if self.dispatcher.ringing:
            await asyncio.wait(self.dispatcher.ringing)


@pytest.fixture
async def desk(
    store: Store, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Desk]:
    desk = Desk(store, monkeypatch, **getattr(request, "param", {}))
    yield desk
    await desk.close()


def having(**options: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("desk", [options], indirect=True, ids=[""])


# which script


async def test_a_plain_topic_is_asked_for_by_the_plain_script(desk: Desk) -> None:
    await pending(desk.store, 2)
    assert await desk.dispatcher.take(TOPIC)
    assert desk.held == 2
    assert desk.calls == ["dispatch_message"]


async def test_when_keys_turn_up_the_other_script_is_asked_at_once(desk: Desk) -> None:
    await pending(desk.store, 3, key="k")
    assert await desk.dispatcher.take(TOPIC)
    await until(lambda: desk.held == 3)
    assert desk.calls[:2] == ["dispatch_message", "dispatch_in_turn"]


async def test_when_no_key_is_left_the_plain_script_is_asked_again(desk: Desk) -> None:
    await pending(desk.store, 1, key="k")
    assert await desk.dispatcher.take(TOPIC)
    await until(lambda: desk.held == 1)
    await until(lambda: not desk.topic.in_turn)
    desk.calls.clear()
    await pending(desk.store, 1)
    assert await desk.dispatcher.take(TOPIC)
    assert desk.held == 2
    assert desk.calls == ["dispatch_message"]


@having(limit=Limit(running=9), per_key=Limit(running=1))
async def test_a_topic_with_limits_is_always_asked_for_in_turn(desk: Desk) -> None:
    await pending(desk.store, 2)
    for _ in range(2):
        assert await desk.dispatcher.take(TOPIC)
    assert desk.held == 2
    assert set(desk.calls) == {"dispatch_in_turn"}
    assert set(desk.limits) == {"9 - - 1 - - 0"}


# when to ask


@having(limit=Limit(rate=Rate(20, burst=1)))
async def test_what_a_rate_holds_back_is_asked_for_when_it_may_start(
    desk: Desk, clock: Clock
) -> None:
    await pending(desk.store, 2)
    assert await desk.dispatcher.take(TOPIC)
    assert desk.held == 1
    await until(lambda: not desk.dispatcher._calls[desk.topic])
    wait = desk.dispatcher.waits(desk.topic)
    assert wait is not None
    assert 0.02 < wait <= 0.05
    asked = len(desk.calls)
    clock.advance(50)  # the server's time
    await until(lambda: desk.held == 2)
    assert len(desk.calls) <= asked + 2


@having(limit=Limit(rate="1/h"))
async def test_the_timer_that_rings_first_counts(desk: Desk) -> None:
    dispatcher, topic = desk.dispatcher, desk.topic
    waits: list[float] = []
    for seconds in (60.0, 20.0, 40.0):
        dispatcher._ask_after(topic, seconds)
        wait = dispatcher.waits(topic)
        assert wait is not None
        waits.append(round(wait))
    assert waits == [60, 20, 20]


@having(limit=Limit(rate="1/h"))
async def test_a_later_time_that_the_server_counts_on_is_kept_too(desk: Desk) -> None:
    """A ring may bring a new time just before the timer of the old one fires."""
    dispatcher, topic = desk.dispatcher, desk.topic
    dispatcher._ask_after(topic, 0.0)
    dispatcher._ask_after(topic, 60.0)
    await until(lambda: (dispatcher.waits(topic) or 0) > 50)
    assert desk.calls == ["dispatch_in_turn"]


@having(limit=Limit(rate=Rate(1000, burst=1)), concurrency=1)
async def test_without_room_another_worker_is_woken(desk: Desk, raw: Redis) -> None:
    await pending(desk.store, 2)
    assert await desk.dispatcher.take(TOPIC)
    assert desk.held == 1  # and runs, so that there is no slot
    await raw.delete(f"mx-rmq:{{{TOPIC}}}:doorbell")
    desk.dispatcher._ask_after(desk.topic, 0.0)
    await until_so(lambda: raw.llen(f"mx-rmq:{{{TOPIC}}}:doorbell"))
    assert desk.dispatcher.waits(desk.topic) is None
    assert desk.topic in desk.slots.backlog  # it is asked for when a slot is free


@having(limit=Limit(rate=Rate(1000, burst=1)), concurrency=1)
async def test_while_a_call_is_under_way_no_other_worker_is_woken(desk: Desk) -> None:
    """All slots are reserved for its answer, which brings the messages, or says when to ask."""
    _ = desk.dispatcher._ask(desk.topic, 1)
    assert desk.slots.room(desk.topic) == 0
    desk.dispatcher._ask_after(desk.topic, 60.0)
    desk.dispatcher._timers[desk.topic].cancel()
    desk.dispatcher._ask_now(desk.topic)  # its time has come
    assert desk.dispatcher.ringing == set()


@having(limit=Limit(rate="1/h"))
async def test_timers_end_with_the_dispatcher(desk: Desk) -> None:
    await pending(desk.store, 3)
    assert await desk.dispatcher.take(TOPIC)
    await until(lambda: desk.dispatcher.waits(desk.topic) is not None)
    await desk.dispatcher.stop(5)
    assert desk.dispatcher.waits(desk.topic) is None
    desk.dispatcher._ask_after(desk.topic, 1.0)
    assert desk.dispatcher.waits(desk.topic) is None


@having(limit=Limit(rate="1/h"))
async def test_a_worker_that_stops_leaves_the_coming_back_to_another_at_once(
    desk: Desk, raw: Redis
) -> None:
    await pending(desk.store, 3)
    assert await desk.dispatcher.take(TOPIC)
    await until(lambda: desk.dispatcher.waits(desk.topic) is not None)
    await raw.delete(f"mx-rmq:{{{TOPIC}}}:doorbell")
    await desk.dispatcher.stop(5)
    await until_so(lambda: raw.llen(f"mx-rmq:{{{TOPIC}}}:doorbell"))
    answer = await desk.store.dispatch_in_turn(
        TOPIC, "w2", count=9, lease=30_000, limits=desk.topic.limits
    )
    assert (answer.wait or 0) > 3_000_000


@having(limit=Limit(rate="1/h"))
async def test_an_answer_that_comes_while_the_worker_stops_rings_for_another(
    desk: Desk, raw: Redis
) -> None:
    await desk.dispatcher.stop(5)
    await pending(desk.store, 1)
    await raw.delete(f"mx-rmq:{{{TOPIC}}}:doorbell")
    desk.dispatcher._ask_after(desk.topic, 1.0)
    await until_so(lambda: raw.llen(f"mx-rmq:{{{TOPIC}}}:doorbell"))


@having(limit=Limit(rate="1/h"), concurrency=30)
async def test_what_may_start_now_is_asked_for_though_many_topics_have_no_room(desk: Desk) -> None:
    for number in range(TRIES + 1):
        full = handler(f"full{number}", limit=Limit(running=9), concurrency=1)
        other = desk.slots.add(full, full.topic, desk.topic.clock)
        take_in(desk.slots, other, 1)
        desk.start_ready()
        desk.slots.backlog[other] = None
    desk.dispatcher._ask_after(desk.topic, 0.0)
    await until(lambda: desk.calls, within=10)
    for held in list(desk.slots.held):
        desk.slots.finished(held)
        desk.slots.forget(held)
    desk.slots.backlog.clear()


@having(per_key=Limit(running=1))
async def test_what_waits_for_a_running_message_is_not_asked_for_before_it_has_ended(
    desk: Desk,
) -> None:
    await pending(desk.store, 3, key="k")
    assert await desk.dispatcher.take(TOPIC)
    assert desk.held == 1
    await until(lambda: not desk.dispatcher._calls[desk.topic])
    calls = len(desk.calls)
    assert desk.slots.backlog == {}
    desk.dispatcher.fill(desk.topic)
    assert len(desk.calls) == calls
    await desk.complete()
    assert await desk.dispatcher.take(TOPIC)  # the completion rang
    await until(lambda: desk.held == 1)


# which doorbells


@having(limit=Limit(running=9), concurrency=1)
async def test_a_full_worker_hears_of_a_topic_with_limits_that_has_no_message_here(
    desk: Desk,
) -> None:
    other = desk.slots.add(handler("other"), "other", desk.topic.clock)
    take_in(desk.slots, other, 1)
    desk.start_ready()
    assert desk.slots.room(desk.topic) == 0
    assert desk.dispatcher.to_skip([desk.topic]) == []
    assert not await desk.dispatcher.take(TOPIC)
    desk.dispatcher.wake(TOPIC)
    assert desk.dispatcher.to_skip([desk.topic]) == [desk.topic]
    assert desk.calls == []
    for held in list(desk.slots.held):
        desk.slots.finished(held)
        desk.slots.forget(held)
    desk.slots.backlog.clear()
