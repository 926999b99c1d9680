"""Flows: messages that wait for other messages."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import (
    Delivery,
    InvalidInput,
    Limit,
    MessageQueue,
    Middleware,
    Reject,
    ServerUnavailable,
    State,
    Worker,
    flow,
)
from mx_rmq.core import codec
from mx_rmq.core.steps import Prerequisite
from mx_rmq.runtime import follow_ups
from mx_rmq.runtime.follow_ups import FollowUps
from mx_rmq.runtime.waiting_check import look_for_sources
from mx_rmq.store import Store, worker_calls
from mx_rmq.store.results import Signal
from tests.lab.servers import Kind, chosen
from tests.runtime.stage import until, until_so
from tests.test_steps import state_of, until_state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from redis.asyncio import Redis

    from mx_rmq.core.middleware import Produce
    from mx_rmq.core.outgoing import Outgoing
    from mx_rmq.core.steps import OnDead
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1))


@pytest.fixture
async def mq(server: Server, raw: Redis) -> AsyncIterator[MessageQueue]:
    async with MessageQueue(server.url) as mq:
        yield mq


def serve(mq: MessageQueue) -> list[str]:
    """Declare a topic whose messages are squared, and one that adds up their results."""
    started: list[str] = []

    @mq.handler("page", max_attempts=1)
    async def page(number: int) -> int:
        started.append(f"page {number}")
        if number < 0:
            raise Reject("a negative page")
        return number * number

    @mq.handler("book", result_ttl=60)
    async def book(_: Any, delivery: Delivery) -> list[Any]:
        started.append("book")
        return delivery.results

    return started


async def test_a_parent_runs_when_all_its_children_have_completed(mq: MessageQueue) -> None:
    started = serve(mq)
    async with Worker(mq):
        async with mq.flow() as flow:
            pages = [flow.produce("page", number) for number in range(5)]
            id = flow.produce("book", "a title", after=pages)
        assert await mq.result("book", id, timeout=20) == [0, 1, 4, 9, 16]
    assert started[-1] == "book"
    assert started.count("book") == 1


async def test_all_messages_exist_when_the_block_has_ended(mq: MessageQueue) -> None:
    async with mq.flow() as flow:
        first = flow.produce("page", 1)
        last = flow.produce("book", None, after=[first])
    assert await state_of(mq, "page", first) is State.PENDING
    assert await state_of(mq, "book", last) is State.PENDING


async def test_nothing_is_sent_if_the_block_raises(mq: MessageQueue) -> None:
    with suppress(RuntimeError):
        async with mq.flow() as flow:
            flow.produce("page", 1)
            raise RuntimeError
    assert await mq.admin.topics() == []


async def test_a_worker_completes_a_flow_whose_caller_died(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(mq)
    monkeypatch.setattr(flow, "HEAD_START", 100)
    produce, calls = FollowUps.produce, 0

    async def dies(self: Any, planned: Any, **options: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:  # the head is stored, the others are not
            raise asyncio.CancelledError
        return await produce(self, planned, **options)

    monkeypatch.setattr(FollowUps, "produce", dies)
    with suppress(asyncio.CancelledError):
        async with mq.flow() as messages:
            pages = [messages.produce("page", number) for number in range(3)]
            id = messages.produce("book", None, after=pages)
    monkeypatch.undo()
    assert await mq.status("book", id) is None
    async with Worker(mq):
        await until_state(mq, "book", id, State.COMPLETED)
        assert await mq.result("book", id, timeout=20) == [0, 1, 4]


async def test_a_thousand_children(mq: MessageQueue) -> None:
    serve(mq)
    async with Worker(mq):
        async with mq.flow() as flow:
            pages = [flow.produce("page", 2) for _ in range(1000)]
            id = flow.produce("book", None, after=pages)
        assert await mq.result("book", id, timeout=60) == [4] * 1000


async def test_generations(mq: MessageQueue) -> None:
    serve(mq)
    async with Worker(mq):
        async with mq.flow() as flow:
            pages = [flow.produce("page", number) for number in (1, 2)]
            parts = [flow.produce("book", None, after=[page]) for page in pages]
            id = flow.produce("book", None, after=[*parts, ("page", pages[1])])
        assert await mq.result("book", id, timeout=20) == [[1], [4], 4]


async def test_a_dead_child_is_requeued_and_the_flow_goes_on(mq: MessageQueue) -> None:
    healed = False

    @mq.handler("page", max_attempts=1)
    async def page(number: int) -> int:
        if not healed:
            raise RuntimeError
        return number

    @mq.handler("book", result_ttl=60)
    async def book(_: None, delivery: Delivery) -> list[Any]:
        return delivery.results

    async with Worker(mq):
        async with mq.flow() as flow:
            child = flow.produce("page", 7)
            id = flow.produce("book", None, after=[child])
        await until_state(mq, "page", child, State.DEAD)
        await until_state(mq, "book", id, State.WAITING)
        healed = True
        assert await mq.admin.requeue("page", child)
        assert await mq.result("book", id, timeout=20) == [7]


async def test_run_and_die_when_a_child_is_dead(mq: MessageQueue) -> None:
    serve(mq)
    async with Worker(mq):
        async with mq.flow() as flow:
            good, bad = flow.produce("page", 3), flow.produce("page", -1)
            runs = flow.produce("book", None, after=[good, bad], on_dead="run")
            dies = flow.produce("book", None, after=[good, bad], on_dead="die")
        assert await mq.result("book", runs, timeout=20) == [9, None]
        await until_state(mq, "book", dies, State.DEAD)
    found = await mq.admin.get("book", dies)
    assert found is not None
    assert found.reason == (
        f"message {bad} of page, which it waits for, is dead: rejected: a negative page"
    )


async def test_a_parent_that_died_with_its_child_is_requeued_after_it(mq: MessageQueue) -> None:
    healed = False

    @mq.handler("page", max_attempts=1)
    async def page(number: int) -> int:
        if not healed:
            raise RuntimeError
        return number

    @mq.handler("book", result_ttl=60)
    async def book(_: None, delivery: Delivery) -> list[Any]:
        return delivery.results

    async with Worker(mq):
        async with mq.flow() as flow:
            child = flow.produce("page", 7)
            id = flow.produce("book", None, after=[child], on_dead="die")
        await until_state(mq, "book", id, State.DEAD)
        assert await mq.admin.requeue("book", id)  # too early: the child is still dead
        await until_state(mq, "book", id, State.DEAD)
        healed = True
        assert await mq.admin.requeue("page", child)

        async def done() -> bool:
            return await mq.status("page", child) is None

        await until_so(done)
        assert await mq.admin.requeue("book", id)
        assert await mq.result("book", id, timeout=20) == [7]


async def test_a_child_that_an_operator_aborts_or_cancels(mq: MessageQueue) -> None:
    """No worker tells the parent, so the check finds out."""
    serve(mq)
    async with mq.flow() as flow:
        aborted, cancelled = flow.produce("page", 1), flow.produce("page", 2)
        id = flow.produce("book", None, after=[aborted, cancelled], on_dead="run")
    assert await mq.admin.abort("page", aborted, "not needed")
    await mq.admin.cancel("page", cancelled)
    async with Worker(mq):
        assert await mq.result("book", id, timeout=40) == [None, None]


async def test_messages_outside_the_flow(mq: MessageQueue) -> None:
    go_on = asyncio.Event()

    @mq.handler("slow")
    async def slow(_: None) -> None:
        await go_on.wait()

    @mq.handler("quick", result_ttl=60)
    async def quick(number: int) -> int:
        return number

    serve(mq)
    async with Worker(mq):
        kept = await mq.produce("quick", 5)
        assert await mq.result("quick", kept, timeout=20) == 5
        running = await mq.produce("slow", None)
        async with mq.flow() as flow:
            id = flow.produce("book", None, after=[("quick", kept), running, "long-gone"])
        await until_state(mq, "book", id, State.WAITING)
        go_on.set()
        assert await mq.result("book", id, timeout=20) == [5, None, None]


async def test_a_flow_that_is_sent_twice_runs_once(mq: MessageQueue) -> None:
    started = serve(mq)
    async with Worker(mq):
        for _ in range(2):
            async with mq.flow() as flow:
                page = flow.produce("page", 1)
                flow.produce("book", None, id="book-1", after=[page])
        assert await mq.result("book", "book-1", timeout=20) == [1]
    assert started == ["page 1", "book"]


async def test_delays_count_from_the_end_of_the_block(mq: MessageQueue) -> None:
    async with mq.flow() as flow:
        first = flow.produce("page", 1, delay=60)
        second = flow.produce("page", 2, delay=120)
        last = flow.produce("book", None, after=[first, second], delay=90)
    for topic, id, delay in (("page", first, 60), ("page", second, 120), ("book", last, 90)):
        found = await mq.admin.get(topic, id)
        assert found is not None
        assert found.due is not None
        assert found.created_at is not None
        assert abs(found.due - found.created_at - delay) < 5


async def test_delays_if_a_worker_sends_the_rest(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = serve(mq)
    async with dying(monkeypatch, 0), mq.flow() as flow:
        flow.produce("page", 1, delay=1)
        flow.produce("page", 2, delay=2)
    async with Worker(mq):
        await until(lambda: len(started) == 2)
    assert started == ["page 1", "page 2"]


@asynccontextmanager
async def dying(monkeypatch: pytest.MonkeyPatch, sent: int) -> AsyncIterator[None]:
    """Let the caller of a flow die when it has sent the head and so many of the others."""
    produce, calls = FollowUps.produce, 0

    async def dies(self: Any, planned: Any, **options: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            await produce(self, list(planned)[:sent], **options)
            raise asyncio.CancelledError
        return await produce(self, planned, **options)

    with monkeypatch.context() as patch, suppress(asyncio.CancelledError):
        patch.setattr(FollowUps, "produce", dies)
        patch.setattr(flow, "HEAD_START", 500)
        yield


async def test_no_message_is_produced_before_one_that_waits_for_it(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could complete first, and tell nobody: the other one would wait forever."""
    produced: list[str] = []
    produce = Store.produce

    async def notes(self: Any, call: Any, *args: Any, **options: Any) -> Any:
        produced.extend(call.ids)
        return await produce(self, call, *args, **options)

    monkeypatch.setattr(Store, "produce", notes)
    async with mq.flow() as messages:
        head = messages.produce("page", 0)
        first = messages.produce("page", 1)
        second = messages.produce("book", 2, after=[first])
        third = messages.produce("page", 3, after=[second])
    assert produced == [head, third, second, first]


async def test_a_flow_in_one_line(mq: MessageQueue) -> None:
    """A message that waits for others does not hold up the line that they are in."""

    @mq.handler("account", per_key=Limit(running=1), result_ttl=60)
    async def account(number: int, delivery: Delivery) -> list[Any]:
        return [number, *delivery.results]

    async with Worker(mq):
        async with mq.flow() as flow:
            first = [flow.produce("account", number, key="k") for number in (1, 2)]
            last = flow.produce("account", 3, key="k", after=first)
        assert await mq.result("account", last, timeout=20) == [3, [1], [2]]


@pytest.mark.parametrize("on_dead", ["run", "die"])
async def test_a_child_that_the_head_still_carries_is_not_gone(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch, on_dead: OnDead
) -> None:
    serve(mq)
    async with dying(monkeypatch, 1), mq.flow() as messages:
        pages = [messages.produce("page", number) for number in range(3)]
        id = messages.produce("book", None, after=pages, on_dead=on_dead)
    record = await mq.store.views.record("book", id)
    assert record is not None
    looked = await look_for_sources(mq.store, "book", codec.decode(record, "book", id))
    assert looked.sent == 0
    async with Worker(mq):
        assert await mq.result("book", id, timeout=20) == [0, 1, 4]


@pytest.mark.parametrize("on_dead", ["wait", "run", "die"])
@pytest.mark.parametrize("custom_ids", [True, False])
@pytest.mark.parametrize("failed", [State.DEAD, State.QUARANTINED])
async def test_what_a_failed_head_carries_has_failed_with_it(
    mq: MessageQueue,
    monkeypatch: pytest.MonkeyPatch,
    on_dead: OnDead,
    custom_ids: bool,
    failed: State,
) -> None:
    """The caller died, and the head fails before a worker has sent the last page."""
    serve(mq)
    ids = "xyz" if custom_ids else [None] * 3
    async with dying(monkeypatch, 2), mq.flow() as messages:
        pages = [
            messages.produce("page", number, id=id)
            for number, id in zip(("not a number", 1, 2), ids, strict=True)
        ]
        book = messages.produce("book", None, after=pages, on_dead=on_dead)
    record = await mq.store.views.record("book", book)
    assert record is not None
    if failed is State.DEAD:
        await mq.admin.abort("page", pages[0])
    async with Worker(mq):
        await until_state(mq, "page", pages[0], failed)
        looked = await look_for_sources(mq.store, "book", codec.decode(record, "book", book))
        if on_dead == "wait":
            assert looked.sent == 0
            await mq.admin.edit("page", pages[0], 3)
            assert await mq.result("book", book, timeout=20) == [9, 1, 4]
        elif on_dead == "run":
            assert await mq.result("book", book, timeout=20) == [None, None, 4]
        else:
            await until_state(mq, "book", book, State.DEAD)


async def test_a_head_of_a_newer_release_still_carries_what_it_carried(
    mq: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dying(monkeypatch, 1), mq.flow() as messages:
        pages = [messages.produce("page", number) for number in range(3)]
        id = messages.produce("book", None, after=pages, on_dead="run")
    head, record = [await mq.store.views.record(*one) for one in (("page", pages[0]), ("book", id))]
    assert head is not None
    assert record is not None
    newer = head.replace(b'"v":2', b'"v":99')
    await raw.hset(mq.store.keys.of("page").payload, pages[0], newer)
    looked = await look_for_sources(mq.store, "book", codec.decode(record, "book", id))
    assert looked.sent == 0


async def test_a_head_is_due_before_it_expires(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the others would never be sent if the caller dies."""
    async with dying(monkeypatch, 0), mq.flow() as messages:
        head = messages.produce("page", 1, ttl=0.3)
        messages.produce("page", 2)
    found = await mq.admin.get("page", head)
    assert found is not None
    assert (found.due or 0) < (found.expires_at or 0)


async def test_an_older_message_with_a_childs_id_does_not_count(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(mq)

    @mq.handler("part", result_ttl=60)
    async def part(number: int) -> int:
        return number

    async with Worker(mq):
        for id in "xy":
            await mq.produce("part", 1, id=id, dedup=0.001)
            assert await mq.result("part", id, timeout=20) == 1
        async with dying(monkeypatch, 1), mq.flow() as messages:
            parts = [("part", messages.produce("part", 2, id=id)) for id in "xy"]
            book = messages.produce("book", None, after=parts)
        assert await mq.result("book", book, timeout=20) == [2, 2]


async def test_the_end_of_a_message_outside_the_flow_is_noticed_soon(mq: MessageQueue) -> None:
    """Not only after the next survey, ten seconds later."""
    go_on = asyncio.Event()

    @mq.handler("slow")
    async def slow(_: None) -> None:
        await go_on.wait()

    serve(mq)
    async with Worker(mq):
        running = await mq.produce("slow", None)
        await until_state(mq, "slow", running, State.PROCESSING)
        async with mq.flow() as flow:
            id = flow.produce("book", None, after=[running])
        await until_state(mq, "book", id, State.WAITING)
        go_on.set()
        assert await mq.result("book", id, timeout=6) == [None]


async def test_a_look_at_a_waiting_message_reads_no_results(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every worker looks every ten seconds; the children's results may be large."""
    serve(mq)
    async with Worker(mq):
        async with mq.flow() as flow:
            pages = [flow.produce("page", 2), flow.produce("page", 3, delay=60)]
            book = flow.produce("book", None, after=pages)
        await until_state(mq, "book", book, State.WAITING)
        record = await mq.store.views.record("book", book)
        assert record is not None
        message = codec.decode(record, "book", book)
        assert (await look_for_sources(mq.store, "book", message, parked=True)).sent == 0

        async def read(*_: Any) -> Any:
            raise AssertionError("it reads the signals")

        monkeypatch.setattr(Store, "signals_of", read)
        await mq.admin.cancel("page", pages[1])
        found = await look_for_sources(mq.store, "book", message, parked=True)
    assert found == (0, False)  # only the cancelled one is missing, and it will never come


async def test_signals_of_callers_leave_room_for_those_of_children(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_calls, "MAX_SIGNALS", 2)
    serve(mq)
    async with Worker(mq):
        async with mq.flow() as flow:
            page = flow.produce("page", 3, delay=60)
            book = flow.produce("book", None, after=[page])
        await until_state(mq, "book", book, State.WAITING)
        for name in ("a", "b"):
            assert await mq.signal("book", book, name)
        with pytest.raises(InvalidInput, match="it gets no more"):
            await mq.signal("book", book, "c")
        await mq.reschedule("page", page, delay=0)
        assert await mq.result("book", book, timeout=20) == [9]


async def test_children_keep_no_more_results_than_allowed(
    server: Server, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MessageQueue(server.url, results_max=5) as mq:
        kept: list[int] = []
        complete = Store.complete_with_result

        async def count(store: Store, topic: str, *args: Any, **options: Any) -> Any:
            answers = await complete(store, topic, *args, **options)
            kept.append((await mq.admin.stats(topic)).completed)
            return answers

        monkeypatch.setattr(Store, "complete_with_result", count)
        go_on = asyncio.Event()

        @mq.handler("part", result_ttl=60)
        async def part(number: int) -> int:
            await go_on.wait()
            return number

        serve(mq)
        async with Worker(mq, concurrency=30):
            async with mq.flow() as flow:
                parts = [flow.produce("part", number) for number in range(30)]
                book = flow.produce("book", None, after=parts)
            await until_state(mq, "part", parts[-1], State.PROCESSING)
            go_on.set()
            assert await mq.result("book", book, timeout=20) == list(range(30))
    assert max(kept) <= 5


def test_signals_are_sent_in_calls_that_fit(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    monkeypatch.setattr(follow_ups, "MAX_BYTES", 1000)
    child = Prerequisite("page", "1").signal
    sizes = [400, 400, 400, 2000, 1]
    signals = [Signal(str(n), child, bytes(size)) for n, size in enumerate(sizes)]
    calls = list(follow_ups._that_fit(signals))
    assert [[one.id for one in some] for some in calls] == [["0", "1"], ["2"], ["3"], ["4"]]


async def test_a_message_waits_for_many_that_are_gone(mq: MessageQueue) -> None:
    """One call takes 1,000 signals."""
    serve(mq)
    async with Worker(mq):
        await mq.produce("page", 1)
        async with mq.flow() as flow:
            id = flow.produce("book", None, after=[("page", f"gone-{n}") for n in range(1100)])
        assert await mq.result("book", id, timeout=20) == [None] * 1100


async def test_nothing_can_wait_for_a_message_that_is_copied(mq: MessageQueue) -> None:
    go_on = asyncio.Event()

    @mq.handler("event", subscription="billing")
    async def event(_: Any) -> None:
        await go_on.wait()

    async with Worker(mq):
        id = await mq.produce("event", None)
        await until_state(mq, "event@billing", id, State.PROCESSING)
        for earlier in (("event", id), id):
            with pytest.raises(InvalidInput, match="topic 'event' has subscriptions"):
                async with mq.flow() as flow:
                    flow.produce("page", 1, after=[earlier])
        go_on.set()


async def test_a_flow_needs_its_block(mq: MessageQueue) -> None:
    """Its messages would never be sent."""
    with pytest.raises(InvalidInput, match="the flow has not begun"):
        mq.flow().produce("page", 1)


async def test_a_message_of_a_topic_with_subscriptions_cannot_wait(mq: MessageQueue) -> None:
    @mq.handler("event", subscription="billing")
    async def event(_: Any) -> None: ...

    async with Worker(mq):
        messages = await mq.flow().__aenter__()
        page = messages.produce("page", 1)
        messages.produce("event", None, after=[page])
        with pytest.raises(InvalidInput, match="topic 'event' has subscriptions"):
            await messages.__aexit__(None)
        assert await mq.status("page", page) is None


async def test_a_flow_with_a_message_that_is_too_large_is_not_sent(mq: MessageQueue) -> None:
    messages = await mq.flow().__aenter__()
    page = messages.produce("page", 1)
    messages.produce("page", 2, headers={"long": 70_000 * "x"})
    with pytest.raises(InvalidInput, match="headers and settings take"):
        await messages.__aexit__(None)
    assert await mq.status("page", page) is None


async def test_a_flow_that_is_stored_raises_nothing(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its caller would send it again."""
    serve(mq)
    monkeypatch.setattr(flow, "HEAD_START", 500)
    produce, calls = FollowUps.produce, 0

    async def fails(self: Any, planned: Any, **options: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ServerUnavailable("away")
        return await produce(self, planned, **options)

    monkeypatch.setattr(FollowUps, "produce", fails)
    async with mq.flow() as messages:
        page = messages.produce("page", 3)
        id = messages.produce("book", None, after=[page])
    async with Worker(mq):
        await until_state(mq, "book", id, State.COMPLETED)
        assert await mq.result("book", id, timeout=20) == [9]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"after": "abc"}, r"after='abc' is not a list: pass \[id\]"),
        ({"after": [5]}, "after has 5, which is neither an id"),
        ({"after": ["a", "a"]}, "after names a message twice"),
        ({"after": 5}, "after=5 is not a list of ids"),
        ({"on_dead": "panic"}, "on_dead='panic' is not one of wait, run, die"),
        (
            {"on_dead": "die"},
            "on_dead='die' says what a message does if one in its `after` is dead",
        ),
        ({"on_duplicate": "replace"}, "on_duplicate: a message of a flow does not take"),
        ({"after": [f"id-{n}" for n in range(2001)]}, "2,001 messages; the limit is 2,000"),
    ],
)
async def test_bad_input_is_refused_at_once(
    mq: MessageQueue, options: dict[str, Any], words: str
) -> None:
    async with mq.flow() as flow:
        with pytest.raises(InvalidInput, match=words):
            flow.produce("page", 1, **options)
    with pytest.raises(InvalidInput, match="the flow has ended"):
        flow.produce("page", 1)


async def test_a_flow_has_at_most_ten_thousand_messages(mq: MessageQueue) -> None:
    flow = await mq.flow().__aenter__()
    for number in range(10_000):
        flow.produce("page", number)
    with pytest.raises(InvalidInput, match="a flow has at most 10,000 messages"):
        flow.produce("page", 0)


async def test_a_message_cannot_wait_for_a_later_one(mq: MessageQueue) -> None:
    flow = await mq.flow().__aenter__()
    flow.produce("page", 1, id="a", after=["b"])
    flow.produce("page", 1, id="b")
    with pytest.raises(InvalidInput, match="after='b': produce this message before 'a'"):
        await flow.__aexit__(None)
    assert await mq.status("page", "b") is None


# middleware


class Renames(Middleware):
    """Sends every message to another topic."""

    async def produce(self, messages: Sequence[Outgoing], call_next: Produce) -> list[str]:
        return await call_next([replace(one, topic="elsewhere") for one in messages])


async def test_middleware_cannot_give_a_flow_or_a_follow_up_another_topic(
    mq: MessageQueue,
) -> None:
    """Others wait for the message in its topic."""

    @mq.handler("job", max_attempts=1)
    async def job(_: None, delivery: Delivery) -> None:
        delivery.produce("page", 1)

    id = await mq.produce("job", None)
    mq.middleware = (Renames(),)
    with pytest.raises(InvalidInput, match="middleware changed which messages the flow has"):
        async with mq.flow() as flow:
            flow.produce("page", 1)
    async with Worker(mq):
        await until_state(mq, "job", id, State.DEAD)
    view = await mq.admin.get("job", id)
    assert view is not None
    assert "middleware changed the topic or the id of a follow-up to page" in view.errors[-1].text
