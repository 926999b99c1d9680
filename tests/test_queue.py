"""MessageQueue: declaring, opening, producing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import (
    Delivery,
    Exponential,
    InvalidInput,
    MessageQueue,
    Middleware,
    MxRmqError,
    NotOpen,
    Outgoing,
    PartlyProduced,
    PayloadTooLarge,
    QueueFull,
    ServerUnavailable,
)
from mx_rmq.core.message import Priority, State
from tests.lab.proxy import Proxy
from tests.runtime.stage import on_servers, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.servers import Server


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


def closed() -> MessageQueue:
    return MessageQueue("redis://nowhere.invalid:1")


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(InvalidInput) as caught:
        call()
    return str(caught.value)


# declaring


def test_a_handler_is_declared_without_a_connection_and_the_function_stays_itself() -> None:
    mq = closed()

    @mq.handler("t", concurrency=3, timeout=5, max_attempts=2, max_crashes=4, retry=[1, 2])
    async def handle(payload: int) -> int:
        return payload

    declared = mq.handlers["t"]
    assert declared.function is handle
    assert (declared.concurrency, declared.timeout, declared.max_attempts) == (3, 5.0, 2)
    assert declared.max_crashes == 4
    assert not mq.is_open


def test_a_topic_has_one_handler_and_the_second_is_told_of_the_first() -> None:
    mq = closed()

    @mq.handler("t")
    async def first(payload: int) -> None: ...

    async def second(payload: int) -> None: ...

    words = refused(lambda: mq.handler("t")(second))
    assert "first" in words
    assert "second" in words
    assert mq.handlers["t"].function is first


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"timeout": 0},
        {"timeout": inf},
        {"max_attempts": 0},
        {"max_crashes": -1},
        {"retry": "soon"},
        {"retry": [-1]},
    ],
)
def test_a_handlers_bad_option_is_refused_by_name(options: dict[str, Any]) -> None:
    async def handle(payload: int) -> None: ...

    ((name, _),) = options.items()
    assert name in refused(lambda: closed().handler("t", **options)(handle))


@pytest.mark.parametrize("topic", ["", "a b", "a@b", "{a}", "x" * 129])
def test_a_bad_topic_is_refused(topic: str) -> None:
    async def handle(payload: int) -> None: ...

    assert "topic" in refused(lambda: closed().handler(topic)(handle))


@pytest.mark.parametrize("function", [lambda: None, lambda a, b: None, 5, int])
def test_a_function_that_takes_no_payload_is_refused(function: Any) -> None:
    refused(lambda: closed().handler("t")(function))


def test_a_local_type_may_annotate_a_payload() -> None:
    class Order(dict[str, int]): ...

    mq = closed()

    @mq.handler("t")
    async def handle(payload: list[int], delivery: Delivery) -> None: ...

    assert mq.handlers["t"].payload_type == list[int]
    assert mq.handlers["t"].wants_delivery


def test_a_cron_is_a_handler_without_a_payload() -> None:
    mq = closed()

    @mq.cron("0 3 * * *", tz="Europe/Berlin", missed="once", timeout=9)
    async def nightly() -> None: ...

    assert mq.crons["cron.nightly"].missed == "once"
    assert mq.handlers["cron.nightly"].timeout == 9
    assert mq.handlers["cron.nightly"].concurrency == 1
    assert not mq.handlers["cron.nightly"].wants_payload


def test_a_cron_that_is_refused_leaves_nothing_behind() -> None:
    mq = closed()

    async def wants(payload: int) -> None: ...

    async def good() -> None: ...

    refused(lambda: mq.cron("0 3 * * *")(wants))
    refused(lambda: mq.cron("0 99 * * *")(good))
    assert mq.handlers == {}
    assert mq.crons == {}


# opening


async def test_a_queue_that_is_not_open_says_what_to_do() -> None:
    mq = closed()
    with pytest.raises(NotOpen, match="async with mq"):
        await mq.produce("t", 1)
    with pytest.raises(NotOpen, match="async with mq"):
        await mq.produce_many("t", [1, 2])
    with pytest.raises(NotOpen):
        _ = mq.admin


async def test_a_queue_that_is_not_open_may_be_closed() -> None:
    await closed().close()


@on_servers
async def test_a_queue_is_opened_once_at_a_time_and_again_after_it_was_closed(
    raw: Redis, server: Server
) -> None:
    mq = MessageQueue(server.url)
    async with mq:
        assert mq.is_open
        with pytest.raises(InvalidInput, match="already open"):
            await mq.open()
        await mq.produce("t", 1)
    assert not mq.is_open
    with pytest.raises(NotOpen):
        await mq.produce("t", 1)
    async with mq:
        await mq.produce("t", 2)
        assert (await mq.admin.stats("t")).pending == 2


async def test_it_is_open_while_an_asgi_application_runs(raw: Redis, server: Server) -> None:
    mq = MessageQueue(server.url)
    for _ in range(2):  # as in two tests of an application
        async with mq.open_in_app(object()) as state:
            assert mq.is_open
            assert state is None  # Starlette would take anything else as the state of its requests
        assert not mq.is_open


@on_servers
async def test_a_queue_that_was_opened_in_another_loop_says_so(mq: MessageQueue) -> None:
    def elsewhere() -> str:
        async def produce() -> None:
            await mq.produce("t", 1)

        with pytest.raises(NotOpen) as caught:
            asyncio.run(produce())
        return str(caught.value)

    words = await asyncio.to_thread(elsewhere)
    assert "another event loop" in words
    assert "mq.sync" in words


async def test_a_server_that_is_not_there_is_told_within_patience(tmp_path: Path) -> None:
    mq = MessageQueue(f"unix://{tmp_path}/none.sock", patience=0.3)
    begun = time.monotonic()
    with pytest.raises(ServerUnavailable, match=r"none\.sock"):
        await mq.open()
    assert time.monotonic() - begun < 8  # the usual patience is 10
    assert not mq.is_open


@on_servers
async def test_settings_come_from_the_environment(
    raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MX_RMQ_URL", server.url)
    monkeypatch.setenv("MX_RMQ_LEASE", "7.5")
    monkeypatch.setenv("MX_RMQ_MAX_PENDING", "2")
    monkeypatch.setenv("MX_RMQ_PREFIX", "other")
    async with MessageQueue(lease=9) as mq:
        assert mq.settings.lease == 9
        assert mq.settings.prefix == "other"
        await mq.produce_many("t", [1, 2])
        with pytest.raises(QueueFull):
            await mq.produce("t", 3)
    assert [key async for key in raw.scan_iter("mx-rmq:*")] == []


def test_a_queue_without_a_url_says_where_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MX_RMQ_URL", raising=False)
    assert "MX_RMQ_URL" in refused(MessageQueue)


# producing


@on_servers
async def test_every_option_of_a_produce_reaches_the_message(mq: MessageQueue) -> None:
    id = await mq.produce(
        "t",
        {"a": 1},
        delay=30,
        priority="high",
        ttl=60,
        id="mine",
        headers={"trace": "x"},
        max_attempts=9,
        retry=Exponential(first=3),
    )
    assert id == "mine"
    view = await mq.admin.get("t", id)
    assert view is not None
    assert (view.state, view.payload, view.headers) == (State.DELAYED, {"a": 1}, {"trace": "x"})
    assert (view.priority, view.max_attempts) == (Priority.HIGH, 9)
    assert view.created_at is not None
    assert view.expires_at == pytest.approx(view.created_at + 60)
    assert view.due == pytest.approx(view.created_at + 30, abs=0.01)
    assert b'"first":3' in view.raw


@on_servers
@pytest.mark.parametrize("form", ["aware", "other zone", "number"])
async def test_at_may_be_a_moment_in_any_form_that_is_one(mq: MessageQueue, form: str) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    at: Any = {
        "aware": moment,
        "other zone": moment.astimezone(timezone(timedelta(hours=-7))),
        "number": moment.timestamp(),
    }[form]
    view = await mq.admin.get("t", await mq.produce("t", 1, at=at))
    assert view is not None
    assert view.due == moment.timestamp()


@on_servers
async def test_a_moment_that_has_passed_is_due_at_once(mq: MessageQueue) -> None:
    await mq.produce("t", 1, at=1000)
    assert await mq.store.get_next_delay_task("t") == 0


@on_servers
async def test_a_moment_without_a_zone_is_refused(mq: MessageQueue) -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - that is the point
    with pytest.raises(InvalidInput, match="at=2030-01-01T00:00:00 has no time zone; in UTC it"):
        await mq.produce("t", 1, at=naive)
    with pytest.raises(InvalidInput, match="time zone"):
        await mq.produce_many("t", [1], at=naive)


@on_servers
@pytest.mark.parametrize("name", ["delay", "ttl", "at"])
@pytest.mark.parametrize("value", [-1, -0.5, inf, nan, "5", True, 1e300])
async def test_a_time_that_is_none_is_refused_by_name_value_and_rule(
    mq: MessageQueue, name: str, value: Any
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await mq.produce("t", 1, **{name: value})
    words = str(caught.value)
    assert f"{name}=" in words
    assert "is not a" in words
    assert await mq.admin.topics() == []


@on_servers
@pytest.mark.parametrize(("name", "value"), [("ttl", 0.0001), ("delay", 5e12)])
async def test_a_time_that_is_out_of_range_is_shown_as_it_was_given(
    mq: MessageQueue, name: str, value: Any
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await mq.produce("t", 1, **{name: value})
    assert f"{name}={value!r}" in str(caught.value)


@on_servers
async def test_a_message_that_could_only_expire_is_refused(mq: MessageQueue) -> None:
    with pytest.raises(InvalidInput, match="ttl=5 and delay=10: the message would expire before"):
        await mq.produce("t", 1, ttl=5, delay=10)
    await mq.produce("t", 1, ttl=10, delay=5)


@on_servers
async def test_a_time_that_is_no_float_is_refused_like_the_others(mq: MessageQueue) -> None:
    with pytest.raises(InvalidInput):
        await mq.produce("t", 1, delay=10**400)


@on_servers
@pytest.mark.parametrize(
    "options",
    [
        {"delay": 1, "at": 2e9},
        {"priority": "urgent"},
        {"max_attempts": 0},
        {"retry": "never"},
        {"headers": {"a": 1}},
        {"headers": "x"},
        {"id": "a b"},
        {"id": ""},
        {"ttl": 0},
        {"ttl": 5, "delay": 10},
        {"ttl": 5, "delay": 5},
    ],
)
async def test_a_bad_option_is_refused_and_nothing_is_stored(
    mq: MessageQueue, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        await mq.produce("t", 1, **options)
    with pytest.raises((InvalidInput, TypeError)):
        await mq.produce_many(
            "t", [1, 2], **({"ids": ["ok", options["id"]]} if "id" in options else options)
        )
    assert await raw_count(mq) == 0


@on_servers
async def test_an_option_that_produce_does_not_have_is_named(mq: MessageQueue) -> None:
    with pytest.raises(TypeError, match=r"produce\(\) has no option 'eta'; .* are id, key, delay"):
        await mq.produce("t", 1, eta=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"produce_many\(\) has no option 'id'; .* are ids, keys, "):
        await mq.produce_many("t", [1], id="a")  # type: ignore[call-arg]


async def raw_count(mq: MessageQueue) -> int:
    return (await mq.store.views.counts("t")).total


@on_servers
async def test_a_payload_that_is_no_json_or_too_large_is_refused(mq: MessageQueue) -> None:
    with pytest.raises(InvalidInput, match="as JSON"):
        await mq.produce("t", object())
    with pytest.raises(PayloadTooLarge):
        await mq.produce("t", "x" * 2_000_000)
    with pytest.raises(PayloadTooLarge) as caught:
        await mq.produce_many("t", [1, "x" * 2_000_000])
    assert caught.value.__notes__ == ["This is message 1, counted from 0. None was produced."]
    assert await raw_count(mq) == 0


# many


@on_servers
async def test_many_are_stored_in_order_and_their_ids_returned(mq: MessageQueue) -> None:
    ids = await mq.produce_many("t", (number for number in range(2500)))
    assert len(set(ids)) == 2500
    assert await raw_count(mq) == 2500
    taken = await mq.store.dispatch_message("t", "w", count=1000, lease=60_000)
    assert [one.id for one in taken.messages] == ids[:1000]


@on_servers
async def test_none_are_no_call(mq: MessageQueue) -> None:
    assert await mq.produce_many("t", []) == []
    assert await mq.admin.topics() == []


@on_servers
async def test_many_may_have_ids_of_their_own(mq: MessageQueue) -> None:
    assert await mq.produce_many("t", [1, 2], ids=["a", "b"]) == ["a", "b"]
    assert await mq.produce_many("t", [1, 2, 3], ids=["a", "b", "c"]) == ["a", "b", "c"]
    assert await raw_count(mq) == 3
    with pytest.raises(InvalidInput, match="2 ids for 3 payloads"):
        await mq.produce_many("t", [1, 2, 3], ids=["x", "y"])


@on_servers
async def test_many_that_do_not_all_fit_say_which_are_stored(raw: Redis, server: Server) -> None:
    async with queue(server.url, max_pending=1200) as mq:
        with pytest.raises(PartlyProduced) as caught:
            await mq.produce_many("t", range(2500))
        assert len(caught.value.ids) == 1000
        assert caught.value.unknown == ()
        assert isinstance(caught.value.__cause__, QueueFull)
        assert await raw_count(mq) == 1000
        with pytest.raises(QueueFull):
            await mq.produce_many("t", range(501))
        assert await raw_count(mq) == 1000


@on_servers
async def test_many_whose_reply_is_lost_say_what_is_not_known(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        queue(proxy.url, patience=0.2) as mq,
    ):
        await mq.produce("t", 1)
        proxy.cut_reply(100, match=b"second-")
        ids = [f"first-{n}" for n in range(1000)] + [f"second-{n}" for n in range(5)]
        with pytest.raises(PartlyProduced) as caught:
            await mq.produce_many("t", range(1005), ids=ids)
        assert list(caught.value.ids) == ids[:1000]
        assert list(caught.value.unknown) == ids[1000:]
        assert "1,000 of 1,005" in str(caught.value)


@on_servers
async def test_everything_is_checked_before_the_first_call(mq: MessageQueue) -> None:
    ids = [f"i-{n}" for n in range(1500)]
    ids[1200] = "not an id"
    with pytest.raises(InvalidInput):
        await mq.produce_many("t", range(1500), ids=ids)
    assert await raw_count(mq) == 0


# middleware


class Stamp(Middleware):
    def __init__(self, name: str) -> None:
        self.name = name

    async def produce(
        self, messages: Sequence[Outgoing], call_next: Callable[..., Awaitable[list[str]]]
    ) -> list[str]:
        from dataclasses import replace

        return await call_next(
            [
                replace(one, headers={**one.headers, "by": one.headers.get("by", "") + self.name})
                for one in messages
            ]
        )


@on_servers
async def test_middleware_goes_around_every_produce_the_first_outermost(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, middleware=[Stamp("a"), Stamp("b")]) as mq:
        ids = [await mq.produce("t", 1), *await mq.produce_many("t", [1, 2])]
        for id in ids:
            view = await mq.admin.get("t", id)
            assert view is not None
            assert view.headers == {"by": "ab"}


@on_servers
async def test_middleware_may_refuse_a_produce_or_send_it_elsewhere(
    raw: Redis, server: Server
) -> None:
    class Router(Middleware):
        async def produce(
            self, messages: Sequence[Outgoing], call_next: Callable[..., Awaitable[list[str]]]
        ) -> list[str]:
            from dataclasses import replace

            if any(one.payload == "bad" for one in messages):
                raise PermissionError
            return await call_next([replace(one, topic=f"t{one.payload % 2}") for one in messages])

    async with queue(server.url, middleware=[Router()]) as mq:
        assert len(await mq.produce_many("t", range(10))) == 10
        with pytest.raises(PermissionError):
            await mq.produce("t", "bad")
        assert await mq.admin.topics() == ["t0", "t1"]
        assert (await mq.admin.stats("t0")).pending == 5


async def test_all_errors_have_one_root() -> None:
    assert issubclass(InvalidInput, MxRmqError)
    assert issubclass(InvalidInput, ValueError)


@on_servers
async def test_a_refused_message_behind_a_call_under_way_is_told_with_what_is_stored(
    raw: Redis, server: Server
) -> None:
    class Heads(Middleware):
        async def produce(self, messages: Sequence[Any], call_next: Any) -> list[str]:
            large = {"h": "x" * 70_000}
            ids: list[str] = await call_next(
                [replace(one, headers=large) if one.payload == 1500 else one for one in messages]
            )
            return ids

    async with queue(server.url, middleware=[Heads()]) as mq:
        with pytest.raises(PartlyProduced) as caught:
            await mq.produce_many("t", range(2000))
        assert len(caught.value.ids) == 1500
        assert (await mq.store.views.counts("t")).pending == 1500


@on_servers
async def test_a_cancelled_produce_many_leaves_no_call_behind(raw: Redis, server: Server) -> None:
    async with queue(server.url) as mq:
        await mq.produce("t", 0)
        for turns in range(25):
            task = asyncio.create_task(mq.produce_many("t", range(2500)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not [one for one in asyncio.all_tasks() if "producer" in one.get_name()]


def test_a_misspelt_option_is_refused_by_name() -> None:
    mq = MessageQueue("redis://nowhere")
    wrong: Any = {"timout": 5}
    with pytest.raises(TypeError, match=r"handler\(\) has no option 'timout'; its options are tim"):
        mq.handler("t", **wrong)
    with pytest.raises(TypeError, match=r"cron\(\) has no option 'partitions'; its options are tz"):
        mq.cron("* * * * *", **{"partitions": 2, **wrong})
    wrong = {"leese": None}
    with pytest.raises(TypeError, match="'leese' is not a setting; did you mean 'lease'"):
        MessageQueue("redis://nowhere", **wrong)
