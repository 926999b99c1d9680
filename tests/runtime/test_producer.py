"""Concurrent produce calls share script calls; each caller gets his own answer."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mx_rmq import (
    InvalidInput,
    MessageQueue,
    PayloadTooLarge,
    ProduceUnknown,
    QueueFull,
    ServerUnavailable,
)
from mx_rmq.core import codec
from mx_rmq.core.partition import number_for, number_in, partitions
from mx_rmq.runtime.producer import MAX_CALL_BYTES, MAX_CHUNK, MIN_RUN, chunks
from tests.lab.messages import draft, drafts
from tests.lab.proxy import Proxy
from tests.lab.snapshot import snapshot
from tests.runtime.stage import commands, on_a_server, on_servers, queue, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq.core.message import Message
    from tests.lab.servers import Server


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        await mq.produce("warm", 0)  # the scripts are loaded
        yield mq


async def pending(mq: MessageQueue, topic: str = "t") -> list[Any]:
    """Return the payloads that are pending, the next one first."""
    page = await mq.admin.list(topic, "pending", limit=1000)
    return [message.payload for message in page.messages]


@on_servers
async def test_a_hundred_callers_at_once_make_few_calls(mq: MessageQueue, raw: Redis) -> None:
    before = (await commands(raw))["evalsha"]
    ids = await asyncio.gather(*(mq.produce("t", number) for number in range(100)))
    assert (await commands(raw))["evalsha"] - before <= 3
    assert len(set(ids)) == 100
    for number, id in enumerate(ids):
        message = await mq.admin.get("t", id)
        assert message is not None
        assert message.payload == number


@on_servers
async def test_a_lone_caller_is_sent_at_once(mq: MessageQueue, raw: Redis) -> None:
    await mq.store.register("t")
    before = (await commands(raw))["evalsha"]
    for number in range(10):
        await mq.produce("t", number)
    assert (await commands(raw))["evalsha"] - before == 10


@on_servers
async def test_callers_that_come_back_together_share_one_call(mq: MessageQueue, raw: Redis) -> None:
    async def calls_of(callers: int) -> int:
        before = (await commands(raw))["evalsha"]
        await asyncio.gather(*(mq.produce("t", number) for number in range(callers)))
        return (await commands(raw))["evalsha"] - before

    await calls_of(100)
    assert await calls_of(100) == 1
    (channel,) = [one for one in mq._open_producer()._channels.values() if one.name == "t"]
    assert channel.shared
    assert await calls_of(1) == 1
    assert not channel.shared  # so that the next lone one is sent at once


@on_servers
async def test_what_one_caller_produces_keeps_its_order(mq: MessageQueue) -> None:
    async def caller(name: str) -> None:
        for number in range(20):
            await mq.produce("t", [name, number])

    await asyncio.gather(*(caller(name) for name in "abcd"))
    found = await pending(mq)
    for name in "abcd":
        assert [number for who, number in found if who == name] == list(range(20))


@on_servers
async def test_calls_that_were_begun_in_an_order_are_stored_in_it(mq: MessageQueue) -> None:
    await asyncio.gather(*(mq.produce("t", number) for number in range(200)))
    assert await pending(mq) == list(range(200))


@on_servers
async def test_immediate_and_delayed_ones_go_their_own_ways(mq: MessageQueue) -> None:
    await asyncio.gather(
        *(mq.produce("t", number, delay=60 if number % 2 else None) for number in range(50))
    )
    stats = await mq.admin.stats("t")
    assert (stats.pending, stats.delayed) == (25, 25)


@on_servers
@pytest.mark.parametrize(
    "bad", [{"payload": object()}, {"payload": "x" * 2_000_000}, {"delay": -1}, {"topic": "a b"}]
)
async def test_one_bad_message_does_not_hurt_the_others(
    mq: MessageQueue, bad: dict[str, Any]
) -> None:
    asked = {"topic": "t", "payload": 1, **bad}
    results = await asyncio.gather(
        *(mq.produce("t", number) for number in range(20)),
        mq.produce(**asked),
        *(mq.produce("t", number) for number in range(20)),
        return_exceptions=True,
    )
    errors = [result for result in results if isinstance(result, BaseException)]
    assert len(errors) == 1
    assert isinstance(results[20], InvalidInput)
    assert (await mq.admin.stats("t")).pending == 40


@on_servers
@pytest.mark.parametrize("bad", [{"id": "not an id"}, {"headers": {"h": "x" * 70_000}}])
async def test_one_bad_id_or_header_does_not_hurt_the_others(
    mq: MessageQueue, bad: dict[str, Any]
) -> None:
    results = await asyncio.gather(
        *(mq.produce("t", number) for number in range(20)),
        mq.produce("t", 1, **bad),
        *(mq.produce("t", number) for number in range(20)),
        return_exceptions=True,
    )
    assert isinstance(results[20], InvalidInput)
    assert [result for result in results if isinstance(result, BaseException)] == [results[20]]
    assert (await mq.admin.stats("t")).pending == 40


@on_servers
async def test_of_callers_at_a_full_queue_some_may_still_get_in(raw: Redis, server: Server) -> None:
    async with queue(server.url, max_pending=7) as mq:
        results = await asyncio.gather(
            *(mq.produce("t", number) for number in range(20)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, QueueFull)]
        ids = [result for result in results if isinstance(result, str)]
        assert (len(ids), len(refused)) == (7, 13)
        assert await pending(mq) == list(range(7))
        assert refused[0].topic == "t"
        assert refused[0].limit == 7


@on_servers
async def test_an_own_id_that_is_taken_makes_no_second_message(mq: MessageQueue) -> None:
    ids = await asyncio.gather(*(mq.produce("t", number, id="mine") for number in range(20)))
    assert set(ids) == {"mine"}
    assert await pending(mq) == [0]


@on_servers
async def test_a_produce_whose_reply_is_lost_tells_each_caller_his_own_id(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        queue(proxy.url, patience=0.3) as mq,
    ):
        await mq.produce("t", "first")
        proxy.cut_reply(100, match=b"lost-")
        results = await asyncio.gather(
            *(mq.produce("t", number, id=f"lost-{number}") for number in range(30)),
            return_exceptions=True,
        )
        for number, result in enumerate(results):
            assert isinstance(result, ProduceUnknown)
            assert result.ids == (f"lost-{number}",)
        proxy._orders.clear()
        again = await asyncio.gather(
            *(mq.produce("t", number, id=f"lost-{number}") for number in range(30))
        )
        assert again == [f"lost-{number}" for number in range(30)]
        assert sorted((await pending(mq))[1:]) == list(range(30))


@on_servers
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
async def test_a_produce_whose_reply_is_lost_for_good_returns_no_id(
    raw: Redis, server: Server, tmp_path: Path, many: bool
) -> None:
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        queue(proxy.url, patience=0.3, audit=False) as mq,
    ):
        await mq.produce("t", "first")
        closing = []

        async def go_away() -> None:
            closing.append(asyncio.create_task(proxy.close()))

        proxy.cut_reply(then=go_away)
        with pytest.raises(ProduceUnknown) as raised:
            await (mq.produce_many("t", ["second"]) if many else mq.produce("t", "second"))
        await asyncio.gather(*closing)
        (id,) = raised.value.ids
        assert await raw.hexists("mx-rmq:{t}:payload", id)


@on_servers
async def test_a_reply_that_is_lost_once_is_asked_for_again_unnoticed(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    async with Proxy(server.socket, tmp_path / "p.sock") as proxy, queue(proxy.url) as mq:
        await mq.produce("t", "first")
        proxy.cut_reply(2)
        proxy.cut_request(2)
        ids = await asyncio.gather(*(mq.produce("t", number) for number in range(30)))
        assert len(set(ids)) == 30
        assert sorted((await pending(mq))[1:]) == list(range(30))


@on_servers
async def test_a_caller_that_is_cancelled_hurts_no_other_one(mq: MessageQueue) -> None:
    tasks = [asyncio.create_task(mq.produce("t", number)) for number in range(50)]
    await asyncio.sleep(0)
    for task in tasks[10:20]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[10:20])
    assert all(isinstance(result, str) for result in results[:10] + results[20:])
    found = await pending(mq)
    assert [number for number in found if not 10 <= number < 20] == [*range(10), *range(20, 50)]
    assert await mq.produce("t", "next")


@on_servers
async def test_closing_waits_for_what_is_being_produced(raw: Redis, server: Server) -> None:
    async with queue(server.url) as mq:
        tasks = [asyncio.create_task(mq.produce("t", number)) for number in range(2500)]
        await asyncio.sleep(0)
    assert len(set(await asyncio.gather(*tasks))) == 2500
    assert await raw.llen("mx-rmq:{t}:pending") == 2500


@on_servers
async def test_a_server_that_is_away_is_told_to_every_caller(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    proxy = Proxy(server.socket, tmp_path / "p.sock")
    async with proxy, queue(proxy.url, patience=0.2, audit=False) as mq:
        await mq.produce("t", 1)
        await proxy.close()
        results = await asyncio.gather(
            *(mq.produce("t", number) for number in range(10)), return_exceptions=True
        )
        assert {type(result) for result in results} <= {ServerUnavailable, ProduceUnknown}
        await proxy.__aenter__()
        assert await mq.produce("t", 1)


async def give_up(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@on_servers
async def test_what_waits_for_its_turn_is_not_sent_when_its_caller_gives_up(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    async with Proxy(server.socket, tmp_path / "p.sock") as proxy, queue(proxy.url) as mq:
        await mq.produce("t", "first")
        callers: list[asyncio.Task[str]] = []

        async def half_give_up() -> None:
            await give_up(callers[1::2])

        proxy.delay_reply(then=half_give_up)
        callers += [asyncio.create_task(mq.produce("t", number)) for number in range(101)]
        await asyncio.wait(callers)
        assert await pending(mq) == ["first", *range(0, 101, 2)]


@on_servers
@pytest.mark.parametrize("many", [False, True], ids=["one by one", "many"])
async def test_what_was_never_sent_is_not_sent_after_its_callers_have_given_up(
    raw: Redis, server: Server, tmp_path: Path, many: bool
) -> None:
    proxy = Proxy(server.socket, tmp_path / "p.sock")
    async with proxy, queue(proxy.url) as mq:
        await mq.produce("t", "first")
        await proxy.close()  # the server is away
        works = (
            [mq.produce_many("t", range(2000))]
            if many
            else [mq.produce("t", number) for number in range(100)]
        )
        callers = [asyncio.create_task(work) for work in works]
        await until(mq.store.links.lost)
        await give_up(callers[:1])  # it was the first to be tried; the others go out together
        await until(lambda: not _waiting(mq))
        if not many:
            await give_up(callers[1::2])
        await proxy.__aenter__()
        await mq.produce("t", "last")
        await asyncio.wait(callers)
        found = await pending(mq)
        kept = [] if many else [*range(2, 100, 2)]
        assert [one for one in found if isinstance(one, int)] == kept
        assert (found[0], found[-1]) == ("first", "last")


def _waiting(mq: MessageQueue) -> int:
    """Return how many messages are in no call yet."""
    assert mq._producer is not None
    return sum(len(channel.waiting) for channel in mq._producer._channels.values())


# chunks


def cut(some: list[Message], places: Sequence[int] | None = None) -> list[list[int]]:
    """Return the places in each chunk."""
    everywhere = range(len(some)) if places is None else places
    return [list(chunk) for chunk in chunks(some, everywhere)]


def test_a_chunk_holds_500_messages() -> None:
    sizes = [len(chunk) for chunk in cut(drafts(2 * MAX_CHUNK + 1))]
    assert sizes == [MAX_CHUNK, MAX_CHUNK, 1]


def test_a_chunk_holds_a_megabyte_or_one_message() -> None:
    large = [draft("x" * 400_000) for _ in range(5)]
    assert cut(large) == [[0, 1], [2, 3], [4]]
    huge = [draft(1), draft("x" * MAX_CALL_BYTES), draft("x" * MAX_CALL_BYTES), draft(1)]
    assert cut(huge) == [[0], [1], [2], [3]]


def test_chunks_keep_the_order_and_part_at_a_change_of_script() -> None:
    mixed = [draft(1), draft(2), draft(3, delay=5), draft(4, at=7), draft(5)]
    assert cut(mixed) == [[0, 1], [2, 3], [4]]


def test_chunks_are_cut_from_the_places_that_they_are_given() -> None:
    mixed = [
        draft(1),
        draft("x" * MAX_CALL_BYTES),
        draft(3, delay=5),
        draft(4),
        draft(5),
        draft(6, at=7),
    ]
    assert cut(mixed, [0, 3, 4]) == [[0, 3, 4]]
    assert cut(mixed, [5, 2, 0, 4]) == [[5, 2], [0, 4]]
    assert cut(mixed, [0, 1, 3]) == [[0], [1], [3]]


def test_nothing_makes_no_chunk() -> None:
    assert cut([]) == []
    assert cut(drafts(3), []) == []


@on_servers
async def test_many_large_payloads_go_out_in_calls_of_a_megabyte(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    async with Proxy(server.socket, tmp_path / "p.sock") as proxy, queue(proxy.url) as mq:
        await mq.produce("t", 1)
        before = len(proxy.requests)
        await asyncio.gather(*(mq.produce("t", "x" * 200_000) for _ in range(20)))
        calls = [request for request in proxy.requests[before:] if b"EVALSHA" in request]
        assert len(calls) >= 4
        assert max(map(len, calls)) < MAX_CALL_BYTES + 300_000
        with pytest.raises(PayloadTooLarge):
            await mq.produce("t", "x" * MAX_CALL_BYTES)


# partitions


async def dealt(raw: Redis, count: int, topic: str = "t") -> list[list[Any]]:
    """Return the payloads that are pending in each partition, in order, those with keys last."""
    dealt = []
    for name in partitions(topic, count):
        found = await snapshot(raw, name)
        ids = found.normal + [place.rpartition(" ")[2] for place in found.lines]
        dealt.append([msgspec.json.decode(codec.decode(found.records[id]).payload) for id in ids])
    return dealt


@pytest.fixture
async def four(raw: Redis, mq: MessageQueue) -> MessageQueue:
    """A queue whose topic t has four partitions."""
    await mq.store.register("t", 4)
    return mq


@on_servers
async def test_messages_without_a_key_go_to_all_partitions_in_turn(
    four: MessageQueue, raw: Redis
) -> None:
    for number in range(8):
        await four.produce("t", number)
    assert [len(one) for one in await dealt(raw, 4)] == [2, 2, 2, 2]


@on_servers
async def test_messages_of_a_key_go_to_its_partition_in_order(
    four: MessageQueue, raw: Redis
) -> None:
    keys = [f"key-{number % 7}" for number in range(70)]
    await asyncio.gather(
        *(four.produce("t", [key, place], key=key) for place, key in enumerate(keys[:35]))
    )
    rest = [[key, place] for place, key in enumerate(keys)][35:]
    await four.produce_many("t", rest, keys=keys[35:])
    for number, found in enumerate(await dealt(raw, 4)):
        assert {number_for(key, 4) for key, _ in found} <= {number}
        for wanted in set(keys):
            places = [place for key, place in found if key == wanted]
            assert places == sorted(places)


@on_servers
async def test_an_own_id_goes_to_one_partition_always(four: MessageQueue, raw: Redis) -> None:
    for _ in range(3):
        assert await four.produce("t", 1, id="mine") == "mine"
        assert await four.produce_many("t", [1, 2], ids=["mine", "other"]) == ["mine", "other"]
    found = await dealt(raw, 4)
    assert sorted(payload for one in found for payload in one) == [1, 2]
    assert found[number_for("mine", 4)][0] == 1


@on_servers
async def test_an_id_that_was_made_for_a_partition_goes_back_to_it(
    four: MessageQueue, raw: Redis
) -> None:
    ids = [await four.produce("t", number) for number in range(4)]
    assert sorted(number_in(id) for id in ids) == [0, 1, 2, 3]
    before = await dealt(raw, 4)
    for number, id in enumerate(ids):
        assert await four.produce("t", number, id=id) == id
    assert await four.produce_many("t", range(4), ids=ids) == ids
    assert await dealt(raw, 4) == before


MOVER = next(
    f"k{n}" for n in range(99) if (number_for(f"k{n}", 2), number_for(f"k{n}", 4)) == (1, 3)
)
"""A key that moves from partition 1 to 3 when a topic grows from 2 to 4."""


@on_servers
async def test_a_key_decides_also_for_ids_that_look_generated(
    four: MessageQueue, raw: Redis
) -> None:
    endings = ["", ".1", ".2", ".3", ".9", ".1024"]
    ids = [f"k3v9m2x0qwz1t-{number}{end}" for number, end in enumerate(endings)]
    home = number_for(MOVER, 4)
    for _ in range(2):  # the same id and the same key are the same message
        for number, id in enumerate(ids[:3]):
            assert await four.produce("t", number, id=id, key=MOVER) == id
        many = range(3, len(ids))
        assert await four.produce_many("t", many, ids=ids[3:], keys=[MOVER] * 3) == ids[3:]
    found = await dealt(raw, 4)
    assert found.pop(home) == list(range(len(ids)))
    assert not any(found)
    for id in ids:
        message = await four.admin.get("t", id)
        assert message is not None
        assert message.partition == home
    assert await four.admin.cancel("t", ids[0])
    assert await four.admin.get("t", ids[0]) is None


@on_servers
@pytest.mark.parametrize("finished", [False, True], ids=["pending", "finished"])
async def test_a_message_that_is_produced_again_after_its_topic_grew_is_not_made_twice(
    mq: MessageQueue, raw: Redis, finished: bool
) -> None:
    await mq.store.register("t", 2)
    id = await mq.produce("t", 1, key=MOVER)
    assert number_in(id) == 1
    if finished:
        (leased,) = (await mq.store.dispatch_in_turn("t/1", "w", count=1, lease=9)).messages
        await mq.store.complete_message("t/1", "w", [leased])
    await mq.admin.grow("t", 4)
    assert mq.store.partitions["t"] == 4
    before = await dealt(raw, 4)
    assert await mq.produce("t", 1, id=id, key=MOVER) == id
    assert await mq.produce_many("t", [1], ids=[id], keys=[MOVER]) == [id]
    assert await dealt(raw, 4) == before
    await mq.produce("t", 2, key=MOVER)
    assert (await dealt(raw, 4))[3] == [2]


@on_servers
async def test_a_producer_that_does_not_know_yet_that_a_topic_grew_asks(
    mq: MessageQueue, raw: Redis
) -> None:
    await mq.store.register("t", 4)
    id = await mq.produce("t", 1, key=MOVER)
    mq.store.partitions["t"] = 2
    assert await mq.produce("t", 1, id=id, key=MOVER) == id
    mq.store.partitions["t"] = 2
    assert await mq.produce("t", 1, id=id) == id
    assert await dealt(raw, 4) == [[], [], [], [1]]


@on_servers
async def test_a_key_keeps_its_partition_though_the_topic_is_found_to_have_grown_meanwhile(
    mq: MessageQueue, raw: Redis
) -> None:
    await mq.store.register("t", 4)
    mq.store.partitions["t"] = 2
    mixed = [
        draft(1, key=MOVER),
        draft(2, id="k3v9m2x0qwz1t-1.3", key=MOVER),
        draft(3, key=MOVER),
    ]
    stored = mq._open_producer().produce_all("t", mixed)
    assert len([one async for one in stored]) == 1
    assert await dealt(raw, 4) == [[], [], [], [1, 2, 3]]


@on_servers
async def test_a_late_first_copy_is_refused_after_its_message_was_made_elsewhere(
    mq: MessageQueue, raw: Redis, server: Server
) -> None:
    await mq.store.register("t", 2)
    async with queue(server.url) as first:
        late = first.store.prepare("produce_normal_message", "t/1", [draft(1), draft(2)])
        await mq.admin.grow("t", 4)
        id = late.ids[0]
        for _ in range(2):
            assert await mq.produce("t", 1, id=id, key=MOVER) == id
        with pytest.raises(QueueFull):  # nobody hears that
            await first.store.produce(late)
    assert await dealt(raw, 4) == [[], [], [], [1]]
    other = await mq.produce("t", 2, id=late.ids[1])  # of the same lane, and not made either
    assert await dealt(raw, 4) == [[], [2], [], [1]]
    assert other == late.ids[1]


@on_servers
async def test_many_messages_are_dealt_in_runs_and_their_ids_are_in_order(
    four: MessageQueue, raw: Redis
) -> None:
    ids = await four.produce_many("t", range(100))
    found = await dealt(raw, 4)
    assert [len(one) for one in found] == [25, 25, 25, 25]
    for number, one in enumerate(found):
        assert one == list(range(one[0], one[0] + 25))
        assert {number_in(ids[place]) for place in one} == {number}
    few = await four.produce_many("t", range(MIN_RUN))
    assert len({number_in(id) for id in few}) == 1


@on_servers
async def test_a_producer_asks_for_the_partitions_of_its_handler(
    mq: MessageQueue, raw: Redis
) -> None:
    @mq.handler("declared", partitions=3)
    async def handle(payload: int) -> None: ...

    await asyncio.gather(*(mq.produce("declared", number) for number in range(6)))
    assert await raw.hget(mq.store.keys.topics, "declared") == b"3"
    assert [len(one) for one in await dealt(raw, 3, "declared")] == [2, 2, 2]


@on_servers
async def test_a_producer_learns_that_a_topic_has_grown(
    mq: MessageQueue, raw: Redis, server: Server
) -> None:
    await mq.produce("t", 0)
    async with MessageQueue(server.url) as other:
        await other.store.register("t", 2)
    assert mq._producer is not None
    mq._producer._refresh_at = 0.0
    await mq.produce("t", 1)
    await until(lambda: mq.store.partitions["t"] == 2)
    await mq.produce_many("t", range(2, 34))
    assert [len(one) > 1 for one in await dealt(raw, 2)] == [True, True]


@on_servers
async def test_a_topic_that_cannot_be_learnt_of_is_told_to_every_caller_and_learnt_later(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    proxy = Proxy(server.socket, tmp_path / "p.sock")
    async with proxy, queue(proxy.url, patience=0.1, audit=False) as mq:
        await proxy.close()
        results = await asyncio.gather(
            *(mq.produce("t", number) for number in range(5)), return_exceptions=True
        )
        assert {type(result) for result in results} == {ServerUnavailable}
        await proxy.__aenter__()
        assert await mq.produce("t", 1)


@on_a_server
@pytest.mark.parametrize("given_up", [True, False])
async def test_a_topic_that_nobody_wants_to_learn_of_any_more_is_nobodys_error(
    raw: Redis, server: Server, tmp_path: Path, given_up: bool
) -> None:
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    async with (
        Proxy(server.socket, tmp_path / "p.sock") as proxy,
        queue(proxy.url, patience=0, audit=False) as mq,
    ):
        assert mq._producer is not None
        registering = mq._producer._registering
        proxy.hold_reply(match=b"mx-rmq:topics")
        caller = asyncio.create_task(mq.produce("t", 1))
        await until(lambda: any(proxy.cuts.values()))
        caller.cancel()
        await asyncio.wait([caller])
        if given_up:
            await proxy.close()
            await until(lambda: not registering)
    assert not registering
    del caller  # which knows what it waited for
    gc.collect()
    assert contexts == []


@on_servers
@pytest.mark.parametrize("key", ["", 5, b"a"])
async def test_a_key_that_is_none_is_refused(four: MessageQueue, raw: Redis, key: Any) -> None:
    with pytest.raises(InvalidInput, match="key="):
        await four.produce("t", 1, key=key)
    with pytest.raises(InvalidInput, match="key="):
        await four.produce_many("t", [1, 2], keys=["a", key])
    with pytest.raises(InvalidInput, match="1 keys for 2 payloads"):
        await four.produce_many("t", [1, 2], keys=["a"])
    assert await dealt(raw, 4) == [[], [], [], []]
