"""Results, status, progress: what callers see of the messages that they wait for."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import (
    DecodeError,
    Delivery,
    InvalidInput,
    MessageDied,
    MessageQueue,
    Middleware,
    NotOpen,
    Reject,
    ResultTimeout,
    ResultUnknown,
    ServerUnavailable,
    Snooze,
    State,
    Status,
    Worker,
)
from mx_rmq.runtime import janitor
from mx_rmq.waiters import partition_waiters
from mx_rmq.waiters import waiters as module
from mx_rmq.waiters.status_reader import StatusReader
from tests.lab.proxy import Proxy
from tests.lab.servers import Kind, chosen
from tests.runtime.stage import until, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1, Kind.REDIS_7_0))


@dataclass
class Receipt:
    total: int
    at: datetime


@pytest.fixture
async def mq(server: Server, raw: Redis) -> AsyncIterator[MessageQueue]:
    async with MessageQueue(server.url) as mq:
        yield mq


@pytest.fixture
def has_read(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Is set once a waiter has read where its message is."""
    event, read = asyncio.Event(), StatusReader.read

    def noted(self: StatusReader, id: str) -> Any:
        answer = read(self, id)
        answer.add_done_callback(lambda _: event.set())
        return answer

    monkeypatch.setattr(StatusReader, "read", noted)
    return event


async def until_heard(raw: Redis, topic: str) -> None:
    """Wait until a waiter listens."""
    async with asyncio.timeout(30):
        while not (await raw.pubsub_numsub(f"mx-rmq:{{{topic}}}:results"))[0][1]:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.002)


async def test_what_the_handler_returns_is_the_result(mq: MessageQueue) -> None:
    @mq.handler("add", result_ttl=60)
    async def add(numbers: list[int]) -> int:
        return sum(numbers)

    async with Worker(mq):
        id = await mq.produce("add", [1, 2])
        assert await mq.result("add", id, timeout=30) == 3
        assert await mq.result("add", id, timeout=30) == 3
        assert await mq.status("add", id) == Status(State.COMPLETED, 1)


async def test_a_plain_handler_and_one_that_returns_nothing_have_results_too(
    mq: MessageQueue,
) -> None:
    @mq.handler("plain", result_ttl=60)
    def plain(payload: str) -> str:
        return payload.upper()

    @mq.handler("none", result_ttl=60)
    async def none(payload: str) -> None:
        pass

    async with Worker(mq):
        assert await mq.result("plain", await mq.produce("plain", "a"), timeout=30) == "A"
        assert await mq.result("none", await mq.produce("none", "a"), timeout=30) is None


async def test_the_result_is_decoded_into_the_type(mq: MessageQueue) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    @mq.handler("pay", result_ttl=60)
    async def pay(total: int) -> Receipt:
        return Receipt(total, at)

    async with Worker(mq):
        id = await mq.produce("pay", 7)
        assert await mq.result("pay", id, timeout=30, type=Receipt) == Receipt(7, at)
        assert await mq.result("pay", id) == {"total": 7, "at": "2026-01-02T03:04:05Z"}
        misfit = f"result of message '{id}' of topic 'pay' does not fit int"
        with pytest.raises(DecodeError, match=misfit):
            await mq.result("pay", id, type=int)


async def test_a_long_result_is_read(mq: MessageQueue) -> None:
    @mq.handler("long", result_ttl=60)
    async def long(size: int) -> str:
        return "x" * size

    async with Worker(mq):
        for size in (3_000, 5_000, 500_000):
            id = await mq.produce("long", size)
            assert await mq.result("long", id, timeout=30) == "x" * size


@pytest.mark.parametrize("result", [object(), "x" * 101, float("nan")], ids=["odd", "big", "nan"])
async def test_a_result_that_cannot_be_kept_fails_the_attempt(
    server: Server, raw: Redis, result: Any
) -> None:
    async with MessageQueue(server.url, max_payload=100) as mq:

        @mq.handler("bad", result_ttl=60, max_attempts=1)
        async def bad(payload: int) -> Any:
            return result

        async with Worker(mq):
            id = await mq.produce("bad", 1)
            with pytest.raises(MessageDied, match=r"the result of .*bad cannot be kept"):
                await mq.result("bad", id, timeout=30)


async def test_a_result_whose_serializer_fails_fails_the_attempt(mq: MessageQueue) -> None:
    class Broken:
        def model_dump(self, **options: Any) -> Any:
            raise LookupError("no such column")

    @mq.handler("bad", result_ttl=60, max_attempts=2, retry=[0.01])
    async def bad(payload: int) -> Any:
        return Broken()

    async with Worker(mq):
        id = await mq.produce("bad", 1)
        with pytest.raises(MessageDied, match=r"failed 2 times.*LookupError: no such column"):
            await mq.result("bad", id, timeout=30)
    found = await mq.admin.get("bad", id)
    assert found is not None
    assert "model_dump" in found.errors[-1].traceback


async def test_middleware_may_change_the_result(server: Server, raw: Redis) -> None:
    class Twice(Middleware):
        async def handle(self, delivery: Delivery, call: Any) -> Any:
            return 2 * await call(delivery)

    async with MessageQueue(server.url, middleware=[Twice()]) as mq:

        @mq.handler("one", result_ttl=60)
        async def one(payload: int) -> int:
            return payload

        async with Worker(mq):
            assert await mq.result("one", await mq.produce("one", 4), timeout=30) == 8


async def test_a_waiter_learns_at_once_that_the_message_died(mq: MessageQueue, raw: Redis) -> None:
    @mq.handler("bad", result_ttl=60)
    async def bad(payload: int) -> None:
        raise Reject("no stock")

    id = await mq.produce("bad", 1)
    waiting = asyncio.create_task(mq.result("bad", id, timeout=30))
    await until_heard(raw, "bad")
    async with Worker(mq):
        with pytest.raises(MessageDied) as died:
            await waiting
    assert (died.value.reason, died.value.error) == ("rejected: no stock", "Reject: no stock")
    assert (died.value.state, died.value.id) == (State.DEAD, id)
    assert await mq.status("bad", id) == Status(State.DEAD, 1, reason="rejected: no stock")


async def test_a_quarantined_message_has_no_result_either(mq: MessageQueue) -> None:
    @mq.handler("typed", result_ttl=60)
    async def typed(payload: int) -> None: ...

    async with Worker(mq):
        id = await mq.produce("typed", "text")
        with pytest.raises(MessageDied, match="payload does not fit int"):
            await mq.result("typed", id, timeout=30)


async def test_the_timeout_is_kept_and_the_message_goes_on(mq: MessageQueue) -> None:
    id = await mq.produce("slow", 1)
    begun = time.monotonic()
    with pytest.raises(ResultTimeout, match=r"has no result after 0\.2 s") as late:
        await mq.result("slow", id, timeout=0.2)
    assert isinstance(late.value, TimeoutError)
    assert 0.2 <= time.monotonic() - begun < 10
    assert await mq.status("slow", id) == Status(State.PENDING)


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_timeout_that_is_none_is_refused(mq: MessageQueue, seconds: float) -> None:
    with pytest.raises(InvalidInput, match=f"timeout={seconds} is not a number of seconds"):
        await mq.result("slow", "id", timeout=seconds)


async def test_an_unknown_message_is_told_apart(mq: MessageQueue) -> None:
    @mq.handler("kept", result_ttl=60)
    async def kept(payload: int) -> None: ...

    with pytest.raises(ResultUnknown, match="topic 'none' is not known"):
        await mq.result("none", "id")
    await mq.produce("plain", 1)
    with pytest.raises(ResultUnknown, match="never produced, or it has ended: the topic keeps no"):
        await mq.result("plain", "never")
    async with Worker(mq):
        await mq.result("kept", await mq.produce("kept", 1), timeout=30)
    with pytest.raises(ResultUnknown, match="its result is gone: they are kept for 60 s"):
        await mq.result("kept", "never")
    assert await mq.status("kept", "never") is None
    assert [status async for status in mq.watch("kept", "never")] == []


async def test_a_topic_that_keeps_no_results_says_so_within_seconds(
    mq: MessageQueue, has_read: asyncio.Event
) -> None:
    @mq.handler("plain")
    async def plain(payload: int) -> int:
        return payload

    id = await mq.produce("plain", 1)
    waiting = asyncio.create_task(mq.result("plain", id, timeout=30))
    await has_read.wait()
    async with Worker(mq):
        begun = time.monotonic()
        with pytest.raises(ResultUnknown, match=r"ended without a result: .* without `result_ttl`"):
            await waiting
        assert time.monotonic() - begun < 10


async def test_of_a_cancelled_message_nothing_false_is_said(
    mq: MessageQueue, has_read: asyncio.Event
) -> None:
    @mq.handler("kept", result_ttl=60)
    async def kept(payload: int) -> None: ...

    async with Worker(mq):  # it notes the result_ttl
        id = await mq.produce("kept", 1, delay=60)
        waiting = asyncio.create_task(mq.result("kept", id, timeout=30))
        await has_read.wait()
        await mq.admin.cancel("kept", id)
        with pytest.raises(ResultUnknown, match=r"without a result: it was cancelled, .* for 60 s"):
            await waiting
        with pytest.raises(ResultUnknown, match=r"never produced, or ended without .* for 60 s"):
            await mq.result("kept", id)


@pytest.mark.parametrize("ttl", [None, 60])
async def test_a_forgotten_result_ttl_is_logged_while_the_message_runs(
    mq: MessageQueue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ttl: float | None,
) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY", 0.01)
    go_on = asyncio.Event()

    @mq.handler("job", result_ttl=ttl)
    async def job(payload: int) -> None:
        await go_on.wait()

    ids = await mq.produce_many("job", range(2))
    waits = [asyncio.create_task(mq.result("job", id, timeout=30)) for id in ids]
    await asyncio.sleep(0.1)
    assert caplog.messages == []  # no worker has said yet that it keeps none
    async with Worker(mq):
        async with asyncio.timeout(30):
            while "job" not in mq._open_waiters()._asked:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.1)
        go_on.set()
        await asyncio.gather(*waits, return_exceptions=True)
    warnings = [one for one in caplog.messages if "topic job, which keeps no results" in one]
    assert len(warnings) == (1 if ttl is None else 0)


async def test_a_result_expires(mq: MessageQueue) -> None:
    @mq.handler("brief", result_ttl=0.05)
    async def brief(payload: int) -> int:
        return payload

    async with Worker(mq):
        id = await mq.produce("brief", 1)
        await mq.result("brief", id, timeout=30)
        async with asyncio.timeout(30):
            while await mq.status("brief", id) is not None:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
        with pytest.raises(ResultUnknown, match=r"kept for 0.05 s"):
            await mq.result("brief", id)


async def test_operators_do_not_see_a_result_that_has_expired(mq: MessageQueue) -> None:
    @mq.handler("brief", result_ttl=0.05)
    async def brief(payload: int) -> int:
        return payload

    async with Worker(mq):
        id = await mq.produce("brief", 1)
        await mq.result("brief", id, timeout=30)
    async with asyncio.timeout(30):
        while await mq.status("brief", id) is not None:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)
    assert (await mq.admin.stats("brief")).completed == 1  # nobody has dropped it yet
    assert await mq.admin.get("brief", id) is None
    assert await mq.admin.find(id) == []
    assert (await mq.admin.list("brief", "completed")).messages == []


async def test_a_worker_drops_expired_results_of_its_topics(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "OFTEN", 0.02)

    @mq.handler("brief", result_ttl=0.05)
    async def brief(payload: int) -> int:
        return payload

    async with Worker(mq):
        await mq.result("brief", await mq.produce("brief", 1), timeout=30)
        async with asyncio.timeout(30):
            while (await mq.admin.stats("brief")).completed:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)


async def test_progress_is_seen_by_those_who_watch(mq: MessageQueue) -> None:
    go_on = asyncio.Event()

    @mq.handler("report", result_ttl=60, retry=0.001, max_attempts=2)
    async def report(payload: int, delivery: Delivery) -> str:
        if delivery.attempt == 1:
            delivery.progress(0.9, "nearly")
            raise ValueError("again")
        delivery.progress(0.25, "first")
        delivery.progress(note="second")
        await go_on.wait()
        return "done"

    async with Worker(mq):
        id = await mq.produce("report", 1)
        seen: list[Status] = []
        async for status in mq.watch("report", id):
            seen.append(status)
            if status.note == "second":
                go_on.set()
    assert seen[-1] == Status(State.COMPLETED, 2)
    assert seen[-2].state is State.PROCESSING
    assert (seen[-2].attempt, seen[-2].progress, seen[-2].note) == (2, 0.25, "second")
    assert all(one.progress in (None, 0.25) for one in seen if one.attempt == 2)
    assert len(seen) == len(set(seen))


async def test_progress_may_be_said_in_a_thread_and_ten_thousand_times(mq: MessageQueue) -> None:
    go_on = threading.Event()

    @mq.handler("rows", result_ttl=60)
    def rows(count: int, delivery: Delivery) -> int:
        for row in range(count + 1):
            delivery.progress(row / count, f"row {row}")
        go_on.wait(30)
        return count

    async with Worker(mq):
        id = await mq.produce("rows", 10_000)
        async with asyncio.timeout(30):
            while (status := await mq.status("rows", id)) is None or status.progress != 1:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
        assert status.note == "row 10000"
        go_on.set()
        assert await mq.result("rows", id, timeout=30) == 10_000


@pytest.mark.parametrize(
    ("share", "note"), [(1.1, ""), (-0.1, ""), (float("nan"), ""), (True, ""), ("1", ""), (1, 5)]
)
async def test_a_progress_that_is_none_is_refused(mq: MessageQueue, share: Any, note: Any) -> None:
    delivery = Delivery(
        id="a",
        topic="t",
        payload=1,
        attempt=1,
        fence=1,
        headers={},
        created_at=0.0,
        deadline=None,
        extend=lambda _: None,
    )
    with pytest.raises(InvalidInput, match=r"progress\("):
        delivery.progress(share, note)
    delivery.progress(1, "x" * 1000)


async def test_ten_thousand_waiters_share_a_few_connections(
    mq: MessageQueue, raw: Redis, server: Server
) -> None:
    @mq.handler("echo", result_ttl=60)
    async def echo(payload: int) -> int:
        return payload

    ids = await mq.produce_many("echo", range(10_000))
    before = len(await raw.client_list())
    waits = [asyncio.create_task(mq.result("echo", id, timeout=120)) for id in ids]
    await until_heard(raw, "echo")
    assert len(await raw.client_list()) - before <= 4
    async with Worker(mq):
        assert await asyncio.gather(*waits) == list(range(10_000))


async def test_lost_news_costs_two_seconds_at_most(
    mq: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    @mq.handler("echo", result_ttl=60)
    async def echo(payload: int) -> int:
        return payload

    monkeypatch.setattr(module.Waiters, "_on_message", lambda *_: None)
    id = await mq.produce("echo", 1)
    waiting = asyncio.create_task(mq.result("echo", id, timeout=30))
    await until_heard(raw, "echo")
    async with Worker(mq):
        begun = time.monotonic()
        assert await waiting == 1
        assert time.monotonic() - begun < 10


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "garbage",
    [
        b"completed -16 -1\n",  # back to its beginning
        b"completed 1 -1\n",
        b"completed 1 9\nab",
        b"completed 1\na",
        b"completed 1 " + b"9" * 5000 + b"\na",
        b"\xff 1 -1\na",
        b"no newline",
    ],
)
async def test_what_others_publish_keeps_nobody_waiting(
    mq: MessageQueue, raw: Redis, garbage: bytes
) -> None:
    @mq.handler("echo", result_ttl=60)
    async def echo(payload: int) -> int:
        return payload

    id = await mq.produce("echo", 1)
    waiting = asyncio.create_task(mq.result("echo", id, timeout=10))
    await until_heard(raw, "echo")
    await raw.publish(mq.store.channel_of("echo"), garbage)
    await Worker(mq).drain()
    assert await waiting == 1


@pytest.mark.parametrize("broken", ["its type", "a field"])
async def test_a_topic_that_does_not_count_what_ends_keeps_nobody_waiting(
    mq: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    @mq.handler("echo", result_ttl=60)
    async def echo(payload: int) -> int:
        return payload

    monkeypatch.setattr(module, "CHECK_EVERY", 0.05)
    monkeypatch.setattr(partition_waiters, "READ_EVERY", 0.5)
    monkeypatch.setattr(module.Waiters, "_on_message", lambda *_: None)
    id = await mq.produce("echo", 1)
    totals = mq.store.keys.of("echo").totals
    if broken == "its type":
        await raw.set(totals, "not a hash")
    else:
        await raw.hset(totals, "completed", "not a number")
    waiting = asyncio.create_task(mq.result("echo", id))
    await until_heard(raw, "echo")
    part = mq._open_waiters()._parts["echo"]
    await until(lambda: part._all_read_at and part.brief._task and part.brief._task.done())
    await Worker(mq).drain()
    async with asyncio.timeout(30):
        assert await waiting == 1


async def test_after_a_broken_connection_everything_is_read_again(
    mq: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    @mq.handler("echo", result_ttl=60)
    async def echo(payload: int) -> int:
        return payload

    monkeypatch.setattr(module, "CHECK_EVERY", 1000)
    monkeypatch.setattr(module.Waiters, "_on_message", lambda *_: None)
    id = await mq.produce("echo", 1)
    waiting = asyncio.create_task(mq.result("echo", id, timeout=60))
    await until_heard(raw, "echo")
    async with Worker(mq):
        async with asyncio.timeout(30):
            while await mq.status("echo", id) != Status(State.COMPLETED, 1):  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
        assert not waiting.done()
        await raw.client_kill_filter(_type="pubsub")
        assert await waiting == 1


async def test_a_channel_is_heard_a_while_longer_than_its_last_waiter(
    mq: MessageQueue, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY", 0.05)
    monkeypatch.setattr(module, "LISTEN_ON", 0.3)
    id = await mq.produce("slow", 1)
    with pytest.raises(ResultTimeout):
        await mq.result("slow", id, timeout=0.1)
    assert await raw.pubsub_channels() == [b"mx-rmq:{slow}:results"]
    async with asyncio.timeout(30):
        while await raw.pubsub_channels():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)
    with pytest.raises(ResultTimeout):
        await mq.result("slow", id, timeout=0.1)


async def test_partitions_are_one_topic_to_those_who_wait(mq: MessageQueue) -> None:
    @mq.handler("spread", result_ttl=60, partitions=5)
    async def spread(payload: int) -> int:
        return payload

    async with Worker(mq):
        made = await mq.produce_many("spread", range(20))
        keyed = await mq.produce_many("spread", range(20), keys=[f"k{n}" for n in range(20)])
        own = await mq.produce_many("spread", range(20), ids=[f"own-{n}" for n in range(20)])
        for ids in (made, keyed, own):
            waits = (mq.result("spread", id, timeout=30) for id in ids)
            assert await asyncio.gather(*waits) == list(range(20))
        assert await mq.status("spread", "own-7") == Status(State.COMPLETED, 1)
        with pytest.raises(ResultUnknown):
            await mq.result("spread", "never", timeout=30)


async def test_a_queue_that_is_closed_tells_those_who_wait(server: Server, raw: Redis) -> None:
    mq = MessageQueue(server.url)
    await mq.open()
    id = await mq.produce("slow", 1)
    waiting = asyncio.create_task(mq.result("slow", id))
    await until_heard(raw, "slow")
    await mq.close()
    with pytest.raises(NotOpen):
        await waiting


async def test_a_queue_that_is_closed_tells_those_who_watch(server: Server, raw: Redis) -> None:
    mq = MessageQueue(server.url)
    await mq.open()
    id = await mq.produce("slow", 1)
    watching = mq.watch("slow", id)
    assert await anext(watching) == Status(State.PENDING)
    next_one = asyncio.ensure_future(anext(watching))
    await until_heard(raw, "slow")
    await mq.close()
    with pytest.raises(NotOpen):
        async with asyncio.timeout(5):
            await next_one


async def test_a_waiter_that_is_cancelled_leaves_nothing_behind(
    mq: MessageQueue, raw: Redis
) -> None:
    id = await mq.produce("slow", 1)
    waiting = asyncio.create_task(mq.result("slow", id))
    await until_heard(raw, "slow")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    (part,) = mq._open_waiters()._parts.values()
    assert part.waiting == {}


async def test_a_timeout_says_that_the_server_was_unreachable(
    server: Server, raw: Redis, tmp_path: Path
) -> None:
    async with Proxy(server.socket, tmp_path / "p.sock") as proxy, MessageQueue(proxy.url) as mq:
        id = await mq.produce("slow", 1)
        waiting = asyncio.create_task(mq.result("slow", id, timeout=4))
        await until_heard(raw, "slow")
        await proxy.close()
        with pytest.raises(ResultTimeout, match="after 4 s; the server was unreachable"):
            await waiting


async def follow(mq: MessageQueue, how: str, topic: str, id: str) -> object:
    """Wait for the end of a message, without a timeout, or ask where it is."""
    if how == "result":
        return await mq.result(topic, id)
    if how == "status":
        return await mq.status(topic, id)
    return [status.state async for status in mq.watch(topic, id)][-1]


def times_logged(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("how", "end"), [("result", 7), ("watch", State.COMPLETED)])
async def test_who_only_waits_logs_once_that_the_server_is_away_and_once_that_it_is_back(
    server: Server,
    raw: Redis,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    how: str,
    end: object,
) -> None:
    path = tmp_path / "p.sock"
    async with Proxy(server.socket, path) as proxy, MessageQueue(proxy.url) as mq:
        id = await mq.produce("slow", 7)
        waiting = asyncio.create_task(follow(mq, how, "slow", id))
        await until_heard(raw, "slow")
        await proxy.close()
        await until(lambda: times_logged(caplog, "the server is unreachable"))
        async with Proxy(server.socket, path):
            await until(lambda: times_logged(caplog, "the server is back"))
            async with MessageQueue(server.url) as other:

                @other.handler("slow", result_ttl=60)
                async def slow(payload: int) -> int:
                    return payload

                await Worker(other).drain()
                async with asyncio.timeout(30):
                    assert await waiting == end
    assert times_logged(caplog, "the server is unreachable") == 1
    assert times_logged(caplog, "the server is back") == 1


@pytest.mark.parametrize("how", ["result", "watch"])
async def test_who_only_waits_says_so_if_the_server_refuses_its_login(
    server: Server,
    raw: Redis,
    caplog: pytest.LogCaptureFixture,
    has_read: asyncio.Event,
    how: str,
) -> None:
    async def allow(word: str) -> None:
        rules = ("reset", word, ">p", "~*", "&*", "+@all")
        await raw.execute_command("ACL", "SETUSER", "waiter", *rules)  # type: ignore[no-untyped-call]

    await allow("on")
    try:
        async with MessageQueue(server.url.replace("://", "://waiter:p@")) as mq:
            id = await mq.produce("slow", 1)
            waiting = asyncio.create_task(follow(mq, how, "slow", id))
            await until_heard(raw, "slow")
            await has_read.wait()  # or the read would be refused
            await allow("off")
            await raw.execute_command("CLIENT", "KILL", "USER", "waiter")  # type: ignore[no-untyped-call]
            line = "the server is unreachable; still trying: the server refused this user"
            await until(lambda: times_logged(caplog, line))
            await allow("on")
            await until(lambda: times_logged(caplog, "the server is back"))
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])
        assert times_logged(caplog, "the server is unreachable") == 1
    finally:
        await raw.acl_deluser("waiter")


async def test_who_waits_says_so_if_it_cannot_check_whether_news_was_lost(
    mq: MessageQueue,
    raw: Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY", 0.02)
    id = await mq.produce("slow", 1)
    waiting = asyncio.create_task(mq.result("slow", id))
    await until_heard(raw, "slow")
    totals = mq.store.keys.of("slow").totals
    await raw.rename(totals, "away")
    await raw.set(totals, "no hash")
    await until(lambda: times_logged(caplog, "the check for results failed"))
    await raw.rename("away", totals)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert times_logged(caplog, "the check for results failed") == 1


@pytest.mark.parametrize("call", ["result", "status", "watch"])
async def test_a_read_whose_reply_is_lost_says_that_nothing_was_changed(
    server: Server, raw: Redis, tmp_path: Path, call: str
) -> None:
    path = tmp_path / "p.sock"
    async with Proxy(server.socket, path) as proxy, MessageQueue(proxy.url, patience=0.2) as mq:
        id = await mq.produce("slow", 1)
        proxy.cut_reply(1000)
        with pytest.raises(ServerUnavailable, match="nothing was changed"):
            await follow(mq, call, "slow", id)


async def test_an_attempt_that_was_aborted_or_snoozed_does_not_count(mq: MessageQueue) -> None:
    runs = asyncio.Event()

    @mq.handler("long", result_ttl=60)
    async def long(payload: str) -> None:
        if payload == "later":
            raise Snooze(60)
        runs.set()
        await asyncio.sleep(60)

    async with Worker(mq):
        later, aborted = await mq.produce_many("long", ["later", "abort"])
        await runs.wait()
        assert await mq.status("long", aborted) == Status(State.PROCESSING, 1)
        await mq.admin.abort("long", aborted, "no")
        assert await mq.status("long", aborted) == Status(State.DEAD, 0, reason="aborted: no")
        async with asyncio.timeout(30):
            while (now := await mq.status("long", later)) is None or now.state != State.DELAYED:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
        assert now.attempt == 0


async def test_an_id_that_cannot_be_sent_harms_nobody_else(mq: MessageQueue) -> None:
    id = await mq.produce("slow", 1)
    async with asyncio.timeout(10):
        told = await asyncio.gather(
            mq.status("slow", "\ud800"), mq.status("slow", id), return_exceptions=True
        )
        assert isinstance(told[0], InvalidInput)
        assert told[1] == Status(State.PENDING)
        with pytest.raises(InvalidInput):
            await mq.result("slow", "\ud800")
        assert await mq.status("slow", "\udcff") is None


@pytest.mark.parametrize("turns", range(4))
async def test_those_who_ask_after_a_read_was_cancelled_get_an_answer(
    mq: MessageQueue, turns: int
) -> None:
    id, name = await mq.produce("slow", 1), "mx-rmq waiters"
    await mq.store.register("slow")
    asked = asyncio.create_task(mq.status("slow", id))
    while not (reads := [one for one in asyncio.all_tasks() if one.get_name() == name]):  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in reads:  # as code does that cancels all tasks
        task.cancel()
    async with asyncio.timeout(10):
        with suppress(ServerUnavailable):
            assert await asked == Status(State.PENDING)
        assert await mq.status("slow", id) == Status(State.PENDING)


async def test_a_cancelled_read_of_those_who_wait_is_made_up_for(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY", 0.05)

    @mq.handler("plain")
    async def plain(payload: int) -> None: ...

    id = await mq.produce("plain", 1)
    waiting = asyncio.create_task(mq.result("plain", id))
    parts = mq._open_waiters()._parts
    await until(lambda: "plain" in parts and parts["plain"]._ended is not None)
    reader, cancelled = parts["plain"].brief, asyncio.Event()
    read_all = reader._read_all

    async def is_cancelled_first() -> None:
        if not cancelled.is_set():
            cancelled.set()
            raise asyncio.CancelledError
        await read_all()

    await until(lambda: reader._task is not None and reader._task.done())
    monkeypatch.setattr(reader, "_read_all", is_cancelled_first)
    await Worker(mq).drain()
    async with asyncio.timeout(10):
        await cancelled.wait()
        with pytest.raises(ResultUnknown):
            await waiting


async def test_those_who_wait_get_their_result_after_all_other_tasks_were_cancelled(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch, has_read: asyncio.Event
) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY", 0.05)

    @mq.handler("echo", result_ttl=60)
    async def echo(payload: int) -> int:
        return payload

    id = await mq.produce("echo", 1)
    waiting = asyncio.create_task(mq.result("echo", id))
    await has_read.wait()
    spared = {waiting, asyncio.current_task()}
    cancelled = asyncio.all_tasks() - spared  # they check, and they listen
    for task in cancelled:
        task.cancel()
    await asyncio.wait(cancelled)
    await Worker(mq).drain()
    async with asyncio.timeout(30):
        assert await waiting == 1


def test_synchronous_code_waits_too(server: Server) -> None:
    mq = MessageQueue(server.url)

    @mq.handler("echo", result_ttl=60)
    async def echo(payload: int, delivery: Delivery) -> int:
        delivery.progress(0.5)
        return payload

    async def work() -> None:
        async with mq, Worker(mq):
            await asyncio.to_thread(ended.wait)

    ended = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        id = mq.sync.produce("echo", 5)
        assert mq.sync.result("echo", id, timeout=30, type=int) == 5
        assert mq.sync.status("echo", id) == Status(State.COMPLETED, 1)
        watched = list(mq.sync.watch("echo", mq.sync.produce("echo", 6)))
        assert watched[-1] == Status(State.COMPLETED, 1)
        for status in mq.sync.watch("echo", mq.sync.produce("echo", 7)):
            assert status.attempt <= 1
            break
        with pytest.raises(ResultUnknown):
            mq.sync.result("echo", "never")
    finally:
        ended.set()
        thread.join()
        mq.sync.close()


async def test_an_embedded_server_has_results(tmp_path: Path, kind: Kind) -> None:
    async with MessageQueue(f"embedded://{tmp_path}") as mq:

        @mq.handler("echo", result_ttl=60)
        async def echo(payload: int) -> int:
            return payload

        async with Worker(mq):
            assert await mq.result("echo", await mq.produce("echo", 3), timeout=30) == 3


async def test_operators_see_what_is_kept(mq: MessageQueue) -> None:
    @mq.handler("echo", result_ttl=60)
    async def echo(payload: int) -> dict[str, int]:
        return {"n": payload}

    async with Worker(mq):
        ids = await mq.produce_many("echo", range(3))
        for id in ids:
            await mq.result("echo", id, timeout=30)
    stats = await mq.admin.stats("echo")
    assert (stats.completed, stats.total, stats.totals.completed) == (3, 0, 3)
    assert 0 < stats.completed_bytes < stats.completed_budget
    page = await mq.admin.list("echo", "completed")
    assert {one.id for one in page.messages} == set(ids)
    found = await mq.admin.get("echo", ids[2])
    assert found is not None
    assert (found.state, found.payload, found.attempts) == (State.COMPLETED, {"n": 2}, 0)
    assert found.archived_at is not None
    assert found.created_at is not None
    assert await mq.admin.audit("echo") == []


async def test_a_result_of_a_message_produced_here_needs_no_read(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[list[str]] = []
    read = mq.store.read_status

    async def counted(topic: str, ids: Any, **options: Any) -> Any:
        reads.append(list(ids))
        return await read(topic, ids, **options)

    monkeypatch.setattr(mq.store, "read_status", counted)

    @mq.handler("t", result_ttl=60)
    async def handle(number: int) -> int:
        if number == 7:
            raise Reject("seven")
        return number

    async def ask(number: int) -> Any:
        return await mq.result("t", await mq.produce("t", number), timeout=30)

    async with Worker(mq):
        assert await ask(0) == 0  # from now on the channel is heard
        reads.clear()
        assert await asyncio.gather(*map(ask, range(100, 200))) == [*range(100, 200)]
        assert sum(map(len, reads)) < 10  # a check every two seconds may read
        id = await mq.produce("t", 1)  # its result may come before there is a waiter
        await until_so(lambda: is_completed(mq, id))
        assert await mq.result("t", id, timeout=30) == 1
        assert await mq.result("t", id, timeout=30) == 1
        with pytest.raises(MessageDied, match="seven"):
            await ask(7)


async def is_completed(mq: MessageQueue, id: str) -> bool:
    status = await mq.status("t", id)
    return status is not None and status.state is State.COMPLETED


async def test_a_waiter_that_skipped_its_read_hears_of_an_end_that_was_counted_before(
    mq: MessageQueue,
) -> None:
    """The end came before the produce was answered, and a check forgot it in between."""

    @mq.handler("t", result_ttl=60)
    async def handle(number: int) -> int:
        return number

    async with Worker(mq):
        other = await mq.produce("t", 0, delay=3600)
        waiting = asyncio.create_task(mq.result("t", other))
        id = await mq.produce("t", 1)
        assert await mq.result("t", id, timeout=30) == 1
        part = mq._open_waiters()._parts["t"]
        await part.check()
        mq._open_waiters().produced("t", id)  # as if the answer came only now
        assert await mq.result("t", id, timeout=30) == 1
        waiting.cancel()


async def test_a_generated_id_that_is_produced_again_has_its_new_result(mq: MessageQueue) -> None:
    @mq.handler("t", result_ttl=60)
    async def handle(text: str) -> str:
        return text

    async with Worker(mq):
        first = await mq.produce("t", "first")
        assert await mq.result("t", first, timeout=30) == "first"
        id = await mq.produce("t", "old")
        await until_so(lambda: is_completed(mq, id))
        await mq.produce("t", "new", id=id, on_duplicate="replace")
        assert await mq.result("t", id, timeout=30) == "new"


async def test_a_waiter_that_skipped_its_read_may_time_out_be_cancelled_or_closed(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY", 3600.0)  # a check forgets what is fresh
    with pytest.raises(ResultTimeout):  # from now on the channel is heard
        await mq.result("slow", await mq.produce("slow", 0), timeout=0.01)
    part = mq._open_waiters()._parts["slow"]

    async def wait(seconds: float | None = None) -> asyncio.Task[Any]:
        id = await mq.produce("slow", 1)
        assert part.fresh == {id: True}
        waiting = asyncio.create_task(mq.result("slow", id, timeout=seconds))
        await until(lambda: id in part.waiting)
        assert part.fresh == {}
        return waiting

    with pytest.raises(ResultTimeout, match=r"has no result after 0\.2 s"):
        await (await wait(0.2))
    waiting = await wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert part.waiting == {}
    waiting = await wait()
    await mq.close()
    with pytest.raises(NotOpen):
        await waiting


async def test_a_waiter_that_skipped_its_read_learns_that_the_message_was_cancelled(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY", 0.05)
    with pytest.raises(ResultTimeout):  # from now on the channel is heard
        await mq.result("slow", await mq.produce("slow", 0), timeout=0.01)
    part = mq._open_waiters()._parts["slow"]
    id = await mq.produce("slow", 1)
    waiting = asyncio.create_task(mq.result("slow", id, timeout=30))
    await until(lambda: id in part.waiting)
    await mq.admin.cancel("slow", id)
    with pytest.raises(ResultUnknown, match=r"has ended without a result: it was cancelled, "):
        await waiting
