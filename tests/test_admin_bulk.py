"""Acts on many messages: which ones they reach, how far they go, how fast, and what is left."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.admin import Admin, Filter, Progress
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import Failure, State
from mx_rmq.core.partition import partitions
from tests.lab.archives import ARCHIVES, archived, corpse, fill
from tests.lab.messages import TOPIC, Priority, delayed, draft, drafts, pending, take
from tests.lab.servers import Kind
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1])

REFUSED = [Failure(type="Refused", text="no", at=1)]


@pytest.fixture
def admin(store: Store) -> Admin:
    return Admin(store)


async def ids_of(admin: Admin, state: State) -> list[str]:
    ids: list[str] = []
    cursor = None
    while True:
        page = await admin.list(TOPIC, state, limit=1000, cursor=cursor)
        ids += [one.id for one in page.messages]
        cursor = page.cursor
        if cursor is None:
            return ids


# dead and quarantined ones


@pytest.mark.parametrize("apart", [1, 0])
async def test_of_thousands_those_of_a_filter_are_requeued_in_their_order(
    store: Store, admin: Admin, raw: Redis, clock: Clock, apart: int
) -> None:
    every = [
        corpse(number, errors=REFUSED if number % 5 == 0 else [], priority=Priority.HIGH)
        for number in range(2500)
    ]
    await fill(store, raw, every, at=clock.now, apart=apart)
    wanted = [one.id for one in every if one.errors]
    told: list[Progress] = []
    counted = await admin.requeue_all(
        TOPIC, State.DEAD, filter=Filter(error="refused"), dry_run=True, progress=told.append
    )
    assert counted == 500
    assert (await admin.stats(TOPIC)).dead == 2500
    assert (told[0], told[-1]) == (Progress(0, 0, 2500), Progress(500, 2500, 2500))
    assert [one.looked for one in told] == sorted(one.looked for one in told)
    done = await admin.requeue_all(TOPIC, State.DEAD, filter=Filter(error="refused"), limit=70)
    assert done == 70
    assert await admin.requeue_all(TOPIC, State.DEAD, filter=Filter(error="refused")) == 430
    assert await ids_of(admin, State.PENDING) == wanted
    left = [one.id for one in every if not one.errors]
    assert sorted(await ids_of(admin, State.DEAD)) == left


async def test_of_thousands_those_of_an_hour_are_discarded_and_no_other_is_read(
    store: Store, admin: Admin, raw: Redis, clock: Clock
) -> None:
    every = [corpse(number) for number in range(3000)]
    await fill(store, raw, every, at=clock.now, apart=10_000)
    hour = Filter(since=clock.now / 1000 + 3600, until=clock.now / 1000 + 7200)
    told: list[Progress] = []
    await raw.config_resetstat()
    assert await admin.discard_all(TOPIC, State.DEAD, filter=hour, progress=told.append) == 361
    assert told[-1] == Progress(361, 361, 361)
    stats = await raw.info("commandstats")  # one HMGET per discard reads the bytes of the archive
    assert stats["cmdstat_hmget"]["calls"] == stats["cmdstat_hdel"]["calls"] == 361
    expected = [one.id for one in (*every[:360], *every[721:])]
    assert sorted(await ids_of(admin, State.DEAD)) == expected


@pytest.mark.parametrize("state", ARCHIVES)
async def test_what_is_archived_meanwhile_is_left_alone(
    store: Store, admin: Admin, clock: Clock, state: State
) -> None:
    ids = await archived(store, state, 150, clock=clock)
    late: list[str] = []

    async def archive_more(progress: Progress) -> None:
        late.extend(await archived(store, state, 1, clock=clock))

    tasks: list[asyncio.Task[None]] = []

    def progress(one: Progress) -> None:
        if one.done in (3, 60, 149):
            tasks.append(asyncio.ensure_future(archive_more(one)))

    assert await admin.discard_all(TOPIC, state, progress=progress) == 150
    await asyncio.gather(*tasks)
    assert len(late) >= 3
    assert sorted(await ids_of(admin, state)) == sorted(late)
    assert not set(ids) & set(late)


async def test_what_the_caps_take_away_meanwhile_makes_it_pass_nothing_over(
    store: Store, admin: Admin, raw: Redis, clock: Clock
) -> None:
    every = [corpse(number, errors=REFUSED if number % 2 else []) for number in range(1000)]
    await fill(store, raw, every, at=clock.now)
    keys = store.keys.of(TOPIC)
    oldest = [one.id for one in every[:50]]
    trimmed: list[asyncio.Future[None]] = []

    def trim(progress: Progress) -> None:
        if progress.done == 100 and not trimmed:
            trimmed.append(asyncio.ensure_future(take_away()))

    async def take_away() -> None:
        await raw.zrem(keys.dlq, *oldest)
        await raw.hdel(keys.dlq_payload, *oldest)

    await admin.discard_all(TOPIC, State.DEAD, filter=Filter(error="Refused"), progress=trim)
    await asyncio.gather(*trimmed)
    left = (await admin.list(TOPIC, State.DEAD, limit=1000)).messages
    assert [one for one in left if one.errors] == []


async def test_a_bulk_act_that_is_stopped_leaves_every_message_whole(
    store: Store, admin: Admin, raw: Redis, clock: Clock
) -> None:
    await fill(store, raw, [corpse(number) for number in range(1000)], at=clock.now)
    reached = asyncio.Event()

    def progress(one: Progress) -> None:
        if one.done >= 200:
            reached.set()

    act = asyncio.create_task(admin.requeue_all(TOPIC, State.DEAD, progress=progress))
    await reached.wait()
    act.cancel()
    with pytest.raises(asyncio.CancelledError):
        await act
    stats = await admin.stats(TOPIC)
    assert stats.pending >= 200
    assert stats.pending + stats.dead == 1000
    assert await admin.audit(TOPIC) == []
    assert await admin.requeue_all(TOPIC, State.DEAD) == stats.dead


async def test_a_bulk_act_is_not_faster_than_its_rate(
    store: Store, admin: Admin, raw: Redis, clock: Clock
) -> None:
    await fill(store, raw, [corpse(number) for number in range(60)], at=clock.now)
    start = time.monotonic()
    assert await admin.discard_all(TOPIC, State.DEAD, rate=100, limit=51) == 51
    assert time.monotonic() - start >= 0.45
    start = time.monotonic()
    assert await admin.discard_all(TOPIC, State.DEAD, rate=1, dry_run=True) == 9
    assert time.monotonic() - start < 5  # only acts are slowed down


@pytest.mark.corrupts
async def test_a_dry_run_counts_only_what_could_be_done_and_changes_nothing(
    store: Store, admin: Admin, raw: Redis, clock: Clock
) -> None:
    ids = await archived(store, State.DEAD, 5, clock=clock)
    await raw.hset(store.keys.of(TOPIC).dlq_payload, ids[1], b"\xff")
    await pending(store, 4)
    await delayed(store, 1000, 3)
    before = await snapshot(raw, TOPIC)
    assert await admin.requeue_all(TOPIC, State.DEAD, dry_run=True) == 4
    assert await admin.discard_all(TOPIC, State.DEAD, dry_run=True, limit=2) == 2
    assert await admin.discard_all(TOPIC, State.DEAD, dry_run=True) == 5
    assert await admin.cancel_all(TOPIC, State.PENDING, dry_run=True) == 4
    assert await admin.cancel_all(TOPIC, State.DELAYED, dry_run=True) == 3
    assert await snapshot(raw, TOPIC) == before


# pending and delayed ones


async def test_of_thousands_pending_those_of_a_filter_are_cancelled_from_the_back(
    store: Store, admin: Admin
) -> None:
    made = [draft("odd" if number % 2 else "even") for number in range(1000)]
    ids = [id for id, _ in await store.produce_normal_message(TOPIC, made)]
    odd = [draft("odd", priority=Priority.LOW) for _ in range(1000)]
    await store.produce_normal_message(TOPIC, odd)
    high = await pending(store, 1000, priority=Priority.HIGH)
    wanted = Filter(text="odd")
    assert await admin.cancel_all(TOPIC, State.PENDING, filter=wanted, limit=3) == 3
    normal = (await ids_of(admin, State.PENDING))[1000:-1000]
    assert normal == [id for id in ids if id not in (ids[999], ids[997], ids[995])]
    assert await admin.cancel_all(TOPIC, State.PENDING, filter=wanted) == 1497
    assert await ids_of(admin, State.PENDING) == high + ids[::2]
    assert await admin.cancel_all(TOPIC, State.PENDING) == 1500


async def test_pending_messages_are_cancelled_while_workers_take_and_producers_add_some(
    store: Store, admin: Admin
) -> None:
    bad = [draft("bad", headers={"n": str(number)}) for number in range(450)]
    good = [draft("good") for _ in range(450)]
    mixed = [one for pair in zip(bad, good, strict=True) for one in pair]
    await store.produce_normal_message(TOPIC, mixed)
    taken: list[str] = []
    more: list[str] = []
    moving: list[asyncio.Future[None]] = []

    async def move() -> None:
        taken.extend(one.id for one in await take(store, 7))
        more.extend(await pending(store, 3))

    def progress(one: Progress) -> None:
        if one.done % 50 == 1:
            moving.append(asyncio.ensure_future(move()))

    done = await admin.cancel_all(
        TOPIC, State.PENDING, filter=Filter(text="bad"), progress=progress
    )
    await asyncio.gather(*moving)
    left = (await admin.list(TOPIC, State.PENDING, limit=1000)).messages
    assert [one.id for one in left if one.payload == "bad"] == []
    assert set(more) <= {one.id for one in left}
    held = (await admin.list(TOPIC, State.PROCESSING, limit=1000)).messages
    assert done + sum(one.payload == "bad" for one in held) == 450


async def test_delayed_messages_are_cancelled_by_their_due_time(
    store: Store, admin: Admin, clock: Clock
) -> None:
    ids = {}
    for number, priority in enumerate([*Priority] * 5):
        (id,) = await delayed(store, (number + 1) * 1000, priority=priority)
        ids[id] = number
    until = Filter(until=clock.now / 1000 + 10)
    assert await admin.cancel_all(TOPIC, "delayed", filter=until) == 10
    assert {ids[id] for id in await ids_of(admin, State.DELAYED)} == set(range(10, 15))
    assert await admin.cancel_all(TOPIC, "delayed", limit=2) == 2
    assert await admin.cancel_all(TOPIC, "delayed") == 3


async def test_what_is_produced_meanwhile_is_left_alone_wherever_it_stands(
    store: Store, admin: Admin, clock: Clock
) -> None:
    old = [id for n in range(250) for id in await delayed(store, 10_000 + 10 * n)]
    new: list[str] = []
    adding: list[asyncio.Future[None]] = []

    async def add() -> None:
        clock.advance(1)
        new.extend(await delayed(store, 11_000, 50))  # due in the middle of the others

    def progress(one: Progress) -> None:
        if one.done in (1, 50, 150):
            adding.append(asyncio.ensure_future(add()))

    assert await admin.cancel_all(TOPIC, State.DELAYED, progress=progress) == len(old)
    await asyncio.gather(*adding)
    assert sorted(await ids_of(admin, State.DELAYED)) == sorted(new)


@pytest.mark.parametrize("state", [State.PENDING, State.DELAYED])
async def test_all_partitions_are_gone_through(store: Store, admin: Admin, state: State) -> None:
    await store.register_topics({TOPIC: 3})
    for part in partitions(TOPIC, 3):
        if state is State.PENDING:
            await store.produce_normal_message(part, drafts(150))
        else:
            await store.produce_delay_message(part, drafts(150, delay=1000))
    told: list[Progress] = []
    assert await admin.cancel_all(TOPIC, state, limit=200, progress=told.append) == 200
    assert told[0].total == 450
    assert await admin.cancel_all(TOPIC, state) == 250
    assert (await admin.stats(TOPIC)).total == 0


# what is refused


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"limit": 0}, "limit=0 must be at least 1"),
        ({"limit": 1.5}, "limit=1.5 is not a whole number"),
        ({"rate": 0}, "rate=0 must be a finite number of messages per second above 0"),
        ({"rate": "fast"}, "rate='fast' is not a number of messages per second"),
        ({"rate": float("inf")}, "rate=inf must be a finite number"),
    ],
)
async def test_bounds_that_make_no_sense_are_refused(
    store: Store, admin: Admin, words: dict[str, Any], expected: str
) -> None:
    await pending(store)
    for act in (admin.requeue_all, admin.discard_all):
        with pytest.raises(InvalidInput, match=expected):
            await act(TOPIC, State.DEAD, **words)
    with pytest.raises(InvalidInput, match=expected):
        await admin.cancel_all(TOPIC, State.PENDING, **words)


@pytest.mark.parametrize("state", [State.PROCESSING, *ARCHIVES])
async def test_only_what_waits_is_cancelled(store: Store, admin: Admin, state: State) -> None:
    await pending(store)
    with pytest.raises(
        InvalidInput, match="you can only cancel pending, delayed or waiting messages"
    ):
        await admin.cancel_all(TOPIC, state)


@pytest.mark.parametrize("act", ["requeue_all", "discard_all", "cancel_all"])
async def test_an_option_that_does_not_exist_is_refused_before_anything_is_done(
    store: Store, admin: Admin, act: str
) -> None:
    await pending(store, 3)
    state = State.PENDING if act == "cancel_all" else State.DEAD
    with pytest.raises(TypeError, match="limt"):
        await getattr(admin, act)(TOPIC, state, limt=1)
    assert (await admin.stats(TOPIC)).pending == 3
