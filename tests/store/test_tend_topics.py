"""tend_topics and give_up_turn: one worker at a time looks after topics that it does not serve"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.store.registry import Registered
from tests.store.contracts import ONE_SERVER

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store

TURN = 60_000


async def test_who_has_the_turn_learns_every_topic(store: Store, raw: Redis) -> None:
    await store.register_topics({"a": 1, "b": 3})
    assert await store.tend_topics("w1", turn=TURN) == Registered({"a": 1, "b": 3}, {})
    assert await raw.get(store.keys.caretaker) == b"w1"
    assert 0 < await raw.pttl(store.keys.caretaker) <= TURN


async def is_refused(store: Store, worker: str) -> bool:
    return isinstance(await store.tend_topics(worker, turn=TURN), int)


async def test_without_topics_there_is_a_turn_all_the_same(store: Store) -> None:
    assert await store.tend_topics("w1", turn=TURN) == Registered({}, {})
    assert await is_refused(store, "w2")


async def test_who_is_refused_learns_when_the_turn_ends(store: Store, raw: Redis) -> None:
    await store.tend_topics("w1", turn=TURN)
    await raw.pexpire(store.keys.caretaker, TURN // 2)
    most = await raw.pttl(store.keys.caretaker)
    left = await store.tend_topics("w2", turn=TURN)
    assert isinstance(left, int)
    assert await raw.pttl(store.keys.caretaker) <= left <= most


async def test_a_turn_is_kept_by_asking_again_and_ends_by_itself(store: Store, raw: Redis) -> None:
    assert await store.tend_topics("w1", turn=TURN) == Registered({}, {})
    await raw.pexpire(store.keys.caretaker, TURN // 2)
    assert await is_refused(store, "w2")
    assert await raw.pttl(store.keys.caretaker) <= TURN // 2
    assert await store.tend_topics("w1", turn=TURN) == Registered({}, {})
    assert await raw.pttl(store.keys.caretaker) > TURN // 2
    await raw.delete(store.keys.caretaker)  # as its end does
    assert await store.tend_topics("w2", turn=TURN) == Registered({}, {})
    assert await is_refused(store, "w1")


async def test_a_turn_that_is_given_up_is_free_at_once(store: Store, raw: Redis) -> None:
    await store.tend_topics("w1", turn=TURN)
    assert await store.give_up_turn("w1")
    assert not await raw.exists(store.keys.caretaker)
    assert await store.tend_topics("w2", turn=TURN) == Registered({}, {})


async def test_nobody_gives_up_the_turn_of_another_worker(store: Store, raw: Redis) -> None:
    assert not await store.give_up_turn("w1")
    await store.tend_topics("w2", turn=TURN)
    assert not await store.give_up_turn("w1")
    assert await raw.get(store.keys.caretaker) == b"w2"


@pytest.mark.parametrize("left", [None, TURN + 60_000])
async def test_a_turn_without_an_end_or_longer_than_any_does_not_count(
    store: Store, raw: Redis, left: int | None
) -> None:
    await raw.set(store.keys.caretaker, "gone", px=left)
    assert await store.tend_topics("w1", turn=TURN) == Registered({}, {})
    assert await raw.get(store.keys.caretaker) == b"w1"
    assert 0 < await raw.pttl(store.keys.caretaker) <= TURN


async def test_at_maxmemory_there_are_turns_too(store: Store, raw: Redis) -> None:
    await store.register("a")
    await raw.config_set("maxmemory", 1)
    try:
        assert await store.tend_topics("w1", turn=TURN) == Registered({"a": 1}, {})
        assert await store.tend_topics("w1", turn=TURN) == Registered({"a": 1}, {})
        assert await is_refused(store, "w2")
        assert await store.give_up_turn("w1")
    finally:
        await raw.config_set("maxmemory", 0)


@ONE_SERVER
async def test_what_is_not_a_topic_is_left_out_and_a_strange_number_is_one(
    store: Store, raw: Redis
) -> None:
    strange: dict[str | bytes, str] = {
        "a": "x",
        "b": "",
        "c": "5000",
        "d/1": "1",
        b"\xff": "1",
        "": "1",
    }
    await raw.hset(store.keys.topics, mapping=strange)  # type: ignore[arg-type]
    assert await store.tend_topics("w1", turn=TURN) == Registered({"a": 1, "b": 1, "c": 1024}, {})
    await raw.delete(store.keys.topics)


@ONE_SERVER
@pytest.mark.parametrize(("worker", "turn"), [("", TURN), ("a b", TURN), ("w1", 0)])
async def test_a_strange_worker_or_turn_is_refused(store: Store, worker: str, turn: int) -> None:
    with pytest.raises(InvalidInput):
        await store.tend_topics(worker, turn=turn)


@ONE_SERVER
async def test_only_a_worker_gives_up_a_turn(store: Store) -> None:
    with pytest.raises(InvalidInput):
        await store.give_up_turn("a b")
