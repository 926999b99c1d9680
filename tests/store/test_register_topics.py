"""register_topics: which topics there are, and how many partitions each has"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import InvalidInput, ServerFull, WrongType
from mx_rmq.core.partition import MAX_PARTITIONS
from mx_rmq.store.store import Store
from tests.lab.messages import TOPIC, pending
from tests.store.contracts import ONE_SERVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.lab.servers import Server

TOPICS = "mx-rmq:topics"


@pytest.fixture
async def other(store: Store, server: Server) -> AsyncIterator[Store]:
    """A store that knows nothing of what the first one has heard."""
    async with await Store.open(server.url) as other:
        yield other


async def test_topics_are_listed_all_at_once_and_always(store: Store, raw: Redis) -> None:
    await store.register_topics({})
    assert await raw.dbsize() == 0
    for _ in range(2):
        await store.register_topics({"b": 1, "a": 3})
        assert await store.views.topics() == ["a", "b"]
        assert await raw.hgetall(TOPICS) == {b"a": b"3", b"b": b"1"}
        await raw.delete(TOPICS)


async def test_a_number_only_grows_and_whoever_wants_fewer_learns_of_the_others(
    store: Store, other: Store, raw: Redis
) -> None:
    for wanted, known in ((2, 2), (1, 2), (5, 5), (4, 5)):
        await store.register("a", wanted)
        assert store.partitions == {"a": known}
        assert await raw.hgetall(TOPICS) == {b"a": str(known).encode()}
    await other.register_topics({"b": 2, "a": 1, "c": 1})
    assert other.partitions == {"b": 2, "a": 5, "c": 1}


async def test_a_topic_is_listed_before_anything_is_produced_to_it(
    store: Store, other: Store
) -> None:
    await store.register(TOPIC, 4)
    await pending(other)
    assert other.partitions == {TOPIC: 4}


async def test_a_listed_topic_is_not_listed_again_by_a_produce(store: Store, raw: Redis) -> None:
    await store.register(TOPIC)
    await raw.delete(TOPICS)
    await pending(store)
    assert await store.views.topics() == []
    await store.register(TOPIC)


async def test_repeating_is_harmless(store: Store, raw: Redis) -> None:
    for _ in range(3):
        await store.register_topics({"a": 2, "b": 1})
        assert store.partitions == {"a": 2, "b": 1}
        assert await raw.hgetall(TOPICS) == {b"a": b"2", b"b": b"1"}


@pytest.mark.parametrize("known", [b"", b"nonsense", b"-3", b"0"])
async def test_a_number_that_is_none_is_written_anew(
    store: Store, raw: Redis, known: bytes
) -> None:
    await raw.hset(TOPICS, "a", known)
    await store.register("a")
    assert store.partitions == {"a": 1}
    assert await raw.hgetall(TOPICS) == {b"a": b"1"}


@ONE_SERVER
async def test_ten_thousand_topics_are_listed_by_one_method_call(store: Store, raw: Redis) -> None:
    topics = {f"t{number}": number % MAX_PARTITIONS + 1 for number in range(10_000)}
    await store.register_topics(topics)
    assert store.partitions == topics
    assert await raw.hlen(TOPICS) == 10_000
    await raw.delete(TOPICS)  # or the audit would look at every one of them


async def test_at_maxmemory_no_topic_is_added_but_known_ones_are_heard_of(
    store: Store, other: Store, raw: Redis
) -> None:
    await store.register("a", 3)
    await raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerFull, match="maxmemory"):
            await other.register_topics({"a": 1, "b": 1})
        await other.register("a")
    finally:
        await raw.config_set("maxmemory", 0)
    assert other.partitions == {"a": 3}
    assert await store.views.topics() == ["a"]


@pytest.mark.parametrize("name", ["", "a@", "a/1", "a b", "{a}", "-a", "ü", "a\n", "a" * 129])
async def test_a_name_that_is_no_topic_is_refused_before_the_server_hears_of_it(
    store: Store, raw: Redis, name: str
) -> None:
    with pytest.raises(InvalidInput, match="topic"):
        await store.register_topics({"fine": 1, name: 1})
    assert store.partitions == {}
    assert await raw.dbsize() == 0


@pytest.mark.parametrize("count", [0, -1, MAX_PARTITIONS + 1, 1.5, True, "2", None])
async def test_a_number_of_partitions_that_is_none_is_refused_too(
    store: Store, raw: Redis, count: int
) -> None:
    with pytest.raises(InvalidInput, match=f"from 1 to {MAX_PARTITIONS}"):
        await store.register_topics({"fine": 1, "a": count})
    assert store.partitions == {}
    assert await raw.dbsize() == 0


async def test_a_key_of_a_wrong_type_is_named(store: Store, raw: Redis) -> None:
    await raw.sadd(TOPICS, "nonsense")
    with pytest.raises(WrongType, match=f"key {TOPICS} holds a set, not a hash"):
        await store.register("a")
    assert store.partitions == {}
    await raw.delete(TOPICS)


# the default time to live


async def declared(store: Store) -> dict[str, int]:
    """Return the default times to live that workers have declared."""
    registered = await store.tend_topics("w1", turn=1000)
    assert not isinstance(registered, int)
    return registered.ttls


async def test_a_worker_declares_the_default_ttl_and_the_others_learn_it(
    store: Store, other: Store, raw: Redis
) -> None:
    await store.register_topics({"a": 1, "b": 2, "c": 1}, {"a": 60_000, "b": 0})
    assert store.ttls == {"a": 60_000}
    assert await raw.hget(TOPICS, "!a") == b"60000"
    await other.register_topics({"a": 1, "b": 1})
    assert (other.ttls, other.partitions) == ({"a": 60_000}, {"a": 1, "b": 2})
    assert await declared(other) == {"a": 60_000}
    await store.register_topics({"a": 1, "b": 1}, {"a": 0, "b": 2**52})
    assert store.ttls == {"b": 2**52}
    await other.register_topics({"a": 1, "b": 1})
    assert other.ttls == {"b": 2**52}


async def test_an_own_default_ttl_holds_only_where_no_worker_declares_one(
    store: Store, server: Server
) -> None:
    await store.register_topics({"a": 1}, {"a": 60_000})
    async with await Store.open(server.url, own_ttl=lambda topic: 1000) as other:
        await other.register_topics({"a": 1, "b": 1})
        assert other.ttls == {"a": 60_000, "b": 1000}
    assert await declared(store) == {"a": 60_000}


async def test_topics_are_registered_even_if_no_ttl_can_be_stored(store: Store, raw: Redis) -> None:
    await store.register("a")
    await raw.config_set("maxmemory", 1)
    try:
        await store.register_topics({"a": 1}, {"a": 60_000})
    finally:
        await raw.config_set("maxmemory", 0)
    assert store.partitions == {"a": 1}
    assert await declared(store) == {}


@pytest.mark.parametrize("known", [b"", b"nonsense", b"-3"])
async def test_a_ttl_that_is_none_counts_as_none(store: Store, raw: Redis, known: bytes) -> None:
    await raw.hset(TOPICS, "!a", known)
    await store.register("a")
    assert store.ttls == {}
    assert await declared(store) == {}
