"""Work in several steps: noted values, sleeps, signals, follow-ups."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import (
    Delivery,
    InvalidInput,
    MessageDied,
    MessageQueue,
    Middleware,
    Reject,
    State,
    Worker,
)
from mx_rmq.core import codec, steps
from mx_rmq.core.codec import encode_payload
from mx_rmq.core.message import Message
from mx_rmq.core.outcome import RetryLater
from mx_rmq.runtime.lifecycle import Lifecycle
from tests.lab.servers import Kind, chosen
from tests.runtime.stage import until, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from redis.asyncio import Redis

    from mx_rmq.core.middleware import Produce
    from mx_rmq.core.outgoing import Outgoing
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1))


@dataclass
class Approval:
    by: str
    granted: bool


@pytest.fixture
async def mq(server: Server, raw: Redis) -> AsyncIterator[MessageQueue]:
    async with MessageQueue(server.url) as mq:
        yield mq


async def state_of(mq: MessageQueue, topic: str, id: str) -> State | None:
    status = await mq.status(topic, id)
    return None if status is None else status.state


async def until_state(mq: MessageQueue, topic: str, id: str, state: State) -> None:
    async def is_there() -> bool:
        return await state_of(mq, topic, id) is state

    await until_so(is_there)


# steps


async def test_a_step_that_is_noted_never_runs_again(mq: MessageQueue) -> None:
    calls: list[str] = []

    @mq.handler("job", retry=0.01, result_ttl=60)
    async def job(number: int, delivery: Delivery) -> list[int]:
        def double(value: int) -> int:
            calls.append("double")
            return 2 * value

        async def add(value: int) -> int:
            calls.append("add")
            return value + 1

        doubled = await delivery.step("double", double, number)
        added = await delivery.step("add", add, doubled)
        if delivery.attempt < 3:
            raise RuntimeError("after the steps")
        return [doubled, added]

    async with Worker(mq):
        id = await mq.produce("job", 5)
        assert await mq.result("job", id, timeout=20) == [10, 11]
    assert calls == ["double", "add"]


async def test_steps_that_run_at_the_same_time_are_all_noted(mq: MessageQueue) -> None:
    calls: list[str] = []

    @mq.handler("job", retry=0.01, result_ttl=60)
    async def job(_: None, delivery: Delivery) -> list[str]:
        async def call(name: str) -> str:
            calls.append(name)
            return name

        got = await asyncio.gather(*(delivery.step(name, call, name) for name in "abc"))
        if delivery.attempt < 2:
            raise RuntimeError("after the steps")
        return got

    async with Worker(mq):
        id = await mq.produce("job", None)
        assert await mq.result("job", id, timeout=20) == ["a", "b", "c"]
    assert calls == ["a", "b", "c"]


async def test_a_step_that_fails_runs_again(mq: MessageQueue) -> None:
    calls = 0

    @mq.handler("job", retry=0.01, result_ttl=60)
    async def job(_: None, delivery: Delivery) -> Any:
        def flaky() -> str:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise OSError("not yet")
            return "ok"

        return await delivery.step("flaky", flaky)

    async with Worker(mq):
        id = await mq.produce("job", None)
        assert await mq.result("job", id, timeout=20) == "ok"
    assert calls == 2


async def test_a_step_returns_the_json_form_of_its_value_every_time(mq: MessageQueue) -> None:
    seen: list[Any] = []

    @mq.handler("job", retry=0.01, result_ttl=60)
    async def job(_: None, delivery: Delivery) -> None:
        seen.append(await delivery.step("approve", lambda: Approval("me", granted=True)))
        if delivery.attempt == 1:
            raise RuntimeError

    async with Worker(mq):
        id = await mq.produce("job", None)
        await mq.result("job", id, timeout=20)
    assert seen == [{"by": "me", "granted": True}] * 2


async def test_steps_survive_a_requeue_after_a_fix(mq: MessageQueue) -> None:
    calls: list[str] = []
    broken = True

    @mq.handler("job", max_attempts=1, result_ttl=60)
    async def job(_: None, delivery: Delivery) -> str:
        def charge() -> str:
            calls.append("charge")
            return "paid"

        value: str = await delivery.step("charge", charge)
        if broken:
            raise RuntimeError("a bug")
        return value

    async with Worker(mq):
        id = await mq.produce("job", None)
        with pytest.raises(MessageDied):
            await mq.result("job", id, timeout=20)
        broken = False
        assert await mq.admin.requeue("job", id)
        assert await mq.result("job", id, timeout=20) == "paid"
    assert calls == ["charge"]


async def test_values_are_bounded_with_a_clear_error(server: Server, raw: Redis) -> None:
    async with MessageQueue(server.url, max_payload=1000) as mq:

        @mq.handler("job", max_attempts=1)
        async def job(size: int, delivery: Delivery) -> None:
            for number in range(5):
                await delivery.step(f"part {number}", lambda: "x" * size)

        async with Worker(mq):
            large = await mq.produce("job", 1000)
            many = await mq.produce("job", 900)
            await until_state(mq, "job", large, State.DEAD)
            await until_state(mq, "job", many, State.DEAD)
        errors = [(await mq.admin.get("job", id)).errors[-1].text for id in (large, many)]  # type: ignore[union-attr]
    assert errors[0] == (
        "the value of step 'part 0' cannot be kept: it takes 1,002 bytes; "
        "the limit is 1,000 (setting max_payload)"
    )
    assert errors[1] == (
        "step 'part 4': the values of all steps take 4,510 bytes; "
        "the limit is 4,000 (4 times max_payload)"
    )


@pytest.mark.parametrize("kind_of_work", ["step", "sleep"])
async def test_names_are_bounded(server: Server, raw: Redis, kind_of_work: str) -> None:
    """Else a handler that polls in a loop makes its record grow forever."""
    async with MessageQueue(server.url, max_payload=100) as mq:

        @mq.handler("poll", max_attempts=1)
        async def poll(_: None, delivery: Delivery) -> None:
            for number in range(30):
                if kind_of_work == "step":
                    await delivery.step(f"poll {number:05}", int)
                else:
                    await delivery.sleep(f"poll {number:05}", 0)

        async with Worker(mq):
            id = await mq.produce("poll", None)
            await until_state(mq, "poll", id, State.DEAD)
        view = await mq.admin.get("poll", id)
    assert view is not None
    assert view.errors[-1].text == (
        "11 steps, sleeps and waits of a message have names of 110 characters; "
        "the limit is 100 (setting max_payload)"
    )


async def test_a_worker_that_lost_its_lease_cannot_note_a_step(mq: MessageQueue) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    runs = 0

    @mq.handler("job", result_ttl=60)
    async def job(_: None, delivery: Delivery) -> Any:
        nonlocal runs
        runs += 1
        first = runs == 1

        async def slow() -> int:
            begun.set()
            await asyncio.shield(go_on.wait())
            return runs

        if first:
            try:
                return await delivery.step("slow", slow)
            finally:
                go_on.set()
        return await delivery.step("slow", lambda: "from the second worker")

    async with Worker(mq):
        id = await mq.produce("job", None)
        await begun.wait()
        assert await mq.admin.abort("job", id, "take it away")
        go_on.set()
        await until_state(mq, "job", id, State.DEAD)
        assert await mq.admin.requeue("job", id)
        assert await mq.result("job", id, timeout=20) == "from the second worker"


@pytest.mark.parametrize("name", ["", "x" * 129, "a\tb", 5, None])
async def test_bad_names_of_steps_are_refused(mq: MessageQueue, name: Any) -> None:
    @mq.handler("job", max_attempts=1)
    async def job(_: None, delivery: Delivery) -> None:
        await delivery.step(name, print)

    async with Worker(mq):
        id = await mq.produce("job", None)
        await until_state(mq, "job", id, State.DEAD)
    found = await mq.admin.get("job", id)
    assert found is not None
    assert "is not a name: 1 to 128 printable characters" in found.errors[-1].text


async def test_a_step_needs_a_function_and_not_its_call(mq: MessageQueue) -> None:
    async def plan() -> str:
        return "plan"

    @mq.handler("job", max_attempts=1)
    async def job(_: None, delivery: Delivery) -> None:
        await delivery.step("plan", plan())  # type: ignore[arg-type]

    async with Worker(mq):
        id = await mq.produce("job", None)
        await until_state(mq, "job", id, State.DEAD)
    found = await mq.admin.get("job", id)
    assert found is not None
    assert "step 'plan': coroutine is not a function" in found.errors[-1].text


async def _error_of(mq: MessageQueue) -> str:
    """Run the handler of `job` once; return what the attempt has failed with."""
    async with Worker(mq):
        id = await mq.produce("job", None)
        await until_state(mq, "job", id, State.DEAD)
    found = await mq.admin.get("job", id)
    assert found is not None
    return found.errors[-1].text


async def test_a_name_that_is_used_twice_fails_the_attempt(mq: MessageQueue) -> None:
    """Otherwise a loop would do its first round only, and nobody would know."""
    pages: list[int] = []

    @mq.handler("job", max_attempts=1)
    async def job(_: None, delivery: Delivery) -> None:
        for number in (1, 2):
            await delivery.step("page", pages.append, number)

    assert "step 'page': this run of the handler has used the name" in await _error_of(mq)
    assert pages == [1]


async def test_a_step_that_has_failed_may_be_tried_again_in_the_same_run(mq: MessageQueue) -> None:
    @mq.handler("job", result_ttl=60)
    async def job(_: None, delivery: Delivery) -> Any:
        for answer in ("not a number", "5"):
            with suppress(ValueError):
                return await delivery.step("parse", int, answer)
        return None

    async with Worker(mq):
        assert await mq.result("job", await mq.produce("job", None), timeout=20) == 5


async def test_a_wait_without_await_fails_the_attempt(mq: MessageQueue) -> None:
    """Otherwise the handler would go on as if the signal had come."""

    @mq.handler("job", max_attempts=1)
    async def job(_: None, delivery: Delivery) -> None:
        delivery.wait("approval")  # type: ignore[unused-coroutine]

    assert "job has not awaited delivery.wait('approval', …)" in await _error_of(mq)


async def test_a_plain_handler_cannot_sleep(mq: MessageQueue) -> None:
    @mq.handler("job", max_attempts=1)
    def job(_: None, delivery: Delivery) -> None:
        delivery.sleep("a while", 3600)  # type: ignore[unused-coroutine]

    assert "delivery.sleep: needs an `async def` handler" in await _error_of(mq)


# sleep


async def test_a_sleeping_message_holds_no_slot_and_counts_no_attempt(mq: MessageQueue) -> None:
    attempts: list[int] = []
    slept = asyncio.Event()

    @mq.handler("job", result_ttl=60)
    async def job(_: None, delivery: Delivery) -> str:
        attempts.append(delivery.attempt)
        await delivery.sleep("nap", 0.4)
        return "awake"

    @mq.handler("other")
    async def other(_: None) -> None:
        slept.set()

    async with Worker(mq, concurrency=1):
        id = await mq.produce("job", None)
        await until_state(mq, "job", id, State.DELAYED)
        await mq.produce("other", None)
        await asyncio.wait_for(slept.wait(), 20)
        assert await mq.result("job", id, timeout=20) == "awake"
    assert attempts == [1, 1]


# wait and signal


async def test_a_signal_wakes_the_message_that_waits(mq: MessageQueue) -> None:
    @mq.handler("deploy", result_ttl=60)
    async def deploy(_: None, delivery: Delivery) -> str:
        approval: Approval = await delivery.wait("approval", type=Approval)
        return approval.by

    async with Worker(mq):
        id = await mq.produce("deploy", None)
        await until_state(mq, "deploy", id, State.WAITING)
        assert (await mq.admin.stats("deploy")).processing == 0
        assert await mq.signal("deploy", id, "other", 1)
        assert await state_of(mq, "deploy", id) is State.WAITING
        assert await mq.signal("deploy", id, "approval", Approval("kim", granted=True))
        assert await mq.result("deploy", id, timeout=20) == "kim"


async def test_a_signal_that_comes_first_is_not_lost(mq: MessageQueue) -> None:
    go_on = asyncio.Event()

    @mq.handler("deploy", result_ttl=60)
    async def deploy(_: None, delivery: Delivery) -> Any:
        await go_on.wait()
        return await delivery.wait("approval")

    id = await mq.produce("deploy", None)
    assert await mq.signal("deploy", id, "approval", "before it runs")
    async with Worker(mq):
        go_on.set()
        assert await mq.result("deploy", id, timeout=20) == "before it runs"


async def test_of_two_signals_the_first_counts(mq: MessageQueue) -> None:
    @mq.handler("deploy", result_ttl=60)
    async def deploy(_: None, delivery: Delivery) -> Any:
        return await delivery.wait("approval")

    id = await mq.produce("deploy", None)
    assert await mq.signal("deploy", id, "approval", 1)
    assert await mq.signal("deploy", id, "approval", 2)
    async with Worker(mq):
        assert await mq.result("deploy", id, timeout=20) == 1


async def test_a_wait_past_its_timeout_raises(mq: MessageQueue) -> None:
    @mq.handler("deploy", result_ttl=60)
    async def deploy(_: None, delivery: Delivery) -> str:
        try:
            await delivery.wait("approval", timeout=0.2)
        except TimeoutError as late:
            return str(late)
        return "came"

    async with Worker(mq):
        id = await mq.produce("deploy", None)
        result = await mq.result("deploy", id, timeout=20)
    assert result == "the signal 'approval' did not arrive in time"


async def test_a_wait_without_time_sees_a_signal_that_came_first(mq: MessageQueue) -> None:
    @mq.handler("deploy", result_ttl=60)
    async def deploy(_: None, delivery: Delivery) -> list[Any]:
        found = []
        for name in ("approval", "other"):
            try:
                found.append(await delivery.wait(name, timeout=0))
            except TimeoutError:
                found.append("late")
        return found

    id = await mq.produce("deploy", None)
    assert await mq.signal("deploy", id, "approval", 1)
    async with Worker(mq):
        assert await mq.result("deploy", id, timeout=20) == [1, "late"]


async def test_a_signal_to_an_unknown_message_is_refused(mq: MessageQueue) -> None:
    await mq.produce("deploy", None)
    assert not await mq.signal("deploy", "unknown", "approval")
    with pytest.raises(InvalidInput, match="is not a name"):
        await mq.signal("deploy", "unknown", "")


async def test_an_id_that_is_used_again_sees_no_old_signal(mq: MessageQueue) -> None:
    @mq.handler("deploy", result_ttl=60)
    async def deploy(_: None, delivery: Delivery) -> Any:
        return await delivery.wait("approval", timeout=0.1)

    async with Worker(mq):
        await mq.produce("deploy", None, id="d1", dedup=0)
        await mq.signal("deploy", "d1", "approval", "old")
        assert await mq.result("deploy", "d1", timeout=20) == "old"
        await mq.produce("deploy", None, id="d1", dedup=0)

        async def has_failed() -> bool:
            found = await mq.admin.get("deploy", "d1")
            return found is not None and bool(found.errors)

        await until_so(has_failed)


async def test_a_handler_that_swallows_the_suspension_fails(mq: MessageQueue) -> None:
    @mq.handler("job", max_attempts=1)
    async def job(_: None, delivery: Delivery) -> None:
        with suppress(BaseException):  # the mistake that is tested
            await delivery.wait("approval")

    async with Worker(mq):
        id = await mq.produce("job", None)
        await until_state(mq, "job", id, State.DEAD)
    found = await mq.admin.get("job", id)
    assert found is not None
    assert "caught Suspended and went on" in found.errors[-1].text


# follow-ups


async def test_follow_ups_are_produced_when_the_message_completes(mq: MessageQueue) -> None:
    got: list[tuple[str, Any]] = []
    ids: list[str] = []

    @mq.handler("order", retry=0.01)
    async def order(number: int, delivery: Delivery) -> None:
        ids.append(delivery.produce("mail", {"order": number}, headers={"a": "b"}))
        delivery.produce("bill", number, key="tenant")
        if delivery.attempt < 3:
            raise RuntimeError("not yet: nothing is produced")

    @mq.handler("mail")
    async def mail(payload: Any, delivery: Delivery) -> None:
        got.append((delivery.id, payload))

    @mq.handler("bill")
    def bill(payload: int, delivery: Delivery) -> None:
        got.append((delivery.id, payload))

    async with Worker(mq):
        await mq.produce("order", 7)
        await until(lambda: len(got) == 2)
    assert len(set(ids)) == 1
    assert sorted(payload for _, payload in got if isinstance(payload, int)) == [7]
    assert (ids[0], {"order": 7}) in got


async def test_a_handler_produces_at_most_a_thousand_follow_ups(mq: MessageQueue) -> None:
    @mq.handler("order", max_attempts=1)
    async def order(_: None, delivery: Delivery) -> None:
        for number in range(1001):
            delivery.produce("mail", number)

    id = await mq.produce("order", None)
    assert (await Worker(mq).drain()).dead == 1
    status = await mq.status("order", id)
    assert status is not None
    assert "a handler may produce 1,000 follow-ups" in status.reason
    assert await mq.admin.topics() == ["order"]


async def test_a_dead_message_produces_nothing(mq: MessageQueue) -> None:
    @mq.handler("order")
    async def order(_: int, delivery: Delivery) -> None:
        delivery.produce("mail", 1)
        raise Reject("no")

    async with Worker(mq):
        id = await mq.produce("order", 7)
        await until_state(mq, "order", id, State.DEAD)
    assert "mail" not in await mq.admin.topics()


@pytest.mark.parametrize(
    ("topic", "payload", "options", "words"),
    [
        ("not a topic", 1, {}, "topic 'not a topic' must consist of"),
        ("next@mail", 1, {}, "'next@mail' is a subscription, not a topic"),
        ("next", 1, {"headers": {"long": 70_000 * "x"}}, "headers and settings take 70,"),
        ("next", 1, {"id": "a", "dedup": 5}, "dedup: a follow-up does not take this option"),
        ("next@billing", 1, {}, "'next@billing' is a subscription, not a topic"),
        ("short", 1, {"delay": 60}, "delay=60: the message would expire before it is due"),
        ("order", 1, {"id": "own"}, "id='own': this message has the id until it completes"),
        ("next", 1_000_000 * "x", {}, "the follow-ups take 17,000,034 bytes; the limit"),
    ],
)
async def test_bad_follow_ups_fail_the_attempt(
    mq: MessageQueue, topic: str, payload: Any, options: dict[str, Any], words: str
) -> None:
    """Once they were noted, it would be too late."""

    @mq.handler("short", ttl=30)
    async def short(_: int) -> None: ...

    @mq.handler("order", max_attempts=1)
    async def order(_: int, delivery: Delivery) -> None:
        for _ in range(17):
            delivery.produce(topic, payload, **options)

    async with Worker(mq):
        id = await mq.produce("order", 7, id="own")
        await until_state(mq, "order", id, State.DEAD)
    found = await mq.admin.get("order", id)
    assert found is not None
    assert words in found.errors[-1].text


@pytest.mark.parametrize("batch", [None, 10])
async def test_steps_that_cannot_be_read_are_quarantined(
    mq: MessageQueue, raw: Redis, batch: int | None
) -> None:
    """Each attempt would fail in the same way. Others of the same batch do not notice."""
    if batch is None:

        @mq.handler("order")
        async def order(_: int) -> None: ...
    else:

        @mq.handler("order", batch=batch)
        async def orders(_: list[int]) -> None: ...

    id, _ = await mq.produce_many("order", [1, 2])
    key = mq.store.keys.of("order").payload
    record = await mq.store.views.record("order", id)
    assert record is not None
    await raw.hset(key, id, record.replace(b'"v":1', b'"v":2,"steps":{"done":5}'))
    done = await Worker(mq).drain()
    assert (done.completed, done.quarantined) == (1, 1)


async def test_a_follow_up_that_this_worker_cannot_produce_ends_in_the_dead_letters(
    mq: MessageQueue, raw: Redis, server: Server
) -> None:
    """Noted by a worker with a larger `max_payload`, which died. A requeue sends it."""
    id = await mq.produce("order", None)
    record = await mq.store.views.record("order", id)
    assert record is not None
    message = codec.decode(record, "order", id)
    large = Message.new(encode_payload("x" * 999, 2000), topic="next", id="large")
    noted = steps.write(message, steps.Steps(then=[steps.Planned("next", large)]))
    await raw.hset(mq.store.keys.of("order").payload, id, codec.encode(noted))
    async with MessageQueue(server.url, max_payload=100) as small:
        for queue in (small, mq):
            queue.handler("order")(_nothing)
        assert (await Worker(small).drain()).dead == 1
    assert await mq.admin.requeue("order", id)
    assert (await Worker(mq).drain()).completed == 1
    assert await state_of(mq, "next", "large") is State.PENDING


async def _nothing(_: Any) -> None: ...


@pytest.mark.parametrize("used_before", [True, False])
async def test_a_follow_up_of_a_task_that_the_handler_left_behind_is_refused(
    mq: MessageQueue, used_before: bool
) -> None:
    """It would not be produced, and nobody would know."""
    kept: list[Delivery] = []

    @mq.handler("order", result_ttl=60)
    async def order(_: None, delivery: Delivery) -> None:
        kept.append(delivery)
        if used_before:
            delivery.produce("mail", 1)

    async with Worker(mq):
        await mq.result("order", await mq.produce("order", None), timeout=20)
        with pytest.raises(InvalidInput, match="this run of the handler has ended"):
            kept[0].produce("mail", 2)


async def test_follow_ups_into_a_full_topic_do_not_stop_its_workers(server: Server) -> None:
    done: list[int] = []
    async with MessageQueue(server.url, max_pending=10) as mq:

        @mq.handler("crawl")
        async def crawl(depth: int, delivery: Delivery) -> None:
            done.append(depth)
            for _ in range(3 if depth else 0):
                delivery.produce("crawl", depth - 1)

        async with Worker(mq, concurrency=4):
            await mq.produce("crawl", 4)
            await until(lambda: len(done) == 121)


async def test_a_wait_in_a_task_group(mq: MessageQueue) -> None:
    @mq.handler("job", max_attempts=1, result_ttl=60)
    async def job(_: None, delivery: Delivery) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(delivery.wait(name)) for name in ("left", "right")]
        return [task.result() for task in tasks]

    async with Worker(mq):
        id = await mq.produce("job", None)
        await until_state(mq, "job", id, State.WAITING)
        assert await mq.signal("job", id, "left", 1)
        assert await mq.signal("job", id, "right", 2)
        assert await mq.result("job", id, timeout=20) == [1, 2]


@pytest.mark.parametrize("how", ["wait", "sleep"])
async def test_a_step_in_a_finally_block_is_kept(mq: MessageQueue, how: str) -> None:
    calls: list[str] = []

    @mq.handler("job", max_attempts=1, result_ttl=60)
    async def job(_: None, delivery: Delivery) -> Any:
        try:
            if how == "sleep":
                return await delivery.sleep("pause", 0.05)
            return await delivery.wait("approval", timeout=20)
        finally:
            await delivery.step("clean up", calls.append, "clean up")

    async with Worker(mq):
        id = await mq.produce("job", None)
        if how == "wait":
            await until_state(mq, "job", id, State.WAITING)
            assert await mq.signal("job", id, "approval")
        assert await mq.result("job", id, timeout=20) is None
    assert calls == ["clean up"]


async def test_a_task_that_the_handler_left_behind_notes_no_step(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of the retry does not have that step, and would undo it."""
    calls: list[str] = []
    apply = Lifecycle._apply
    go_on, ended = asyncio.Event(), asyncio.Event()

    async def apply_late(self: Any, topic: str, kind: type, batch: Any) -> Any:
        if kind is RetryLater:
            go_on.set()
            await ended.wait()
        return await apply(self, topic, kind, batch)

    monkeypatch.setattr(Lifecycle, "_apply", apply_late)

    @mq.handler("job", retry=0.01, result_ttl=60)
    async def job(_: None, delivery: Delivery) -> None:
        async def charge() -> None:
            await go_on.wait()
            calls.append("charge")

        async def branch() -> None:
            try:
                await delivery.step("charge", charge)
                await delivery.step("mail", calls.append, "mail")
            finally:
                ended.set()

        async def fail() -> None:
            if delivery.attempt == 1:
                raise RuntimeError("the other branch")

        await asyncio.gather(branch(), fail())

    async with Worker(mq):
        id = await mq.produce("job", None)
        await mq.result("job", id, timeout=20)
        noted = [one.about for one in await mq.admin.history("job", id) if one.what == "noted"]
    assert calls == ["charge", "charge", "mail"]
    assert noted == ["step charge", "step mail"]


async def test_a_signal_after_the_timeout_does_not_undo_it(mq: MessageQueue) -> None:
    ways: list[str] = []

    @mq.handler("job", retry=0.01, result_ttl=60)
    async def job(_: None, delivery: Delivery) -> str:
        try:
            await delivery.wait("approval", timeout=0.05)
        except TimeoutError:
            await delivery.step("reject", ways.append, "rejected")
            if delivery.attempt == 1:
                assert await mq.signal("job", delivery.id, "approval", True)
                raise RuntimeError("after the signal") from None
            return "rejected"
        return "deployed"

    async with Worker(mq):
        id = await mq.produce("job", None)
        assert await mq.result("job", id, timeout=20) == "rejected"
    assert ways == ["rejected"]


async def test_a_signal_after_the_timeout_counts_if_nothing_was_done_since(
    mq: MessageQueue,
) -> None:
    @mq.handler("job", max_attempts=1, result_ttl=60)
    async def job(_: None, delivery: Delivery) -> Any:
        return await delivery.wait("approval", timeout=0.05)

    async with Worker(mq):
        id = await mq.produce("job", None)
        await until_state(mq, "job", id, State.DEAD)
        assert await mq.signal("job", id, "approval", 5)
        assert await mq.admin.requeue("job", id)
        assert await mq.result("job", id, timeout=20) == 5


# middleware

_tenant: ContextVar[str] = ContextVar("tenant", default="none")


class Marks(Middleware):
    """Says in a header which tenant a message is for."""

    async def produce(self, messages: Sequence[Outgoing], call_next: Produce) -> list[str]:
        headers = {"tenant": _tenant.get()}
        return await call_next([dataclasses.replace(one, headers=headers) for one in messages])


async def test_follow_ups_go_through_middleware_in_the_context_of_the_handler(
    server: Server, raw: Redis
) -> None:
    got: list[tuple[Any, str]] = []
    async with MessageQueue(server.url, middleware=[Marks()]) as mq:

        @mq.handler("order")
        async def order(_: None, delivery: Delivery) -> None:
            token, payload = _tenant.set("ann"), {"n": 1}
            delivery.produce("mail", payload)
            payload["n"] = 2
            delivery.produce("mail", payload)
            _tenant.reset(token)

        @mq.handler("mail")
        async def mail(payload: Any, delivery: Delivery) -> None:
            got.append((payload, delivery.headers["tenant"]))

        await mq.produce("order", None)
        await Worker(mq, concurrency=1).drain()
    assert got == [({"n": 1}, "ann"), ({"n": 2}, "ann")]
