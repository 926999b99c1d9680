"""dispatch_in_turn: pending -> processing, in turn and within limits"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.core.outcome import SnoozeLater
from mx_rmq.settings import Limits
from mx_rmq.store.arguments import MAX_BATCH
from mx_rmq.store.results import HandedBack, Leased, RetryRequest
from tests.lab.archives import find_archived
from tests.lab.broken import assert_refused
from tests.lab.calls import resend_next
from tests.lab.messages import (
    FAILURE,
    LEASE,
    TOPIC,
    Priority,
    draft,
    message,
    settle,
    take_in_turn,
)
from tests.lab.snapshot import snapshot
from tests.store.contracts import ONE_SERVER

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.results import Dispatched
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

MINUTE = 60_000
TAB = "\t"
STRICT = "- - - 1 - - 0"
OVERTAKE = "- - - 1 - - 1"


def ids(taken: list[Leased]) -> str:
    return " ".join(one.id for one in taken)


async def wait_in_line(store: Store, words: str, **fields: Any) -> None:
    """Produce messages whose id is the key and a number; the key p is that of those without one."""
    new = [
        draft(word, id=word, key=None if word[0] == "p" else word[0], **fields)
        for word in words.split()
    ]
    await store.produce_normal_message(TOPIC, new)


async def ask(
    store: Store, count: int = 9, limits: str = "", *, worker: str = "w1", alone: bool = False
) -> Dispatched:
    return await store.dispatch_in_turn(
        TOPIC, worker, count=count, lease=LEASE, limits=limits, alone=alone
    )


async def finish(store: Store, *taken: Leased) -> None:
    assert await store.complete_message(TOPIC, "w1", taken) == ["1"] * len(taken)


async def retry(store: Store, one: Leased, delay: int = 1000) -> None:
    again = RetryRequest(one, message(one).failed(FAILURE), delay)
    assert await store.retry_message(TOPIC, "w1", [again]) == ["1"]


async def rings(store: Store, raw: Redis) -> bool:
    """Say whether the doorbell rang since the last look."""
    return bool(await raw.delete(store.keys.of(TOPIC).doorbell))


# turns


async def running(raw: Redis) -> set[str]:
    """Return the key and the id of each message that takes up a place of its key."""
    members = (await snapshot(raw, TOPIC)).running
    return {f"{one.partition(TAB)[0]} {one.rpartition(' ')[2]}" for one in members}


async def test_messages_are_leased_and_leave_their_lines(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await wait_in_line(store, "a1 a2 b1")
    before = await snapshot(raw, TOPIC)
    assert before.ring == {"a": 1, "b": 1}
    found = await ask(store, 2)
    assert ids(found.messages) == "a1 b1"
    assert (found.now, found.wait, found.in_turn) == (clock.now, None, True)
    assert {one.id: one.record for one in found.messages}.items() <= before.records.items()
    tokens = [clock.now * 1000, clock.now * 1000 + 1]
    assert [one.token for one in found.messages] == tokens
    assert await snapshot(raw, TOPIC) == replace(
        before,
        lines=before.lines[1:2],
        ring={"a": 2},
        running={before.lines[0], before.lines[2]},
        leases={"a1": f"{tokens[0]}:w1", "b1": f"{tokens[1]}:w1"},
        deadlines=dict.fromkeys(("a1", "b1"), clock.now + LEASE),
        meta={"token": str(tokens[1]), "turn": "0"},
    )


async def test_an_empty_topic_gives_nothing_and_needs_no_turns(store: Store, raw: Redis) -> None:
    found = await ask(store)
    assert (found.messages, found.wait, found.in_turn) == ([], None, False)
    (receipt,) = await raw.keys()
    assert b":receipt:" in receipt


@pytest.mark.parametrize("count", [1, 2, 4, 9])
async def test_lines_take_turns_whatever_the_batch(store: Store, count: int) -> None:
    await wait_in_line(store, "a1 a2 a3 a4 b1 b2 c1")
    order: list[Leased] = []
    while taken := await take_in_turn(store, count):
        order += taken
    assert ids(order) == "a1 b1 c1 a2 b2 a3 a4"


async def test_a_quiet_key_is_next_behind_a_thousand_of_a_noisy_one(store: Store) -> None:
    await store.produce_normal_message(TOPIC, [draft(n, key="noisy") for n in range(MAX_BATCH)])
    assert len(await take_in_turn(store, 100)) == 100
    await wait_in_line(store, "q1")
    assert "q1" in ids(await take_in_turn(store, 2))


async def test_messages_without_a_key_are_one_line_among_the_others(store: Store) -> None:
    await wait_in_line(store, "p1 p2 p3 p4 a1 a2 b1")
    assert ids(await take_in_turn(store, 9)) == "p1 a1 b1 p2 a2 p3 p4"


async def test_messages_without_a_key_do_not_starve_and_starve_nobody(store: Store) -> None:
    plain = [draft(id=f"p{n}") for n in range(50)]
    keyed = [draft(id=f"a{n}", key="a") for n in range(50)]
    await store.produce_normal_message(TOPIC, [*plain, *keyed])
    taken = [one for _ in range(20) for one in await take_in_turn(store)]
    assert Counter(one.id[0] for one in taken) == {"p": 10, "a": 10}


async def test_messages_without_a_key_do_not_wait_for_turns_of_an_earlier_time(
    store: Store,
) -> None:
    await store.produce_normal_message(TOPIC, [draft(id=f"p{n}") for n in range(20)])
    await store.produce_normal_message(TOPIC, [draft(id=f"a{n}", key="a") for n in range(20)])
    assert len(await take_in_turn(store, 40)) == 40  # the ring is empty, and starts again
    await store.produce_normal_message(TOPIC, [draft(id=f"b{n}", key="b") for n in range(20)])
    await wait_in_line(store, "p20")
    assert "p20" in [one.id for _ in range(3) for one in await take_in_turn(store)]


async def test_a_key_gets_turns_by_its_weight(store: Store) -> None:
    await store.limit_key(TOPIC, "a", weight=3.0)
    new = [draft(id=f"{key}{n}", key=key) for key in "abc" for n in range(40)]
    await store.produce_normal_message(TOPIC, new)
    first = [one for _ in range(25) for one in await take_in_turn(store)]
    batch = await take_in_turn(store, 25)
    for taken in (first, batch):
        count = Counter(one.id[0] for one in taken)
        assert abs(count["a"] - 15) <= 1
        assert abs(count["b"] - count["c"]) <= 1


async def test_within_a_line_priority_comes_first_then_age(store: Store) -> None:
    for number, level in enumerate((Priority.LOW, Priority.NORMAL, Priority.HIGH) * 2):
        await wait_in_line(store, f"a{number}", priority=level)
    assert ids(await take_in_turn(store, 9)) == "a2 a5 a1 a4 a0 a3"


async def test_a_key_whose_messages_come_one_by_one_gets_no_more_than_its_turn(
    store: Store,
) -> None:
    await store.produce_normal_message(TOPIC, [draft(id=f"b{n}", key="b") for n in range(30)])
    order = ""
    for number in range(10):
        await wait_in_line(store, f"a{number}")
        order += "".join(one.id[0] for one in await take_in_turn(store, 2))
    assert order.count("a") == order.count("b") == 10


async def test_the_doorbell_rings_exactly_when_something_that_may_start_is_left(
    store: Store, raw: Redis
) -> None:
    await wait_in_line(store, "a1 a2 b1 p1 p2")
    left = []
    for _ in range(5):
        await rings(store, raw)
        await take_in_turn(store)
        left.append(await rings(store, raw))
    assert left == [True] * 4 + [False]


@pytest.mark.parametrize("count", [700, MAX_BATCH])
async def test_more_than_a_thousand_keys_each_get_their_turn(store: Store, count: int) -> None:
    for first in range(0, 2500, 500):
        new = [draft(key=f"k{n}") for n in range(first, first + 500)]
        await store.produce_normal_message(TOPIC, [*new, *new[:100]])
    seen: Counter[str | None] = Counter()
    for _ in range(-(-2500 // count)):
        seen.update(message(one).key for one in await take_in_turn(store, count))
    assert len(seen) == 2500


async def test_a_key_behind_thousands_that_may_not_start_is_reached(
    store: Store, raw: Redis
) -> None:
    limits = "- - - 0 - - 0"
    await store.limit_key(TOPIC, "zz", running=1)
    for first in range(0, 3000, 1000):
        new = [draft(key=f"k{n}") for n in range(first, first + 1000)]
        await store.produce_normal_message(TOPIC, new)
    await store.produce_normal_message(TOPIC, [draft(id="last", key="zz")])
    for _ in range(9):
        await rings(store, raw)
        if taken := await take_in_turn(store, 1, limits):
            break
        assert await rings(store, raw), "nobody would come"
    assert ids(taken) == "last"


async def test_one_reply_holds_8_mib_and_the_rest_stays_in_line(store: Store, raw: Redis) -> None:
    store.limits = Limits(max_payload=8_000_000)
    large = "x" * 5_000_000
    await store.produce_normal_message(
        TOPIC, [draft(large, id=word, key=word[0]) for word in ("a1", "a2", "b1")]
    )
    limits = "9 3600000 2 9 3600000 2 0"  # one an hour, after a burst
    before = await snapshot(raw, TOPIC)
    taken = await ask(store, 9, limits)
    assert (ids(taken.messages), taken.wait) == ("a1", None)
    found = await snapshot(raw, TOPIC)
    assert found.lines == before.lines[1:]
    assert (found.blocked, found.rung) == ({}, True)
    assert found.buckets == {"a": taken.now + 3_600_000}
    assert ids((await ask(store, 9, limits)).messages) == "b1"


# arguments, repeated calls, records that are missing


@ONE_SERVER
@pytest.mark.parametrize(
    "bad", [{"count": 0}, {"count": MAX_BATCH + 1}, {"worker": "a:b"}], ids=str
)
async def test_a_bad_argument_is_refused(store: Store, raw: Redis, bad: dict[str, Any]) -> None:
    await wait_in_line(store, "a1")
    before = await snapshot(raw, TOPIC)
    with pytest.raises(InvalidInput):
        await ask(store, **bad)
    assert await snapshot(raw, TOPIC) == before


async def test_a_repeated_call_gives_the_same_messages_and_asks_to_come_again(
    store: Store, raw: Redis
) -> None:
    await wait_in_line(store, "a1 a2 b1 p1")
    resend_next(store, raw)
    found = await ask(store, 2)
    assert ids(found.messages) == "p1 a1"
    assert found.wait == 0
    assert ids((await ask(store)).messages) == "b1 a2"


@pytest.mark.parametrize("limits", ["", "1 - - - - - 0", STRICT, "1 3600000 1 1 3600000 1 0"])
@pytest.mark.parametrize("key", ["a", None])
async def test_an_id_without_a_record_is_dropped_and_stops_nobody(
    store: Store, raw: Redis, limits: str, key: str | None
) -> None:
    keys = store.keys.of(TOPIC)
    for id in ("gone", "there"):
        await store.produce_normal_message(TOPIC, [draft(id=id, key=key, cost=2)])
    await raw.hdel(keys.payload, "gone")
    await rings(store, raw)
    taken = await take_in_turn(store, 1, limits)
    assert taken == []
    assert await rings(store, raw)
    assert ids(await take_in_turn(store, 9, limits)) == "there"
    found = await snapshot(raw, TOPIC)
    assert found.meta["dropped"] == "1"
    assert "gone" not in found.keyed
    assert found.buckets.get("a", found.meta.get("bucket")) is not None or "3600" not in limits


async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_taken(
    store: Store, raw: Redis
) -> None:
    await store.limit_key(TOPIC, "a", weight=2.0)
    await wait_in_line(store, "a1 a2 b1 p1")
    await ask(store, 1, "- 9 9 - 9 9 0")
    for name in ("payload", "processing", "expire_monitor", "meta", "doorbell", "receipt"):
        await assert_refused(store, raw, name, partial(ask, store, 9, STRICT))
    for name in ("lines", "ring", "blocked", "running", "limits", "buckets"):
        await assert_refused(store, raw, name, partial(ask, store, 9, "- 9 9 1 9 9 0"))


async def test_the_plain_script_says_when_turns_are_needed_and_the_other_when_not(
    store: Store,
) -> None:
    await wait_in_line(store, "p1 a1")
    plain = await store.dispatch_message(TOPIC, "w1", count=9, lease=LEASE)
    assert (plain.messages, plain.in_turn) == ([], True)
    found = await ask(store)
    assert (ids(found.messages), found.in_turn) == ("p1 a1", False)
    await wait_in_line(store, "p2")
    plain = await store.dispatch_message(TOPIC, "w1", count=9, lease=LEASE)
    assert (ids(plain.messages), plain.in_turn) == ("p2", False)
    assert (await ask(store, 9, STRICT)).in_turn  # what is declared must be heeded


async def test_a_topic_limit_sends_workers_to_turns(store: Store) -> None:
    await wait_in_line(store, "p1 p2")
    await store.limit_key(TOPIC, None, running=1)
    assert (await store.dispatch_message(TOPIC, "w1", count=9, lease=LEASE)).in_turn
    found = await ask(store)
    assert (ids(found.messages), found.in_turn) == ("p1", True)
    await store.limit_key(TOPIC, None, running=None)
    found = await ask(store)
    assert (ids(found.messages), found.in_turn) == ("p2", False)


# how many run


async def test_of_a_key_no_more_run_than_its_limit_and_the_next_starts_when_one_ends(
    store: Store, raw: Redis
) -> None:
    limits = "- - - 2 - - 0"
    await wait_in_line(store, "a1 a2 a3 a4 b1 p1 p2 p3")
    taken = await take_in_turn(store, 9, limits)
    assert ids(taken) == "p1 a1 b1 p2 a2 p3"
    assert await take_in_turn(store, 9, limits) == []
    await rings(store, raw)
    await finish(store, taken[1])
    assert await rings(store, raw)
    assert ids(await take_in_turn(store, 9, limits)) == "a3"
    await finish(store, taken[3])  # one without a key frees no place
    assert await take_in_turn(store, 9, limits) == []


async def test_of_a_topic_no_more_run_than_its_limit(store: Store, raw: Redis) -> None:
    limits = "3 - - - - - 0"
    await wait_in_line(store, "a1 a2 b1 p1 p2")
    found = await ask(store, 9, limits)
    assert ids(found.messages) == "p1 a1 b1"
    assert found.wait is not None
    assert (await snapshot(raw, TOPIC)).blocked.keys() == {""}
    await rings(store, raw)
    await wait_in_line(store, "a3 p3")
    assert not await rings(store, raw), "a produce rang, although nothing may start"
    await finish(store, found.messages[0])
    assert await rings(store, raw)
    assert ids(await take_in_turn(store, 9, limits)) == "p2"


async def test_a_limit_of_zero_lets_nothing_start(store: Store) -> None:
    await wait_in_line(store, "a1 b1")
    await store.limit_key(TOPIC, "a", running=0)
    assert ids(await take_in_turn(store, 9)) == "b1"
    await store.limit_key(TOPIC, None, running=0)
    await wait_in_line(store, "b2")
    assert await take_in_turn(store, 9) == []
    await store.limit_key(TOPIC, None, running=None)
    await store.limit_key(TOPIC, "a", running=None)
    assert ids(await take_in_turn(store, 9)) in ("a1 b2", "b2 a1")


async def test_alone_takes_nothing_while_one_is_in_processing(store: Store) -> None:
    await wait_in_line(store, "a1 b1")
    found = await ask(store, 1, alone=True)
    assert ids(found.messages) == "a1"
    blocked = await ask(store, 1, alone=True)
    assert (blocked.messages, blocked.in_turn) == ([], True)
    await finish(store, *found.messages)
    assert ids((await ask(store, 1, alone=True)).messages) == "b1"


async def test_what_an_older_release_has_settled_gives_its_place_back_in_time(
    store: Store, raw: Redis, clock: Clock
) -> None:
    keys = store.keys.of(TOPIC)
    await wait_in_line(store, "a1 a2")
    (one,) = await take_in_turn(store, 9, STRICT)
    for key in (keys.payload, keys.processing):
        await raw.hdel(key, one.id)  # as a release does that knows no lines
    await raw.zrem(keys.expire_monitor, one.id)
    again = await ask(store, 9, STRICT)
    assert again.messages == []
    clock.advance(2 * MINUTE)
    assert ids(await take_in_turn(store, 9, STRICT)) == "a2"
    assert await running(raw) == {"a a2"}
    await raw.hdel(keys.keyed, one.id)  # what the audit would name


async def test_a_message_that_is_still_there_keeps_its_place_through_that(
    store: Store, clock: Clock
) -> None:
    await wait_in_line(store, "a1 a2 b1 b2")
    held, failed = await take_in_turn(store, 9, STRICT)
    await retry(store, failed, 10 * MINUTE)
    for _ in range(3):
        assert await take_in_turn(store, 9, STRICT) == []
        clock.advance(2 * MINUTE)
        assert await store.extend_lease(TOPIC, "w1", [held], lease=LEASE) == []


# rates


async def test_a_bucket_gives_its_burst_then_one_per_interval(store: Store, clock: Clock) -> None:
    limits = "- 100 3 - - - 0"
    await wait_in_line(store, "a1 a2 b1 p1 p2 a3 a4 a5")
    found = await ask(store, 9, limits)
    assert (ids(found.messages), found.wait) == ("p1 a1 b1", 100)
    clock.advance(99)
    assert (await ask(store, 9, limits)).messages == []
    clock.advance(1)
    found = await ask(store, 9, limits)
    assert (ids(found.messages), found.wait) == ("p2", 100)
    clock.advance(60 * MINUTE)  # it never holds more than its burst
    assert len((await ask(store, 9, limits)).messages) == 3


async def test_a_message_takes_as_many_tokens_as_it_costs(store: Store, clock: Clock) -> None:
    limits = "- 100 4 - - - 0"
    await wait_in_line(store, "p1 a1 b1", cost=3)
    found = await ask(store, 9, limits)
    assert (ids(found.messages), found.wait) == ("p1", 200)
    clock.advance(200)
    found = await ask(store, 9, limits)
    assert (ids(found.messages), found.wait) == ("a1", 300)


async def test_a_message_that_costs_more_than_the_burst_starts_when_it_is_full(
    store: Store, clock: Clock
) -> None:
    limits = "- - - - 100 2 0"
    await wait_in_line(store, "a1", cost=1)
    await wait_in_line(store, "a2", cost=5)
    await wait_in_line(store, "a3", cost=1)
    found = await ask(store, 9, limits)
    assert (ids(found.messages), found.wait) == ("a1", 100)
    clock.advance(100)
    found = await ask(store, 9, limits)
    assert (ids(found.messages), found.wait) == ("a2", 400)  # it leaves a debt of three
    clock.advance(400)
    assert ids((await ask(store, 9, limits)).messages) == "a3"


@pytest.mark.parametrize("limits", ["- 1000 5 - - - 0", "- - - - 1000 5 0"], ids=["topic", "key"])
@pytest.mark.parametrize("how", ["cancel", "abort", "expire", "reschedule", "replace"])
async def test_a_cheap_message_starts_when_the_costly_one_before_it_is_removed(
    store: Store, raw: Redis, clock: Clock, how: str, limits: str
) -> None:
    await wait_in_line(store, "a1", cost=4)
    await wait_in_line(store, "a2", cost=5, ttl=500)
    await wait_in_line(store, "a3")
    assert ids(await take_in_turn(store, 9, limits)) == "a1"
    assert await take_in_turn(store, 9, limits) == []
    await rings(store, raw)
    record = await store.views.record(TOPIC, "a2") or b""
    if how == "cancel":
        assert await store.cancel_message(TOPIC, "a2")
    elif how == "abort":
        assert await store.abort_message(TOPIC, message=codec.decode(record), seen=record)
    elif how == "expire":
        clock.advance(500)
        (expired,) = (await store.expire_message(TOPIC, "w1", count=9, recovery=LEASE)).messages
        assert await rings(store, raw)
        await settle(store, Leased(expired.id, expired.token, expired.record), State.DEAD)
    elif how == "reschedule":
        again = codec.decode(record)
        assert await store.reschedule_message(TOPIC, message=again, seen=record, delay=MINUTE)
    else:
        await store.replace_message(TOPIC, draft("new", id="a2", key="a", delay=MINUTE))
    assert how == "expire" or await rings(store, raw)
    assert ids(await take_in_turn(store, 9, limits)) == "a3"


async def test_each_key_has_a_bucket_of_its_own(store: Store, raw: Redis, clock: Clock) -> None:
    limits = "- - - - 500 1 0"
    await wait_in_line(store, "a1 a2 b1 b2 p1 p2")
    found = await ask(store, 9, limits)
    assert (ids(found.messages), found.wait) == ("p1 a1 b1 p2", 500)
    assert (await snapshot(raw, TOPIC)).buckets == dict.fromkeys("ab", clock.now + 500)
    clock.advance(500)
    assert ids((await ask(store, 9, limits)).messages) == "a2 b2"
    assert await raw.pttl(store.keys.of(TOPIC).buckets) > 9 * MINUTE


async def test_buckets_that_are_full_again_are_forgotten(
    store: Store, raw: Redis, clock: Clock
) -> None:
    limits = "- - - - 10 1 0"
    new = [draft(key=f"k{n}") for n in range(30)]
    await store.produce_normal_message(TOPIC, new)
    assert len((await ask(store, 30, limits)).messages) == 30
    clock.advance(MINUTE)
    for word in "abc":
        await wait_in_line(store, f"{word}1")
        assert len((await ask(store, 1, limits)).messages) == 1
    assert (await snapshot(raw, TOPIC)).buckets.keys() == set("abc")


async def test_a_clock_that_is_set_back_stalls_no_bucket_and_fills_none(
    store: Store, raw: Redis, clock: Clock
) -> None:
    limits = "- 1000 1 - 1000 1 0"
    await wait_in_line(store, "a1 a2 a3 a4")
    assert ids(await take_in_turn(store, 9, limits)) == "a1"
    clock.advance(-60 * MINUTE)
    found = await ask(store, 9, limits)
    assert (found.messages, found.wait) == ([], 1000)  # told again
    assert (await snapshot(raw, TOPIC)).meta["clock_ahead"] == str(60 * MINUTE)
    clock.advance(1000)
    found = await ask(store, 9, limits)
    assert (ids(found.messages), found.wait) == ("a2", 1000)
    clock.advance(120 * MINUTE)  # set right again, and more
    assert ids(await take_in_turn(store, 9, limits)) == "a3"


async def test_a_faster_rate_that_is_declared_fills_the_topics_bucket_at_once(
    store: Store, raw: Redis, clock: Clock
) -> None:
    slow, quick, quicker = (f"- {interval} 1 - - - 0" for interval in (60_000, 1000, 100))
    await wait_in_line(store, "p1 p2 p3 p4")
    first = await ask(store, 9, slow)
    assert (ids(first.messages), first.wait) == ("p1", 60_000)
    clock.advance(6000)  # a tenth of a token
    found = await ask(store, 9, quick)
    assert (found.messages, found.wait) == ([], 900)
    assert (await ask(store, 9, slow)).wait == 900  # a slower one adds nothing to the wait
    clock.advance(900)
    found = await ask(store, 9, quick)
    assert (ids(found.messages), found.wait) == ("p2", 1000)
    clock.advance(500)
    assert (await ask(store, 9, quicker)).wait == 50
    clock.advance(50)
    assert ids((await ask(store, 9, quicker)).messages) == "p3"


async def test_what_an_operator_set_is_not_changed_by_a_declaration(store: Store) -> None:
    await store.limit_key(TOPIC, None, interval=(60_000.0, 1.0))
    await wait_in_line(store, "p1 p2")
    assert (await ask(store, 9, "- 60000 1 - - - 0")).wait == 60_000
    assert (await ask(store, 9, "- 100 1 - - - 0")).wait == 60_000


# who comes back


async def test_one_worker_is_told_when_to_come_back_and_a_second_a_second_later(
    store: Store, clock: Clock
) -> None:
    limits = "- - - - 1000 1 0"
    await wait_in_line(store, "a1 a2 a3")
    assert (await ask(store, 9, limits)).wait == 1000
    clock.advance(400)
    other = await ask(store, 9, limits, worker="w2")
    assert (other.messages, other.wait) == ([], 1600)
    other = await ask(store, 9, limits, worker="w3")
    assert (other.messages, other.wait) == ([], None)
    clock.advance(601)  # it did not come
    other = await ask(store, 9, limits, worker="w3")
    assert (ids(other.messages), other.wait) == ("a2", 1000)


async def test_the_worker_that_was_told_is_told_again_if_it_comes_too_early(
    store: Store, clock: Clock
) -> None:
    limits = "- - - - 1000 1 0"
    await wait_in_line(store, "a1 a2")
    assert (await ask(store, 9, limits)).wait == 1000
    clock.advance(999)  # its timer was early, or the server's clock went back a little
    assert (await ask(store, 9, limits)).wait == 1
    for _ in range(2):
        assert (await ask(store, 9, limits, worker="w2")).wait == 1001
    assert (await ask(store, 9, limits, worker="w3")).wait is None


async def test_a_stand_in_is_called_once_and_again_when_it_is_gone(
    store: Store, raw: Redis, clock: Clock
) -> None:
    limits = "- - - - 10000 1 0"
    await wait_in_line(store, "a1 a2 a3 a4 a5")
    rung = []

    async def asks(worker: str) -> int | None:
        await rings(store, raw)
        found = await ask(store, 9, limits, worker=worker)
        rung.append(await rings(store, raw))
        return found.wait

    assert [await asks(worker) for worker in ("w1", "w1", "w2")] == [10_000, 10_000, 11_000]
    clock.advance(10_000)
    assert [await asks(worker) for worker in ("w1", "w1")] == [10_000, 10_000]
    assert rung == [True, False, False, False, False]
    clock.advance(1000)  # the stand-in comes back, and goes on
    assert [await asks(worker) for worker in ("w2", "w1")] == [10_000, 9000]
    clock.advance(10_000)  # w1 is killed
    assert [await asks(worker) for worker in ("w2", "w3")] == [10_000, 11_000]
    assert rung[5:] == [False, False, True, False]
    clock.advance(12_000)  # so are both others
    assert [await asks(worker) for worker in ("w4", "w4")] == [10_000, 10_000]
    clock.advance(1000)  # there is no other worker: it is called at most once a second
    assert [await asks(worker) for worker in ("w4", "w4")] == [9000, 9000]
    assert rung[9:] == [True, False, True, False]


async def test_another_worker_stands_in_for_a_stand_in_that_does_not_come(
    store: Store, clock: Clock
) -> None:
    limits = "- - - - 5000 1 0"
    await wait_in_line(store, "a1 a2 a3")
    assert (await ask(store, 9, limits)).wait == 5000
    assert (await ask(store, 9, limits, worker="w2")).wait == 6000
    clock.advance(5000)
    assert (await ask(store, 9, limits)).wait == 5000
    assert (await ask(store, 9, limits, worker="w3")).wait is None
    clock.advance(1000)  # w2 was killed
    assert (await ask(store, 9, limits, worker="w3")).wait == 5000


async def test_who_could_start_sooner_is_told_by_another(store: Store) -> None:
    await store.limit_key(TOPIC, "b", interval=(100.0, 1.0))
    limits = "- - - - 1000 1 0"
    await wait_in_line(store, "a1 a2")
    assert (await ask(store, 9, limits)).wait == 1000
    await wait_in_line(store, "b1 b2")
    assert (await ask(store, 9, limits, worker="w2")).wait == 100


async def test_a_worker_that_leaves_hands_over_the_coming_back(store: Store, raw: Redis) -> None:
    limits = "- - - - 1000 1 0"
    await wait_in_line(store, "a1 a2")
    assert (await ask(store, 9, limits)).wait == 1000
    assert (await ask(store, 9, limits, worker="w2")).wait == 2000
    assert (await ask(store, 9, limits, worker="w3")).wait is None
    for leaving in ("", "w3"):
        await store.ring_doorbell(TOPIC, leaving)
        assert (await ask(store, 9, limits, worker="w3")).wait is None
    await rings(store, raw)
    assert await store.ring_doorbell(TOPIC, "w1")
    assert (await ask(store, 9, limits, worker="w3")).wait == 1000
    assert (await ask(store, 9, limits, worker="w4")).wait is None  # w2 is there
    await store.ring_doorbell(TOPIC, "w2")
    assert (await ask(store, 9, limits, worker="w4")).wait == 2000


async def test_nothing_rings_for_a_blocked_key(store: Store, raw: Redis) -> None:
    await wait_in_line(store, "a1 a2")
    await take_in_turn(store, 9, STRICT)
    await rings(store, raw)
    await wait_in_line(store, "a3")
    assert not await rings(store, raw)
    await wait_in_line(store, "b1")
    assert await rings(store, raw)


# pauses


async def test_a_paused_key_waits_and_the_others_go_on(store: Store, raw: Redis) -> None:
    await wait_in_line(store, "a1 a2 b1")
    await store.limit_key(TOPIC, "a", pause=inf, reason="bad data")
    assert ids(await take_in_turn(store, 9)) == "b1"
    await rings(store, raw)
    await wait_in_line(store, "a3")
    assert not await rings(store, raw)
    await store.limit_key(TOPIC, "a", pause=None)
    assert await rings(store, raw)
    assert ids(await take_in_turn(store, 9)) == "a1 a2 a3"


async def test_a_pause_ends_by_itself(store: Store, clock: Clock) -> None:
    await wait_in_line(store, "a1")
    await store.limit_key(TOPIC, "a", pause=500)
    assert (await ask(store)).wait == 500
    clock.advance(500)
    assert ids(await take_in_turn(store, 9)) == "a1"
    await wait_in_line(store, "a2 b1")
    await store.limit_key(TOPIC, None, pause=500)
    found = await ask(store)
    assert (found.messages, found.wait) == ([], 500)
    clock.advance(500)
    assert ids(await take_in_turn(store, 9)) == "a2 b1"


async def test_a_paused_topic_gives_nothing_and_nobody_need_come_back(
    store: Store, raw: Redis
) -> None:
    await wait_in_line(store, "a1 a2 p1")
    await store.pause_topic(TOPIC)
    before = await snapshot(raw, TOPIC)
    found = await ask(store, 9, "1 - - 1 - - 0")
    assert (found.messages, found.wait, found.in_turn) == ([], None, True)
    assert (await snapshot(raw, TOPIC)).lines == before.lines
    await rings(store, raw)
    await store.resume_topic(TOPIC)
    assert await rings(store, raw)
    assert ids(await take_in_turn(store, 9)) == "p1 a1 a2"


async def test_what_an_operator_set_overrides_what_is_declared(store: Store) -> None:
    await wait_in_line(store, "a1 a2 a3 b1 b2 b3")
    await store.limit_key(TOPIC, "a", running=2)
    assert ids(await take_in_turn(store, 9, STRICT)) == "a1 b1 a2"
    await store.limit_key(TOPIC, "a", running=None)
    await store.limit_key(TOPIC, "b", running=9)
    assert ids(await take_in_turn(store, 9, STRICT)) == "b2 b3"


# strict order


async def crash(store: Store, clock: Clock, one: Leased) -> None:
    clock.advance(LEASE + 1)
    late = await store.handle_timeout_message(TOPIC, "w1", count=9, recovery=1000)
    (lost,) = [other for other in late.messages if other.id == one.id]
    await retry(store, Leased(lost.id, lost.token, lost.record), 0)


async def snooze(store: Store, one: Leased, *, key: bool = False, delay: int = 1000) -> None:
    later = SnoozeLater(codec.decode(one.record), delay, "later", key=key)
    assert await store.snooze_message(TOPIC, "w1", [(one, later)]) == ["1"]


@pytest.mark.parametrize("how", ["retry", "snooze", "crash", "release"])
async def test_a_line_waits_for_the_next_attempt_of_its_head(
    store: Store, raw: Redis, clock: Clock, how: str
) -> None:
    await wait_in_line(store, "a1 a2 a3 b1")
    head, other = await take_in_turn(store, 9, STRICT)
    await finish(store, other)
    match how:
        case "retry":
            await retry(store, head)
        case "snooze":
            await snooze(store, head)
        case "crash":
            await crash(store, clock, head)
        case _:
            assert await store.release_message(TOPIC, "w1", [HandedBack(head)]) == ["1"]
    if how != "release":
        assert await running(raw) == {"a a1"}
        assert await take_in_turn(store, 9, STRICT) == []
        await wait_in_line(store, "a4", priority=Priority.LOW)
        clock.advance(1000)
        assert await store.process_delay_message(TOPIC, count=9) == ["a1"]
    for id in ("a1", "a2", "a3"):
        (one,) = await take_in_turn(store, 9, STRICT)
        assert one.id == id
        await finish(store, one)


async def test_with_overtake_the_line_goes_on_and_the_failed_one_comes_back_in_front(
    store: Store, clock: Clock
) -> None:
    await wait_in_line(store, "a1 a2 a3")
    (head,) = await take_in_turn(store, 9, OVERTAKE)
    await retry(store, head)
    (second,) = await take_in_turn(store, 9, OVERTAKE)
    assert second.id == "a2"
    clock.advance(1000)
    await store.process_delay_message(TOPIC, count=9)
    assert await take_in_turn(store, 9, OVERTAKE) == []
    await finish(store, second)
    assert ids(await take_in_turn(store, 9, OVERTAKE)) == "a1"


@pytest.mark.parametrize("state", [State.DEAD, State.QUARANTINED])
async def test_a_dead_letter_lets_the_line_go_on_and_comes_back_at_its_end(
    store: Store, state: State
) -> None:
    await wait_in_line(store, "a1 a2")
    (head,) = await take_in_turn(store, 9, STRICT)
    await settle(store, head, state)
    found = await find_archived(store, TOPIC, state, "a1")
    assert found is not None
    revived = codec.decode(found.data.partition(b"\n")[2] or found.data).revived()
    await store.requeue_message(TOPIC, state, "a1", archived=found.at, message=revived)
    (second,) = await take_in_turn(store, 9, STRICT)
    await finish(store, second)
    assert [second.id, ids(await take_in_turn(store, 9, STRICT))] == ["a2", "a1"]


@pytest.mark.parametrize("how", ["cancel", "abort", "expire"])
async def test_a_line_goes_on_when_the_failed_head_is_removed(
    store: Store, clock: Clock, how: str
) -> None:
    await wait_in_line(store, "a1", ttl=500)
    await wait_in_line(store, "a2")
    (head,) = await take_in_turn(store, 9, STRICT)
    again = message(head).failed(FAILURE)
    await store.retry_message(TOPIC, "w1", [RetryRequest(head, again, MINUTE)])
    assert await take_in_turn(store, 9, STRICT) == []
    if how == "cancel":
        assert await store.cancel_message(TOPIC, "a1")
    elif how == "abort":
        record = await store.views.record(TOPIC, "a1") or b""
        assert await store.abort_message(TOPIC, message=codec.decode(record), seen=record)
    else:
        clock.advance(500)
        (expired,) = (await store.expire_message(TOPIC, "w1", count=9, recovery=LEASE)).messages
        await settle(store, Leased(expired.id, expired.token, expired.record), State.DEAD)
    assert ids(await take_in_turn(store, 9, STRICT)) == "a2"


async def test_a_replacement_of_a_running_message_waits_in_its_own_line(
    store: Store, raw: Redis
) -> None:
    await wait_in_line(store, "a1 a2")
    (head,) = await take_in_turn(store, 9, STRICT)
    await store.replace_message(TOPIC, draft("new", id="a1", key="b"))
    assert await running(raw) == {"a a1"}
    assert await take_in_turn(store, 9, STRICT) == []
    assert await store.complete_message(TOPIC, "w1", [head]) == ["r"]
    assert await store.release_replaced(TOPIC, "w1", head)
    assert set(ids(await take_in_turn(store, 9, STRICT)).split()) == {"a1", "a2"}
    assert await running(raw) == {"b a1", "a a2"}


async def test_a_pending_message_keeps_its_place_if_it_is_replaced_in_its_line(
    store: Store,
) -> None:
    await wait_in_line(store, "a1 a2")
    await store.replace_message(TOPIC, draft("new", id="a1", key="a"))
    taken = await take_in_turn(store, 9)
    assert (ids(taken), bytes(message(taken[0]).payload)) == ("a1 a2", b'"new"')


# a key that is held back


async def test_a_snoozed_key_waits_as_long_as_its_message(
    store: Store, raw: Redis, clock: Clock
) -> None:
    await wait_in_line(store, "a1 a2 b1 b2")
    one = (await take_in_turn(store, 1))[0]
    await snooze(store, one, key=True)
    assert (await snapshot(raw, TOPIC)).buckets == {"a\t": clock.now + 1000}
    found = await ask(store)
    assert (ids(found.messages), found.wait) == ("b1 b2", 1000)
    clock.advance(1000)
    await store.process_delay_message(TOPIC, count=9)
    assert ids(await take_in_turn(store, 9)) == "a1 a2"


async def test_a_shorter_snooze_does_not_cut_a_longer_one_short(store: Store, clock: Clock) -> None:
    await wait_in_line(store, "a1 a2 a3")
    long, short = await take_in_turn(store, 2)
    await snooze(store, long, key=True, delay=MINUTE)
    await snooze(store, short, key=True)
    clock.advance(MINUTE - 1)
    await store.process_delay_message(TOPIC, count=9)
    assert await take_in_turn(store, 9) == []
    clock.advance(1)
    await store.process_delay_message(TOPIC, count=9)
    assert ids(await take_in_turn(store, 9)) == "a1 a2 a3"


# nothing stays behind


async def test_lines_that_are_worked_off_leave_nothing_behind(
    store: Store, raw: Redis, clock: Clock
) -> None:
    limits = "9 1 100 1 1 100 0"
    await wait_in_line(store, "a1 a2 b1 p1", cost=2, ttl=MINUTE)
    await wait_in_line(store, "c1 c2 d1")
    assert await store.cancel_message(TOPIC, "d1")
    record = await store.views.record(TOPIC, "c2") or b""
    assert await store.abort_message(TOPIC, message=codec.decode(record), seen=record)
    first = True
    while taken := await take_in_turn(store, 9, limits):
        if first:
            await retry(store, taken.pop(0))
        first = False
        await finish(store, *taken)
        clock.advance(1000)
        await store.process_delay_message(TOPIC, count=9)
    found = await snapshot(raw, TOPIC)
    assert (found.lines, found.ring, found.blocked, found.running) == ([], {}, {}, set())
    assert found.keyed.keys() == {"!"}
    assert 0 < await raw.pttl(store.keys.of(TOPIC).buckets) <= 10 * MINUTE
    (done,) = [await ask(store)]
    assert not done.in_turn


@pytest.mark.parametrize("limits", ["- - - - 315360000000 1 0", "- 315360000000 1 - - - 0"])
async def test_a_debt_of_a_million_years_fails_nothing_halfway(
    store: Store, raw: Redis, limits: str
) -> None:
    await wait_in_line(store, "a1 a2", cost=1_000_000)
    first = await ask(store, 9, limits)
    assert len(first.messages) == 1
    assert (await ask(store, 9, limits)).messages == []
    found = await snapshot(raw, TOPIC)
    assert found.meta["token"] == str(first.messages[0].token)
