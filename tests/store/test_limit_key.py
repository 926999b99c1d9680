"""limit_key: what an operator decides about a key, or about the whole topic"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.store.operator_calls import KEEP
from mx_rmq.store.results import Settled
from tests.lab.broken import assert_refused
from tests.lab.calls import resend_next
from tests.lab.messages import TOPIC, draft, leased_in_turn, pending, take_in_turn
from tests.lab.snapshot import snapshot, told

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

FOREVER = "9000000000000000"


async def limits(raw: Redis) -> dict[str, str]:
    return (await snapshot(raw, TOPIC)).limits


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"running": 3}, "3 - - - - "),
        ({"running": 0}, "0 - - - - "),
        ({"interval": (20.0, 5.0)}, "- 20 5 - - "),
        ({"interval": (1000 / 3, 1.5)}, "- 333.33333333333331 1.5 - - "),
        ({"weight": 2.5}, "- - - 2.5 - "),
        ({"pause": inf, "reason": "bad data"}, f"- - - - {FOREVER} bad data"),
        ({"running": 1, "interval": (1.0, 1.0), "weight": 2.0}, "1 1 1 2 - "),
        ({}, None),
        ({"running": None, "pause": None}, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("key", ["k", "", "é key, with spaces"])
async def test_what_is_given_is_kept(
    store: Store, raw: Redis, key: str, given: dict[str, Any], text: str | None
) -> None:
    assert await store.limit_key(TOPIC, key or None, **given) is Settled.DONE
    assert await limits(raw) == ({} if text is None else {key: text})


async def test_only_what_is_given_changes_and_none_restores_the_declaration(
    store: Store, raw: Redis, clock: Clock
) -> None:
    steps: list[tuple[dict[str, Any], str | None]] = [
        ({"running": 3, "interval": (20.0, 5.0), "weight": 2.0}, "3 20 5 2 - "),
        ({"running": 4}, "4 20 5 2 - "),
        ({"pause": 500, "reason": "so it is"}, f"4 20 5 2 {clock.now + 500} so it is"),
        ({"interval": None}, f"4 - - 2 {clock.now + 500} so it is"),
        ({"weight": None, "running": KEEP}, f"4 - - - {clock.now + 500} so it is"),
        ({"pause": None}, "4 - - - - "),
        ({"running": None}, None),
    ]
    for given, text in steps:
        await store.limit_key(TOPIC, "k", **given)
        assert await limits(raw) == ({} if text is None else {"k": text})


async def test_a_pause_counts_by_the_clock_of_the_lines(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await leased_in_turn(store, "k")
    clock.advance(-60_000)  # it is set back; what blocks a line must not last longer for that
    await store.limit_key(TOPIC, "k", pause=500)
    assert await limits(raw) == {"k": f"- - - - {clock.now + 60_000 + 500} "}


async def test_nothing_else_changes_in_an_idle_topic(store: Store, raw: Redis) -> None:
    before = await snapshot(raw, TOPIC)
    await store.limit_key(TOPIC, "k", running=1, by="ann")
    assert await snapshot(raw, TOPIC) == replace(before, limits={"k": "1 - - - - "})


@pytest.mark.parametrize("key", ["k", None])
async def test_a_blocked_key_is_looked_at_again(store: Store, raw: Redis, key: str | None) -> None:
    declared = "1 - - - - - 0" if key is None else "- - - 1 - - 0"
    await leased_in_turn(store, "k", limits=declared, waiting="kk")
    await raw.delete(store.keys.of(TOPIC).doorbell)
    assert (await snapshot(raw, TOPIC)).blocked[key or ""] > 0
    await store.limit_key(TOPIC, key, running=2)
    found = await snapshot(raw, TOPIC)
    assert (found.blocked, found.rung) == ({key or "": 0}, True)
    assert len(await take_in_turn(store, 9, declared)) == 1


@pytest.mark.parametrize("key", ["k", None])
async def test_a_faster_rate_counts_at_once(store: Store, clock: Clock, key: str | None) -> None:
    await store.limit_key(TOPIC, key, interval=(3_600_000.0, 1.0))
    await pending(store, 3, key="k")
    assert len(await take_in_turn(store, 9)) == 1
    await store.limit_key(TOPIC, key, interval=(10.0, 1.0))
    clock.advance(10)
    assert len(await take_in_turn(store, 9)) == 1
    await store.limit_key(TOPIC, key, interval=None)
    assert len(await take_in_turn(store, 9)) == 1


@pytest.mark.parametrize("key", ["k", None])
async def test_a_faster_rate_forgives_no_debt(store: Store, clock: Clock, key: str | None) -> None:
    await store.limit_key(TOPIC, key, interval=(3_600_000.0, 1.0))
    await pending(store, 2, key="k", cost=5)
    assert len(await take_in_turn(store, 9)) == 1
    await store.limit_key(TOPIC, key, interval=(10.0, 2.0))
    clock.advance(59)  # it has -4 tokens, and starts when there are 2
    assert await take_in_turn(store, 9) == []
    clock.advance(1)
    assert len(await take_in_turn(store, 9)) == 1


@pytest.mark.parametrize("key", ["k", None])
async def test_a_rate_that_is_lifted_leaves_no_bucket_for_the_next_one(
    store: Store, key: str | None
) -> None:
    await store.limit_key(TOPIC, key, interval=(3_600_000.0, 1.0))
    await pending(store, 2, key="k")
    assert len(await take_in_turn(store, 9)) == 1
    await store.limit_key(TOPIC, key, interval=None)
    await store.limit_key(TOPIC, key, interval=(10.0, 1.0))
    assert len(await take_in_turn(store, 9)) == 1


@pytest.mark.parametrize("waiting", ["keyed", "plain", "nothing"])
async def test_somebody_is_woken_exactly_if_something_waits(
    store: Store, raw: Redis, waiting: str
) -> None:
    if waiting != "nothing":
        await pending(store, key="k" if waiting == "keyed" else None)
    await raw.delete(store.keys.of(TOPIC).doorbell)
    for _ in range(2):
        await store.limit_key(TOPIC, None, running=9)
        assert await raw.llen(store.keys.of(TOPIC).doorbell) == (waiting != "nothing")


async def test_a_repeated_call_says_so_and_changes_nothing(store: Store, raw: Redis) -> None:
    async def between() -> None:
        await store.limit_key(TOPIC, "k", running=2)

    resend_next(store, raw, between=between)
    assert await store.limit_key(TOPIC, "k", running=1) is Settled.REPEATED
    assert await limits(raw) == {"k": "2 - - - - "}


async def test_the_history_says_who_did_it(store: Store, raw: Redis) -> None:
    await store.limit_key(TOPIC, "k", running=1, by="ann", about="key k: running 1")
    assert (await told(raw, TOPIC))[1][b"limited"] == b"1"
    entry = repr(await raw.xrange(store.keys.of(TOPIC).history))
    assert "key k: running 1" in entry
    assert "ann" in entry


async def test_a_key_of_a_wrong_type_is_named(store: Store, raw: Redis) -> None:
    await store.produce_normal_message(TOPIC, [draft(key="k")])
    for name in ("lines", "blocked", "limits", "doorbell", "meta", "pending", "receipt"):
        call = partial(store.limit_key, TOPIC, "k", running=1)
        await assert_refused(store, raw, name, call)


async def test_text_that_is_none_of_ours_is_replaced(store: Store, raw: Redis) -> None:
    await raw.hset(store.keys.of(TOPIC).limits, "k", "nonsense")
    await store.limit_key(TOPIC, "k", running=1)
    assert await limits(raw) == {"k": "1 - - - - "}
