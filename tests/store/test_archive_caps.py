"""Caps and TTL of the dead letters and of the quarantine: the same lines in both scripts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core import codec
from mx_rmq.core.message import State
from mx_rmq.settings import SECOND_NET
from mx_rmq.store.quarantine import read
from mx_rmq.store.results import Settled
from tests.lab.archives import ARCHIVES, archive, archived, contents, find_archived, limits
from tests.lab.messages import TOPIC, draft, leased, settle, take
from tests.lab.servers import USUAL, chosen
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.settings import Limits
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

pytestmark = pytest.mark.parametrize("state", ARCHIVES)

MINUTE = 60_000

KINDS = chosen(*USUAL)
with_hexpire = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.has_hexpire])
without_hexpire = pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.has_hexpire])


async def kept(raw: Redis, state: State) -> list[str]:
    """Return the ids in an archive, oldest first."""
    return list(contents(await snapshot(raw, TOPIC), state))


async def revive(store: Store, state: State, id: str) -> None:
    """Requeue an archived message."""
    entry = await find_archived(store, TOPIC, state, id)
    assert entry is not None
    record = entry.data if state is State.DEAD else read(entry.data)[1]
    done = await store.requeue_message(
        TOPIC, state, id, archived=entry.at, message=codec.decode(record)
    )
    assert done is Settled.DONE


async def die_again(store: Store, state: State) -> None:
    """Dispatch the only pending message into the archive."""
    (one,) = await take(store, 10)
    await settle(store, one, state)


async def field_ttl(store: Store, raw: Redis, state: State, id: str) -> int:
    """Return how long the server itself still keeps the archived bytes, s; -1: for ever."""
    _, payload = store.keys.of(TOPIC).archive_of(state)
    (ttl,) = await raw.httl(payload, id)
    return int(ttl)


async def test_the_newest_are_kept_and_the_oldest_go_with_index_and_contents(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    store.limits = limits(state, keep=3)
    ids = await archived(store, state, 5, clock=clock)
    assert await kept(raw, state) == ids[-3:]


async def test_a_cap_of_one_keeps_the_latest(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    store.limits = limits(state, keep=1)
    for _ in range(3):
        (id,) = await archived(store, state, clock=clock)
        assert await kept(raw, state) == [id]


async def test_the_arriving_one_stays_also_when_the_others_are_younger(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    younger = await archived(store, state, 3, clock=clock)
    store.limits = limits(state, keep=3)
    clock.advance(-MINUTE)  # a failover to a server whose clock is behind
    (id,) = await archived(store, state)
    assert await kept(raw, state) == [id, *younger[1:]]


async def test_those_over_the_age_go_when_another_arrives(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    store.limits = limits(state, ttl=60)
    (old,) = await archived(store, state)
    clock.advance(MINUTE // 2)
    (young,) = await archived(store, state)
    clock.advance(MINUTE // 2 - 1)
    (at_the_brink,) = await archived(store, state)
    assert await kept(raw, state) == [old, young, at_the_brink]
    clock.advance(1)
    (new,) = await archived(store, state)
    assert await kept(raw, state) == [young, at_the_brink, new]


async def test_a_second_death_counts_from_its_own_time(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    store.limits = limits(state, ttl=60)
    again, never = await archived(store, state, 2)
    clock.advance(MINUTE // 2)
    await revive(store, state, again)
    await die_again(store, state)
    clock.advance(MINUTE // 2)
    (new,) = await archived(store, state)
    assert await kept(raw, state) == [again, new], f"{never} is over its age"


async def test_age_and_cap_work_together(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    await archived(store, state, 3, clock=clock)
    clock.advance(MINUTE)
    ids = await archived(store, state, 4, clock=clock)
    store.limits = limits(state, keep=3, ttl=60)
    ids += await archived(store, state)
    assert await kept(raw, state) == ids[-3:]


async def test_nought_switches_caps_and_age_off(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    store.limits = limits(state)
    ids = await archived(store, state, 20, clock=clock)
    clock.advance(100 * 365 * 86_400_000)
    ids += await archived(store, state)
    assert await kept(raw, state) == ids


@pytest.mark.parametrize("over", ["cap", "age"])
async def test_a_surplus_larger_than_one_step_goes_step_by_step(
    store: Store, raw: Redis, clock: Clock, state: State, over: str
) -> None:
    store.limits = limits(state)
    await archived(store, state, 350, clock=clock)
    if over == "age":
        clock.advance(MINUTE)
    store.limits = limits(state, keep=5) if over == "cap" else limits(state, ttl=60)
    new: list[str] = []
    left = []
    for _ in range(6):
        new += await archived(store, state, clock=clock)
        left.append(len(await kept(raw, state)))
    assert left == ([251, 152, 53, 5, 5, 5] if over == "cap" else [251, 152, 53, 4, 5, 6])
    assert (await kept(raw, state))[-5:] == new[-5:]


async def test_the_cap_of_one_archive_does_not_touch_the_other(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    (other,) = {*ARCHIVES} - {state}
    spared = await archived(store, other, 3, clock=clock)
    store.limits = limits(state, keep=1)
    await archived(store, state, 2, clock=clock)
    assert await kept(raw, other) == spared


async def test_an_id_that_its_age_let_go_may_come_and_die_again(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    store.limits = limits(state, ttl=60)
    _, payload = store.keys.of(TOPIC).archive_of(state)
    (id,) = await archived(store, state, id="mine")
    clock.advance(MINUTE + 3_600_000)
    await raw.hdel(payload, id)  # as HEXPIRE does: the index still lists it
    ((_, placed),) = await store.produce_normal_message(TOPIC, [draft(2, id="mine")])
    assert not placed.duplicate
    await die_again(store, state)
    assert await kept(raw, state) == ["mine"]


@with_hexpire
async def test_where_the_server_can_it_drops_a_field_an_hour_after_its_age_limit(
    store: Store, raw: Redis, state: State
) -> None:
    store.limits = limits(state, ttl=60)
    first, second = await archived(store, state, 2)
    assert SECOND_NET == 3600
    assert 3658 <= await field_ttl(store, raw, state, first) <= 3660
    store.limits = limits(state, ttl=600)
    (longer,) = await archived(store, state)
    assert 4198 <= await field_ttl(store, raw, state, longer) <= 4200
    await revive(store, state, first)
    await die_again(store, state)
    assert 4198 <= await field_ttl(store, raw, state, first) <= 4200, "renewed"
    assert 3650 <= await field_ttl(store, raw, state, second) <= 3660, "its own, as before"
    store.limits = limits(state)
    await revive(store, state, first)
    await die_again(store, state)
    assert await field_ttl(store, raw, state, first) == -1, "no age limit, no TTL"


@with_hexpire
async def test_a_field_that_the_server_drops_takes_no_other_along(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    store.limits = limits(state, ttl=60)
    old, young = await archived(store, state, 2)
    _, payload = store.keys.of(TOPIC).archive_of(state)
    await raw.hpexpireat(payload, 1, old)
    assert await raw.hkeys(payload) == [young.encode()]
    clock.advance(MINUTE - 1)
    (new,) = await archived(store, state)
    clock.advance(1)
    assert await store.trim_archive(TOPIC, state) == 2
    assert await kept(raw, state) == [new]


@without_hexpire
async def test_where_the_server_has_no_hexpire_nobody_asks_for_it(
    store: Store, raw: Redis, state: State
) -> None:
    assert not store.hexpire
    store.limits = limits(state, ttl=60)
    await raw.config_resetstat()
    (one,) = await leased(store)
    assert await archive(store, state, one) is Settled.DONE
    assert not [name for name in await raw.info("commandstats") if "expire" in name.lower()]
    _, payload = store.keys.of(TOPIC).archive_of(state)
    assert await raw.ttl(payload) == -1


async def test_a_topic_that_grows_loses_nothing_of_its_archives(
    store: Store, raw: Redis, state: State
) -> None:
    store.limits = limits(state, keep=10)
    ids = await archived(store, state, 10)
    await store.register(TOPIC, 4)
    await store.trim_archive(TOPIC, state)
    assert set(await kept(raw, state)) == set(ids)


# bytes

OVERHEAD = 200


async def load(raw: Redis, state: State) -> int:
    """Return for how many bytes an archive counts."""
    kept = contents(await snapshot(raw, TOPIC), state)
    return sum(len(data) + OVERHEAD for data in kept.values())


async def noted(store: Store, raw: Redis, state: State) -> int:
    """Return how many bytes are recorded for an archive, without what each message adds."""
    return int(await raw.hget(store.keys.of(TOPIC).archive_bytes, state) or 0)


def budget(state: State, most: int) -> Limits:
    """Bound one archive by its bytes; 0 is off."""
    name = "dlq_max_bytes" if state is State.DEAD else "quarantine_max_bytes"
    fields: dict[str, Any] = {name: most}
    return replace(limits(state), **fields)


async def test_the_oldest_go_until_the_rest_fits_after_every_call(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    store.limits = budget(state, 10_000)
    ids: list[str] = []
    sizes: dict[str, int] = {}
    for size in (100, 3000, 10, 5000, 2000, 1, 1, 4000, 100, 7000, 1, 1, 1):
        before = await kept(raw, state)
        ids += await archived(store, state, clock=clock, headers={"filler": "x" * size})
        found = contents(await snapshot(raw, TOPIC), state)
        sizes |= {id: len(data) + OVERHEAD for id, data in found.items()}
        assert [*found] == ids[len(ids) - len(found) :], "the newest, without a gap"
        total = sum(sizes[id] for id in found)
        assert total <= 10_000
        if dropped := [id for id in before if id not in found]:
            assert total + sizes[dropped[-1]] > 10_000, "not one too many"
        assert await noted(store, raw, state) == total - OVERHEAD * len(found)
    assert (await store.views.counts(TOPIC)).overflowed is not None


async def test_one_that_is_larger_than_the_budget_is_kept_alone(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    store.limits = budget(state, 2_000)
    await archived(store, state, 3, clock=clock)
    (large,) = await archived(store, state, clock=clock, headers={"filler": "x" * 5_000})
    assert await kept(raw, state) == [large]
    (data,) = contents(await snapshot(raw, TOPIC), state).values()
    if state is State.DEAD:
        assert len(data) > 5_000, "a dead letter stays whole"
    else:
        about, bytes_kept = read(data)
        assert len(data) + OVERHEAD == 2_000, "cut to the budget"
        assert about.length > 5_000 > len(bytes_kept)
    (small,) = await archived(store, state, clock=clock)
    assert await kept(raw, state) == [small]


async def test_many_small_ones_go_for_a_huge_one(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    store.limits = budget(state, 0)
    small = await archived(store, state, 600, clock=clock)
    store.limits = budget(state, 62_000)
    await archived(store, state, clock=clock, headers={"filler": "x" * 60_000})
    left = await kept(raw, state)
    assert len(left) < 6
    assert left[:-1] == small[len(small) - len(left) + 1 :]


async def test_a_budget_that_shrinks_is_kept_by_the_next_trim(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    ids = await archived(store, state, 30, clock=clock)
    store.limits = budget(state, await load(raw, state) // 2)
    assert await store.trim_archive(TOPIC, state) >= 15
    assert await load(raw, state) <= (await store.budget(TOPIC, state))
    assert await kept(raw, state) == ids[-len(await kept(raw, state)) :]


async def test_the_partitions_of_a_topic_share_its_bytes(store: Store, state: State) -> None:
    store.limits = budget(state, 10_000)
    await store.register(TOPIC, 4)
    assert await store.budget(TOPIC, state) == await store.budget(f"{TOPIC}/3", state) == 2_500


async def test_requeue_and_discard_give_their_bytes_back(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    first, second, third = await archived(store, state, 3, clock=clock)
    await revive(store, state, first)
    entry = await find_archived(store, TOPIC, state, second)
    assert entry is not None
    assert await store.discard_message(TOPIC, state, second, archived=entry.at)
    assert await noted(store, raw, state) == await load(raw, state) - OVERHEAD
    assert await kept(raw, state) == [third]


async def change_by_hand(store: Store, raw: Redis, state: State, how: str, oldest: str) -> None:
    """Change an archive as something does that keeps no count."""
    keys = store.keys.of(TOPIC)
    index, payload = keys.archive_of(state)
    if how == "not counted yet":
        await raw.delete(keys.archive_bytes)
        return
    await raw.hdel(payload, oldest)
    if how == "dropped by HEXPIRE":
        return
    at = await raw.zscore(index, oldest)
    await raw.zrem(index, oldest)
    if how == "added and dropped":  # by a worker of the release before, at its cap
        await raw.zadd(index, {"foreign": at or 0})
        await raw.hset(payload, "foreign", "x" * 3_000)
        await raw.hincrby(keys.totals, "died" if state is State.DEAD else "quarantined", 1)


@pytest.mark.corrupts
@pytest.mark.parametrize(
    "how", ["not counted yet", "removed", "dropped by HEXPIRE", "added and dropped"]
)
async def test_what_something_else_changed_is_counted_again_at_the_next_call(
    store: Store, raw: Redis, clock: Clock, state: State, how: str
) -> None:
    oldest, *_ = await archived(store, state, 5, clock=clock)
    await change_by_hand(store, raw, state, how, oldest)
    assert await store.audit._miscounts(store.keys.of(TOPIC)) == [], "in doubt, so no fault"
    await archived(store, state, clock=clock)
    _, payload = store.keys.of(TOPIC).archive_of(state)
    held = sum(map(len, await raw.hvals(payload)))
    assert await noted(store, raw, state) == held


@pytest.mark.corrupts
async def test_a_large_archive_is_counted_in_steps_while_it_changes(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    index, payload = store.keys.of(TOPIC).archive_of(state)
    ids = [f"id-{number:04}" for number in range(2500)]
    await store.register(TOPIC)
    at = clock.now - 5_000
    await raw.zadd(index, {id: at + number // 3 for number, id in enumerate(ids)})
    await raw.hset(
        payload, mapping={id: "x" * (number % 50) + "y" for number, id in enumerate(ids)}
    )
    for step in range(4):
        await archived(store, state, clock=clock)
        gone = ids[10 * step]  # one that is counted already, or none
        entry = await find_archived(store, TOPIC, state, gone)
        assert entry is not None
        assert await store.discard_message(TOPIC, state, gone, archived=entry.at)
    assert await noted(store, raw, state) == sum(map(len, await raw.hvals(payload)))
    assert await store.audit._miscounts(store.keys.of(TOPIC)) == []


@pytest.mark.corrupts
async def test_the_audit_tells_of_a_wrong_count_and_the_janitor_counts_again(
    store: Store, raw: Redis, clock: Clock, state: State
) -> None:
    await archived(store, state, 3, clock=clock)
    right = await noted(store, raw, state)
    await raw.hincrby(store.keys.of(TOPIC).archive_bytes, state, 1_000)
    (wrong,) = await store.audit.topic(TOPIC)
    expected = f"{state} messages: {right + 1_000:,} bytes are recorded, {right:,} are there"
    assert wrong.what == expected
    clock.advance(6 * 3_600_000 + 1)
    assert await store.trim_archive(TOPIC, state) == 0
    assert await noted(store, raw, state) == right
    assert await store.audit.topic(TOPIC) == []
