"""The admin, on real servers: it shows every state, and changes only what it is told to."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mx_rmq.admin import Admin, Cancelled, Stats, Totals
from mx_rmq.core.errors import InvalidInput, WrongType
from mx_rmq.core.message import State
from mx_rmq.core.outcome import Park
from mx_rmq.core.partition import number_for, partitions
from mx_rmq.store.quarantine import QuarantineReason
from mx_rmq.store.results import HandedBack, RetryRequest
from mx_rmq.store.store import Store
from tests.lab.archives import ARCHIVES, archived
from tests.lab.messages import (
    FAILURE,
    LEASE,
    RESULT_TTL,
    TOPIC,
    Priority,
    bring,
    delayed,
    draft,
    drafts,
    kept,
    leased,
    message,
    pending,
    settle,
    take,
)
from tests.lab.servers import Kind
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from mx_rmq.store.results import Leased
    from tests.lab.clock import Clock
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1, Kind.REDIS_6_2])


@pytest.fixture
def admin(store: Store) -> Admin:
    return Admin(store)


async def ids_of(admin: Admin, state: State, limit: int = 1000) -> list[str]:
    """Turn page after page; return the ids in the order in which they came."""
    ids: list[str] = []
    cursor = None
    while True:
        page = await admin.list(TOPIC, state, limit=limit, cursor=cursor)
        assert len(page.messages) <= limit
        ids += [one.id for one in page.messages]
        cursor = page.cursor
        if cursor is None:
            return ids


# topics and stats


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.stats("orderz"),
        lambda admin: admin.overview("topic-00", "orderz"),
        lambda admin: admin.rates("topic-00", "orderz"),
        lambda admin: admin.get("orderz", "id"),
        lambda admin: admin.list("orderz", State.PENDING),
        lambda admin: admin.requeue("orderz", "id"),
        lambda admin: admin.discard("orderz", "id"),
        lambda admin: admin.cancel("orderz", "id"),
        lambda admin: admin.pause("orderz"),
        lambda admin: admin.resume("orderz"),
        lambda admin: admin.audit("orderz"),
        lambda admin: admin.requeue_all("orderz", State.DEAD),
        lambda admin: admin.discard_all("orderz", State.DEAD),
        lambda admin: admin.cancel_all("orderz", State.PENDING),
        lambda admin: admin.edit("orderz", "id", 1),
        lambda admin: admin.count("orderz", State.PENDING),
    ],
)
async def test_an_unknown_topic_is_refused_and_the_known_ones_are_named(
    store: Store, admin: Admin, raw: Redis, call: Callable[[Admin], Awaitable[object]]
) -> None:
    for number in range(12):
        await store.produce_normal_message(f"topic-{number:02}", [draft()])
    before = {key async for key in raw.scan_iter()}
    with pytest.raises(InvalidInput) as caught:
        await call(admin)
    assert str(caught.value) == (
        "no topic 'orderz' under the prefix 'mx-rmq'; known topics (12): topic-00, topic-01, "
        "topic-02, topic-03, topic-04, topic-05, topic-06, topic-07, topic-08, topic-09, …"
    )
    assert {key async for key in raw.scan_iter()} == before


async def test_an_overview_has_the_named_topics_in_their_order_or_all_by_name(
    store: Store, admin: Admin
) -> None:
    for topic in ("c", "a", "b"):
        await store.produce_normal_message(topic, [draft()])
    assert list((await admin.overview("c", "a", "c")).topics) == ["c", "a"]
    every = await admin.overview()
    assert (list(every.topics), every.known, every.left_out) == (["a", "b", "c"], 3, 0)
    some = await admin.overview(most=2, first=("c",))
    assert (list(some.topics), some.known, some.left_out) == (["a", "c"], 3, 1)


@pytest.mark.corrupts
async def test_a_topic_that_cannot_be_counted_hides_no_other(
    store: Store, admin: Admin, raw: Redis
) -> None:
    for topic in ("a", "b"):
        await store.produce_normal_message(topic, [draft()])
    await raw.set(store.keys.of("a").dlq, "not ours")
    for overview in (await admin.overview(), await admin.overview("a", "b")):
        assert list(overview.topics) == ["b"]
        assert isinstance(overview.away["a"], WrongType)


async def test_a_name_that_is_no_topic_is_refused(admin: Admin) -> None:
    with pytest.raises(InvalidInput, match="topic 'a b' must consist of"):
        await admin.stats("a b")


@pytest.mark.corrupts
async def test_the_topics_are_listed_and_foreign_names_among_them_are_not(
    store: Store, admin: Admin, raw: Redis
) -> None:
    assert await admin.topics() == []
    await pending(store)
    await store.produce_normal_message("b", [draft()])
    for name in (b"\xff", b"a b", b"{x}", b"a/1", b"\x1b[2J"):
        await raw.hset(store.keys.topics, name, 1)
    assert await admin.topics() == ["b", TOPIC]


async def test_the_stats_count_every_state_and_tell_of_a_pause(
    store: Store, admin: Admin, raw: Redis
) -> None:
    await archived(store, State.DEAD, 4)
    await archived(store, State.QUARANTINED, 5)
    await bring(store, State.COMPLETED)
    await leased(store, 2)
    await delayed(store, 1000, 3, priority=Priority.LOW)
    await raw.rpush(store.keys.of(TOPIC).pending, "ghost")
    await take(store)
    await pending(store, 1, priority=Priority.HIGH)
    await store.pause_topic(TOPIC)
    stats = await admin.stats(TOPIC)
    assert stats == Stats(
        topic=TOPIC,
        pending=1,
        processing=2,
        delayed=3,
        dead=4,
        quarantined=5,
        oldest_pending=stats.oldest_pending,
        paused=True,
        dropped=1,
        dead_bytes=stats.dead_bytes,
        quarantined_bytes=stats.quarantined_bytes,
        completed=1,
        completed_bytes=stats.completed_bytes,
        dead_budget=256 * 1_048_576,
        quarantined_budget=64 * 1_048_576,
        completed_budget=64 * 1_048_576,
        totals=Totals(produced=16, dispatched=12, died=4, quarantined=5, completed=1),
    )
    assert stats.total == 15
    found = await snapshot(raw, TOPIC)
    assert stats.dead_bytes == sum(len(data) + 200 for data in found.dead_letters.values())


async def test_the_oldest_pending_message_is_as_old_as_its_produce(
    store: Store, server: Server, clock: Clock
) -> None:
    async with await Store.open(server.url) as now:
        await bring(now, None)
        assert (await Admin(now).stats(TOPIC)).oldest_pending is None
        await pending(now, 3, priority=Priority.HIGH)
        clock.now = int(time.time() * 1000) - 100_000
        await pending(store, priority=Priority.LOW)
        age = (await Admin(now).stats(TOPIC)).oldest_pending
        assert age is not None
        assert 100 <= age < 160


async def test_a_delayed_message_is_old_since_it_was_due_and_a_requeued_one_since_its_requeue(
    store: Store, admin: Admin, clock: Clock
) -> None:
    await delayed(store, 60_000)
    clock.advance(70_000)
    await store.process_delay_message(TOPIC, count=1)
    assert (await admin.stats(TOPIC)).oldest_pending == 10
    (one,) = await take(store)
    await settle(store, one, State.DEAD)
    clock.advance(1000)
    assert await admin.requeue(TOPIC, one.id)
    clock.advance(6000)
    assert (await admin.stats(TOPIC)).oldest_pending == 6


@pytest.mark.corrupts
async def test_an_unreadable_pending_message_has_no_age(
    store: Store, admin: Admin, raw: Redis
) -> None:
    (id,) = await pending(store)
    await raw.hset(store.keys.of(TOPIC).payload, id, b"\xff")
    assert (await admin.stats(TOPIC)).oldest_pending is None


# get


async def test_a_pending_message_shows_all_that_was_produced(
    store: Store, admin: Admin, clock: Clock
) -> None:
    one = draft(
        {"order": 1},
        id="o-1",
        priority=Priority.HIGH,
        max_attempts=3,
        ttl=5000,
        headers={"trace": "t"},
    )
    await store.produce_normal_message(TOPIC, [one])
    view = await admin.get(TOPIC, "o-1")
    assert view is not None
    assert (view.id, view.topic, view.state) == ("o-1", TOPIC, State.PENDING)
    assert (view.payload, view.unreadable) == ({"order": 1}, "")
    assert view.raw == await store.views.record(TOPIC, "o-1")
    assert view.length == len(view.raw)
    assert (view.priority, view.attempts, view.crashes) == (Priority.HIGH, 0, 0)
    assert (view.max_attempts, view.headers, view.errors) == (3, {"trace": "t"}, ())
    assert (view.created_at, view.expires_at) == (clock.now / 1000, clock.now / 1000 + 5)
    assert (view.due, view.lease_deadline, view.archived_at, view.token) == (None,) * 4


@pytest.mark.parametrize("priority", Priority)
async def test_a_delayed_message_shows_when_it_is_due_and_why_it_failed(
    store: Store, admin: Admin, clock: Clock, priority: Priority
) -> None:
    (one,) = await leased(store, priority=priority)
    failed = message(one).crashed(msgspec.structs.replace(FAILURE, at=clock.now, worker="w1"))
    await store.retry_message(TOPIC, "w1", [RetryRequest(one, failed, 2500)])
    view = await admin.get(TOPIC, one.id)
    assert view is not None
    assert (view.state, view.due) == (State.DELAYED, clock.now / 1000 + 2.5)
    assert (view.attempts, view.crashes) == (1, 1)
    (failure,) = view.errors
    assert (failure.type, failure.text, failure.worker) == ("ValueError", "no", "w1")
    assert failure.at == clock.now / 1000


async def test_a_message_in_processing_shows_who_has_it_and_until_when(
    store: Store, admin: Admin, clock: Clock
) -> None:
    (one,) = await leased(store, worker="w7")
    view = await admin.get(TOPIC, one.id)
    assert view is not None
    assert (view.state, view.worker, view.token) == (State.PROCESSING, "w7", one.token)
    assert view.lease_deadline == (clock.now + LEASE) / 1000


async def test_a_dead_message_shows_its_reason_and_its_time(
    store: Store, admin: Admin, clock: Clock
) -> None:
    (one,) = await leased(store)
    final = msgspec.structs.replace(message(one).failed(FAILURE), reason="rejected: why")
    await store.move_to_dlq(TOPIC, "w1", one, final)
    view = await admin.get(TOPIC, one.id)
    assert view is not None
    assert (view.state, view.reason, view.attempts) == (State.DEAD, "rejected: why", 1)
    assert (view.archived_at, view.payload) == (clock.now / 1000, 0)


async def test_a_quarantined_message_shows_the_error_and_its_payload(
    store: Store, admin: Admin, clock: Clock
) -> None:
    (one,) = await leased(store)
    why = QuarantineReason.of(
        id=one.id, topic=TOPIC, error=TypeError("no order"), data=one.record, worker="w1"
    )
    await store.handle_parse_error(TOPIC, "w1", one, why)
    view = await admin.get(TOPIC, one.id)
    assert view is not None
    assert (view.state, view.archived_at) == (State.QUARANTINED, clock.now / 1000)
    assert (view.error_type, view.error, view.worker) == ("TypeError", "no order", "w1")
    assert (view.payload, view.raw, view.length) == (0, one.record, len(one.record))
    assert view.unreadable == ""


async def test_a_message_that_is_not_there_is_none(store: Store, admin: Admin) -> None:
    one = await bring(store, None)
    for id in (one.id, "unknown", "", "\udcff", "a b"):
        assert await admin.get(TOPIC, id) is None
    with pytest.raises(InvalidInput, match="is not a str"):
        await admin.get(TOPIC, 5)  # type: ignore[arg-type]  # the mistake under test


async def test_a_message_is_looked_for_in_every_topic(store: Store, admin: Admin) -> None:
    assert await admin.find("own") == []
    await bring(store, State.DEAD, id="own")
    for number in range(20):
        await store.produce_normal_message(f"topic-{number}", [draft(id=f"id-{number}")])
    await store.produce_normal_message("topic-7", [draft(id="own")])
    found = [(one.topic, one.state) for one in await admin.find("own")]
    assert found == [(TOPIC, State.DEAD), ("topic-7", State.PENDING)]
    assert await admin.find("unknown") == []


# count


async def test_messages_are_counted_between_two_times(
    store: Store, admin: Admin, clock: Clock
) -> None:
    await store.register_topics({TOPIC: 3})
    for part in PARTS:
        for _ in range(3):
            clock.advance(1000)
            await bring_in(store, part, State.DEAD)
        await bring_in(store, part, State.DELAYED)
    now = clock.now / 1000
    assert await admin.now() == now
    assert await admin.count(TOPIC, State.DEAD) == 9
    assert await admin.count(TOPIC, "dead", since=now - 2) == 3
    assert await admin.count(TOPIC, "dead", since=now - 4, until=now - 2) == 3
    assert await admin.count(TOPIC, "delayed", until=now + 0.5) == 2
    assert await admin.count(TOPIC, "pending", since=now) == 0
    with pytest.raises(InvalidInput, match=r"since=.*:05Z is after until=.*:01Z"):
        await admin.count(TOPIC, "dead", since=5, until=1)


# list


async def test_an_empty_state_is_one_empty_page(store: Store, admin: Admin) -> None:
    await bring(store, None)
    for state in State:
        page = await admin.list(TOPIC, state)
        assert (page.messages, page.cursor) == ([], None)


@pytest.mark.parametrize("limit", [1, 2, 3, 9, 1000])
async def test_pending_messages_are_listed_high_before_normal_before_low(
    store: Store, admin: Admin, limit: int
) -> None:
    low = await pending(store, 3, priority=Priority.LOW)
    normal = await pending(store, 4, priority=Priority.NORMAL)
    high = await pending(store, 2, priority=Priority.HIGH)
    assert await ids_of(admin, State.PENDING, limit) == [*high, *normal, *low]


@pytest.mark.parametrize("limit", [1, 2, 6, 1000])
async def test_delayed_messages_are_listed_by_due_time_whatever_their_priority(
    store: Store, admin: Admin, clock: Clock, limit: int
) -> None:
    due = {}
    for number, priority in enumerate([*Priority, *Priority]):
        delay = (number * 7 % 6 + 1) * 1000
        (id,) = await delayed(store, delay, priority=priority)
        due[id] = (clock.now + delay) / 1000
    assert await ids_of(admin, State.DELAYED, limit) == sorted(due, key=lambda id: due[id])
    page = await admin.list(TOPIC, "delayed")
    assert {one.id: one.due for one in page.messages} == due


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
async def test_messages_in_processing_are_listed_by_deadline(
    store: Store, admin: Admin, clock: Clock, limit: int
) -> None:
    ids = []
    for lease in (3000, 1000, 2000):
        (one,) = await leased(store, lease=lease)
        ids.append(one.id)
    assert await ids_of(admin, State.PROCESSING, limit) == [ids[1], ids[2], ids[0]]
    page = await admin.list(TOPIC, State.PROCESSING)
    assert [one.lease_deadline for one in page.messages] == [
        (clock.now + lease) / 1000 for lease in (1000, 2000, 3000)
    ]
    assert {one.worker for one in page.messages} == {"w1"}


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
@pytest.mark.parametrize("state", ARCHIVES)
async def test_archived_messages_are_listed_newest_first(
    store: Store, admin: Admin, clock: Clock, state: State, limit: int
) -> None:
    ids = await archived(store, state, 5, clock=clock)
    assert await ids_of(admin, state, limit) == ids[::-1]


async def test_many_and_long_messages_come_page_by_page_in_small_replies(
    store: Store, admin: Admin, raw: Redis
) -> None:
    ids = await pending(store, 1000)
    ids += await pending(store, 150)
    assert await ids_of(admin, State.PENDING) == ids
    long = [draft("x" * 1_000_000, priority=Priority.HIGH) for _ in range(12)]
    produced = await store.produce_normal_message(TOPIC, long)
    await raw.config_resetstat()
    page = await admin.list(TOPIC, State.PENDING, limit=8)
    assert [one.id for one in page.messages] == [id for id, _ in produced[:8]]
    assert (await raw.info("commandstats"))["cmdstat_hmget"]["calls"] == 2


async def test_a_page_ends_after_8_mib_and_no_reply_is_huge_even_behind_short_ones(
    store: Store, admin: Admin, raw: Redis
) -> None:
    ids = await pending(store, 150)
    long = [draft("x" * 1_000_000) for _ in range(20)]
    ids += [id for id, _ in await store.produce_normal_message(TOPIC, long)]
    await raw.config_resetstat()
    page = await admin.list(TOPIC, State.PENDING, limit=1000)
    assert [one.id for one in page.messages] == ids[:159]
    assert (page.cursor, page.looked) == ("0.159.0", 159)
    assert (await raw.info("commandstats"))["cmdstat_hmget"]["calls"] == 4  # 100, 54, 4, 1
    assert await ids_of(admin, State.PENDING) == ids


@pytest.mark.parametrize("limit", [0, -1, 1001, True, 1.5, "2"])
async def test_a_page_has_from_one_to_a_thousand_messages(
    store: Store, admin: Admin, limit: Any
) -> None:
    await pending(store)
    with pytest.raises(InvalidInput, match="is not between 1 and 1000"):
        await admin.list(TOPIC, State.PENDING, limit=limit)


@pytest.mark.parametrize(
    "cursor", ["", "x", "1", "1.2", "-1.0.0", "1.2.3.0", "1.2.3.4.5", "9" * 30, "1..2"]
)
async def test_a_cursor_that_no_page_gave_is_refused(
    store: Store, admin: Admin, cursor: str
) -> None:
    await pending(store)
    with pytest.raises(
        InvalidInput, match=r"is not the cursor of an earlier page|is not where a page"
    ):
        await admin.list(TOPIC, State.PENDING, cursor=cursor)


async def test_a_state_that_is_none_is_refused(store: Store, admin: Admin) -> None:
    await pending(store)
    with pytest.raises(InvalidInput, match="state='gone' is not one of pending, delayed"):
        await admin.list(TOPIC, "gone")


# hostile bytes

DEEP = b'{"v":1,"id":"%s","topic":"orders","payload":' + b"[" * 5000 + b"]" * 5000 + b"}"
HOSTILE = {
    "not UTF-8": b"\xff\xfe\x00",
    "empty": b"",
    "not JSON": b"{",
    "no record": b"[1, 2]",
    "a newer format": b'{"v": 99, "id": "x"}',
    "deep": b"[" * 100_000,
    "a deep payload": DEEP,
    "another's record": b'{"v":1,"id":"other","topic":"orders","payload":1}',
    "a payload that is no text": b'{"v":1,"id":"%s","topic":"orders","payload":"\\ud800"}',
}


@pytest.mark.corrupts
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("bytes_", HOSTILE.values(), ids=HOSTILE.keys())
async def test_unreadable_bytes_are_shown_as_such_in_every_state(
    store: Store, admin: Admin, raw: Redis, state: State, bytes_: bytes
) -> None:
    one = await bring(store, state)
    bytes_ = bytes_.replace(b"%s", one.id.encode())
    keys = store.keys.of(TOPIC)
    key = keys.archive_of(state)[1] if state.is_archive else keys.payload
    await raw.hset(key, one.id, bytes_)
    for view in (await admin.get(TOPIC, one.id), (await admin.list(TOPIC, state)).messages[0]):
        assert view is not None
        assert (view.id, view.state, view.payload, view.raw) == (one.id, state, None, bytes_)
        assert view.unreadable


@pytest.mark.corrupts
@pytest.mark.parametrize("bytes_", HOSTILE.values(), ids=HOSTILE.keys())
async def test_quarantined_bytes_are_shown_exactly(
    store: Store, admin: Admin, raw: Redis, bytes_: bytes
) -> None:
    (id,) = await pending(store)
    bytes_ = bytes_.replace(b"%s", id.encode())
    await raw.hset(store.keys.of(TOPIC).payload, id, bytes_)
    (one,) = await take(store)
    why = QuarantineReason.of(id=one.id, topic=TOPIC, error=ValueError("no"), data=bytes_)
    await store.handle_parse_error(TOPIC, "w1", one, why)
    view = await admin.get(TOPIC, id)
    assert view is not None
    assert (view.raw, view.length, view.error) == (bytes_, len(bytes_), "no")
    assert view.unreadable


@pytest.mark.corrupts
@pytest.mark.parametrize("lease", [b"", b"x", b"\xff:\xff", b"9" * 5000 + b":w", b":::"])
async def test_a_lease_that_is_none_does_not_hide_its_message(
    store: Store, admin: Admin, raw: Redis, lease: bytes
) -> None:
    (one,) = await leased(store)
    await raw.hset(store.keys.of(TOPIC).processing, one.id, lease)
    view = await admin.get(TOPIC, one.id)
    assert view is not None
    assert (view.state, view.token) == (State.PROCESSING, None)


@pytest.mark.corrupts
@pytest.mark.parametrize("state", State)
async def test_ids_of_any_bytes_and_times_without_end_are_shown(
    store: Store, admin: Admin, raw: Redis, state: State
) -> None:
    await pending(store)
    await take(store)
    await raw.flushall()
    await raw.hset(store.keys.topics, TOPIC, 1)
    keys, id = store.keys.of(TOPIC), b"\xff\x1b[2J \n"
    await raw.hset(keys.payload, id, b"x")
    if state is State.PENDING:
        await raw.rpush(keys.pending_low, id)
    elif state in (State.DELAYED, State.WAITING):
        await raw.zadd(keys.delay_tasks, {id: "inf"})
        if state is State.WAITING:
            await raw.zadd(keys.waiting, {id: "-inf"})
    elif state is State.PROCESSING:
        await raw.zadd(keys.expire_monitor, {id: "-inf"})
        await raw.hset(keys.processing, id, "1:w")
    else:
        index, contents = keys.archive_of(state)
        await raw.zadd(index, {id: "inf"})
        await raw.hset(contents, id, b"x")
    (view,) = (await admin.list(TOPIC, state)).messages
    assert view.id.encode("utf-8", "surrogateescape") == id
    assert (view.due, view.lease_deadline, view.archived_at) == (None, None, None)
    assert await admin.get(TOPIC, view.id)


# requeue and discard


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("state", ARCHIVES)
async def test_an_archived_message_goes_round_again_with_its_attempts_counted_anew(
    store: Store, admin: Admin, state: State, given: bool
) -> None:
    one = await bring(store, state, ttl=5000, priority=Priority.HIGH)
    assert await admin.requeue(TOPIC, one.id, state=state if given else None) is True
    assert await admin.requeue(TOPIC, one.id) is False
    view = await admin.get(TOPIC, one.id)
    assert view is not None
    assert (view.state, view.priority, view.attempts) == (State.PENDING, Priority.HIGH, 0)
    assert (view.expires_at, view.reason) == (None, "")
    assert len(view.errors) == (state is State.DEAD)


@pytest.mark.parametrize("state", ARCHIVES)
async def test_an_archived_message_is_discarded_for_good(
    store: Store, admin: Admin, state: State
) -> None:
    one = await bring(store, state)
    assert await admin.discard(TOPIC, one.id) is True
    assert await admin.discard(TOPIC, one.id) is False
    assert await admin.get(TOPIC, one.id) is None


async def test_the_other_archive_is_not_touched(store: Store, admin: Admin) -> None:
    one = await bring(store, State.DEAD)
    assert await admin.requeue(TOPIC, one.id, state="quarantined") is False
    assert await admin.discard(TOPIC, one.id, state="quarantined") is False
    assert (await admin.stats(TOPIC)).dead == 1


@pytest.mark.parametrize("state", ARCHIVES)
async def test_a_message_that_was_archived_since_it_was_seen_is_left_alone(
    store: Store, admin: Admin, raw: Redis, state: State
) -> None:
    one = await bring(store, state)
    view = await admin.get(TOPIC, one.id)
    assert view is not None
    assert view.archived_at is not None
    before, earlier = await snapshot(raw, TOPIC), view.archived_at - 0.001
    for act in (admin.requeue, admin.discard):
        with pytest.raises(InvalidInput, match="is no longer the one you saw"):
            await act(TOPIC, one.id, archived_at=earlier)
    assert await snapshot(raw, TOPIC) == before
    assert await admin.requeue(TOPIC, one.id, archived_at=view.archived_at)
    assert not await admin.discard(TOPIC, one.id, archived_at=view.archived_at)


@pytest.mark.parametrize("state", [State.PENDING, State.DELAYED, State.PROCESSING])
async def test_a_live_message_is_neither_requeued_nor_discarded(
    store: Store, admin: Admin, raw: Redis, state: State
) -> None:
    one = await bring(store, state)
    before = await snapshot(raw, TOPIC)
    assert await admin.requeue(TOPIC, one.id) is False
    assert await admin.discard(TOPIC, one.id) is False
    for act in (admin.requeue, admin.discard):
        with pytest.raises(InvalidInput, match="discard dead or quarantined messages"):
            await act(TOPIC, one.id, state=state)
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.corrupts
@pytest.mark.parametrize("state", ARCHIVES)
@pytest.mark.parametrize("bytes_", [HOSTILE["not UTF-8"], HOSTILE["another's record"]])
async def test_what_no_worker_could_read_is_not_requeued_but_can_be_discarded(
    store: Store, admin: Admin, raw: Redis, state: State, bytes_: bytes
) -> None:
    one = await bring(store, state)
    why = QuarantineReason.of(id=one.id, topic=TOPIC, error=ValueError("no"), data=bytes_)
    kept = bytes_ if state is State.DEAD else why.line() + b"\n" + bytes_
    await raw.hset(store.keys.of(TOPIC).archive_of(state)[1], one.id, kept)
    with pytest.raises(InvalidInput, match=r"cannot be requeued.* then discard it"):
        await admin.requeue(TOPIC, one.id)
    assert await admin.requeue_all(TOPIC, state) == 0
    assert await admin.discard(TOPIC, one.id) is True


@pytest.mark.parametrize("state", ARCHIVES)
async def test_all_are_requeued_in_the_order_of_their_archiving(
    store: Store, admin: Admin, clock: Clock, state: State
) -> None:
    ids = await archived(store, state, 250, clock=clock)
    assert await admin.requeue_all(TOPIC, state, limit=120) == 120
    assert await ids_of(admin, State.PENDING) == ids[:120]
    assert await admin.requeue_all(TOPIC, state) == 130
    assert await ids_of(admin, State.PENDING) == ids
    assert await admin.requeue_all(TOPIC, state) == 0


@pytest.mark.parametrize("state", ARCHIVES)
async def test_all_are_discarded_oldest_first(
    store: Store, admin: Admin, clock: Clock, state: State
) -> None:
    ids = await archived(store, state, 250, clock=clock)
    assert await admin.discard_all(TOPIC, state, limit=101) == 101
    assert await ids_of(admin, state) == ids[:100:-1]
    assert await admin.discard_all(TOPIC, state) == 149
    assert await admin.discard_all(TOPIC, state) == 0


@pytest.mark.corrupts
async def test_what_cannot_be_requeued_stays_and_does_not_stop_the_rest(
    store: Store, admin: Admin, raw: Redis, clock: Clock
) -> None:
    ids = await archived(store, State.DEAD, 250, clock=clock)
    stay = [*ids[:110], ids[120], ids[249]]
    for id in stay:
        await raw.hset(store.keys.of(TOPIC).dlq_payload, id, b"\xff")
    assert await admin.requeue_all(TOPIC, State.DEAD) == 138
    assert await ids_of(admin, State.DEAD) == stay[::-1]


async def test_requeueing_all_ends_although_the_messages_die_again_at_once(
    store: Store, admin: Admin, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await archived(store, State.DEAD, 3, clock=clock)
    requeue = store.requeue_message

    async def and_die(*args: Any, **named: Any) -> Any:
        answer = await requeue(*args, **named)
        clock.advance(1)
        (one,) = await take(store)
        await store.move_to_dlq(TOPIC, "w1", one, message(one).failed(FAILURE))
        return answer

    monkeypatch.setattr(store, "requeue_message", and_die)
    assert await admin.requeue_all(TOPIC, State.DEAD) == 3
    assert await ids_of(admin, State.DEAD) == ids[::-1]


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_below_one_is_refused(store: Store, admin: Admin, limit: int) -> None:
    await bring(store, State.DEAD)
    for act in (admin.requeue_all, admin.discard_all):
        with pytest.raises(InvalidInput, match=f"limit={limit} must be at least 1"):
            await act(TOPIC, State.DEAD, limit=limit)
        with pytest.raises(InvalidInput, match="discard dead or quarantined messages"):
            await act(TOPIC, State.PENDING)


# cancel, pause, resume


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        (State.PENDING, Cancelled.DONE),
        (State.DELAYED, Cancelled.DONE),
        (State.PROCESSING, Cancelled.PROCESSING),
        (State.DEAD, Cancelled.ABSENT),
        (State.QUARANTINED, Cancelled.ABSENT),
        (None, Cancelled.ABSENT),
    ],
)
async def test_only_a_message_that_nobody_has_begun_is_cancelled(
    store: Store, admin: Admin, state: State | None, answer: Cancelled
) -> None:
    one = await bring(store, state)
    before = await admin.get(TOPIC, one.id)
    cancelled = await admin.cancel(TOPIC, one.id)
    assert cancelled is answer
    assert bool(cancelled) is (answer is Cancelled.DONE)
    assert await admin.get(TOPIC, one.id) == (None if cancelled else before)
    assert await admin.cancel(TOPIC, "unknown") is Cancelled.ABSENT


async def test_a_paused_topic_gives_nothing_until_it_is_resumed(store: Store, admin: Admin) -> None:
    await pending(store)
    assert (await admin.pause(TOPIC), await admin.pause(TOPIC)) == (True, False)
    assert (await admin.stats(TOPIC)).paused is True
    assert await take(store) == []
    assert (await admin.resume(TOPIC), await admin.resume(TOPIC)) == (True, False)
    assert len(await take(store)) == 1


# audit and workers


@pytest.mark.corrupts
async def test_the_audit_names_what_is_wrong(store: Store, admin: Admin, raw: Redis) -> None:
    (id,) = await pending(store)
    assert await admin.audit(TOPIC) == []
    await raw.delete(store.keys.of(TOPIC).pending)
    (violation,) = await admin.audit(TOPIC)
    assert (violation.topic, violation.id) == (TOPIC, id)


async def test_the_workers_tell_of_themselves_and_a_silent_one_is_not_alive(
    store: Store, server: Server, clock: Clock
) -> None:
    async with await Store.open(server.url) as now:
        admin = Admin(now)
        assert await admin.workers() == []
        info = {
            "host": "h1",
            "pid": 42,
            "started": 1_700_000_000.5,
            "topics": ["a", "b"],
            "concurrency": 10,
            "running": 3,
            "held": 5,
        }
        await now.beat_worker("w1", msgspec.json.encode(info))
        clock.now = int(time.time() * 1000) - 61_000
        await store.beat_worker("w2", b"nonsense")
        first, second = await admin.workers()
    assert (first.name, first.host, first.pid, first.topics) == ("w1", "h1", 42, ("a", "b"))
    assert (first.concurrency, first.running, first.held) == (10, 3, 5)
    assert (first.started_at, first.alive) == (1_700_000_000.5, True)
    assert 0 <= first.seen_ago < 60
    assert (second.name, second.alive, second.topics, second.pid) == ("w2", False, (), None)
    assert 61 <= second.seen_ago < 120


@pytest.mark.parametrize("info", [{"topics": 5, "pid": "x", "started": [], "held": None}, {}])
async def test_a_worker_that_tells_nonsense_is_shown_all_the_same(
    store: Store, admin: Admin, info: dict[str, Any]
) -> None:
    await store.beat_worker("w1", msgspec.json.encode(info))
    (one,) = await admin.workers()
    assert (one.name, one.topics, one.pid, one.started_at, one.held) == ("w1", (), None, None, None)


# partitions


PARTS = partitions(TOPIC, 3)


async def split(store: Store, count: int = 3) -> Admin:
    """Let the topic have partitions."""
    await store.register_topics({TOPIC: count})
    return Admin(store)


async def pending_in(store: Store, part: str, count: int = 1, **fields: Any) -> list[str]:
    produced = await store.produce_normal_message(part, drafts(count, **fields))
    return [id for id, _ in produced]


async def leased_in(store: Store, part: str, lease: int = LEASE, **fields: Any) -> Leased:
    await pending_in(store, part, **fields)
    (one,) = (await store.dispatch_message(part, "w1", count=1, lease=lease)).messages
    return one


async def bring_in(store: Store, part: str, state: State, **fields: Any) -> str:
    """Bring a new message of a partition into a state; return its id."""
    one = await leased_in(store, part, **fields)
    if state is State.PENDING:
        await store.release_message(part, "w1", [HandedBack(one)])
    elif state is State.DELAYED:
        again = RetryRequest(one, message(one).failed(FAILURE), 1000)
        await store.retry_message(part, "w1", [again])
    elif state is State.WAITING:
        park = Park(message(one), ("approval",), None, "approval")
        await store.park_message(part, "w1", [(one, park)])
    elif state is State.DEAD:
        await store.move_to_dlq(part, "w1", one, message(one).failed(FAILURE))
    elif state is State.QUARANTINED:
        why = QuarantineReason.of(id=one.id, topic=TOPIC, error=ValueError("no"), data=one.record)
        await store.handle_parse_error(part, "w1", one, why)
    elif state is State.COMPLETED:
        await store.complete_with_result(part, "w1", [(one, kept())], ttl=RESULT_TTL)
    return one.id


async def test_the_stats_of_all_partitions_are_one(store: Store, admin: Admin, raw: Redis) -> None:
    await split(store)
    for number, part in enumerate(PARTS):
        for state in State:
            for _ in range(number + 1):
                await bring_in(store, part, state)
    await raw.rpush(store.keys.of(PARTS[1]).pending, "ghost")
    taken = (await store.dispatch_message(PARTS[1], "w1", count=3, lease=LEASE)).messages
    released = [HandedBack(one) for one in taken]
    await store.release_message(PARTS[1], "w1", released)
    await store.pause_topic(PARTS[2])
    stats = await admin.stats(TOPIC)
    assert stats == Stats(
        topic=TOPIC,
        pending=6,
        processing=6,
        delayed=6,
        waiting=6,
        dead=6,
        quarantined=6,
        oldest_pending=stats.oldest_pending,
        paused=True,
        dropped=1,
        partitions=3,
        dead_bytes=stats.dead_bytes,
        quarantined_bytes=stats.quarantined_bytes,
        dead_budget=3 * (256 * 1_048_576 // 3),
        quarantined_budget=3 * (64 * 1_048_576 // 3),
        completed=6,
        completed_bytes=stats.completed_bytes,
        completed_budget=3 * (64 * 1_048_576 // 3),
        totals=Totals(
            produced=42,
            dispatched=44,
            completed=6,
            retried=6,
            parked=6,
            died=6,
            quarantined=6,
            released=8,
        ),
    )
    assert await admin.topics() == [TOPIC]


async def test_the_oldest_message_of_all_partitions_counts(store: Store, clock: Clock) -> None:
    admin = await split(store)
    assert (await admin.stats(TOPIC)).oldest_pending is None
    await pending_in(store, PARTS[2])
    clock.advance(5000)
    await pending_in(store, PARTS[0])
    clock.advance(1000)
    assert (await admin.stats(TOPIC)).oldest_pending == 6


async def test_a_topic_that_grew_elsewhere_is_seen_whole_at_once(
    store: Store, admin: Admin, server: Server
) -> None:
    (first,) = await pending(store)
    assert (await admin.stats(TOPIC)).partitions == 1
    async with await Store.open(server.url) as other:
        await other.register_topics({TOPIC: 3})
        (last,) = await pending_in(other, PARTS[2])
    assert store.partitions[TOPIC] == 1
    assert (await admin.stats(TOPIC)).pending == 2
    assert await admin.get(TOPIC, last)
    assert await ids_of(admin, State.PENDING) == [first, last]


@pytest.mark.corrupts
@pytest.mark.parametrize("count", [b"", b"many", b"0", b"-3", b"1.5"])
async def test_a_number_of_partitions_that_is_none_is_taken_for_one(
    store: Store, admin: Admin, raw: Redis, count: bytes
) -> None:
    await pending(store)
    await raw.hset(store.keys.topics, TOPIC, count)
    assert (await admin.stats(TOPIC)).partitions == 1
    await raw.hset(store.keys.topics, TOPIC, 10**30)
    assert (await admin.stats(TOPIC)).partitions == 1024


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("part", PARTS)
async def test_a_message_is_found_in_whatever_partition_it_is(
    store: Store, part: str, state: State
) -> None:
    admin = await split(store)
    for id in (
        await bring_in(store, part, state),
        await bring_in(store, part, state, id="own"),  # by a key, or before the topic grew
        await bring_in(store, part, state, id=f"abc-1.{(PARTS.index(part) + 1) % 3}"),
        await bring_in(store, part, state, id="a123456789abc-1.999"),
    ):
        view = await admin.get(TOPIC, id)
        assert view is not None
        assert (view.id, view.topic, view.state) == (id, TOPIC, state)
        assert (view.partition, view.payload, view.unreadable) == (PARTS.index(part), 0, "")
    for id in ("unknown", "", "\udcff", "a b", "a123456789abc-1.1"):
        assert await admin.get(TOPIC, id) is None


async def test_an_id_leads_to_its_partition_without_a_search(store: Store, raw: Redis) -> None:
    admin = await split(store, 100)
    parts = partitions(TOPIC, 100)
    (made,) = await pending_in(store, parts[70])
    await pending_in(store, parts[number_for("own", 100)], id="own")
    await raw.config_resetstat()
    for id in (made, "own"):
        assert await admin.get(TOPIC, id)
        assert await admin.cancel(TOPIC, id)
    calls = (await raw.info("commandstats"))["cmdstat_hget"]["calls"]
    assert calls < 20


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
async def test_pending_messages_of_partitions_take_turns_level_by_level(
    store: Store, limit: int
) -> None:
    admin = await split(store)
    ids = {
        (part, priority): await pending_in(store, part, count, priority=priority)
        for part, count in zip(PARTS, (1, 3, 2), strict=True)
        for priority in (Priority.LOW, Priority.HIGH, Priority.NORMAL)
    }
    expected = [
        ids[part, priority][turn]
        for priority in (Priority.HIGH, Priority.NORMAL, Priority.LOW)
        for turn in range(3)
        for part in PARTS
        if turn < len(ids[part, priority])
    ]
    assert await ids_of(admin, State.PENDING, limit) == expected


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
async def test_delayed_messages_of_partitions_are_listed_by_due_time(
    store: Store, limit: int
) -> None:
    admin = await split(store)
    due = {}
    for number in range(12):
        delay = (number * 5 % 12 + 1) * 1000
        priority = [*Priority][number % 2]
        (one,) = await store.produce_delay_message(
            PARTS[number % 3], drafts(1, delay=delay, priority=priority)
        )
        due[one.id] = delay
    assert await ids_of(admin, State.DELAYED, limit) == sorted(due, key=lambda id: due[id])


@pytest.mark.parametrize("limit", [1, 2, 4, 1000])
async def test_messages_in_processing_of_partitions_are_listed_by_deadline(
    store: Store, limit: int
) -> None:
    admin = await split(store)
    ids = {}
    for number, lease in enumerate((3000, 1000, 5000, 4000, 2000)):
        ids[lease] = (await leased_in(store, PARTS[number % 3], lease=lease)).id
    assert await ids_of(admin, State.PROCESSING, limit) == [ids[lease] for lease in sorted(ids)]
    page = await admin.list(TOPIC, State.PROCESSING)
    assert [one.partition for one in page.messages] == [1, 1, 0, 0, 2]
    assert {one.topic for one in page.messages} == {TOPIC}


@pytest.mark.parametrize("limit", [1, 2, 4, 1000])
@pytest.mark.parametrize("state", ARCHIVES)
async def test_archived_messages_of_partitions_are_listed_newest_first(
    store: Store, clock: Clock, state: State, limit: int
) -> None:
    admin = await split(store)
    ids = []
    for number in (0, 2, 1, 1, 2, 0, 2):
        clock.advance(1)
        ids.append(await bring_in(store, PARTS[number], state))
    assert await ids_of(admin, state, limit) == ids[::-1]


async def test_a_page_reads_the_contents_of_its_own_messages_alone(
    store: Store, raw: Redis
) -> None:
    admin = await split(store)
    for part in PARTS:
        await pending_in(store, part, 50)
    await raw.config_resetstat()
    page = await admin.list(TOPIC, State.PENDING, limit=4)
    assert [one.partition for one in page.messages] == [0, 1, 2, 0]
    assert page.cursor == "0.2.0_0.1.0_0.1.0"
    stats = await raw.info("commandstats")
    assert stats["cmdstat_hmget"]["calls"] == 3
    assert stats["cmdstat_lrange"]["calls"] == 6  # in each the high ones, and enough normal ones


async def test_a_cursor_goes_on_when_the_topic_has_grown(store: Store) -> None:
    admin = await split(store, 2)
    first = await pending_in(store, PARTS[0], 2)
    second = await pending_in(store, PARTS[1], 2)
    page = await admin.list(TOPIC, State.PENDING, limit=2)
    assert [one.id for one in page.messages] == [first[0], second[0]]
    await admin.grow(TOPIC, 3)
    third = await pending_in(store, PARTS[2], 2)
    page = await admin.list(TOPIC, State.PENDING, cursor=page.cursor)
    assert [one.id for one in page.messages] == [third[0], first[1], second[1], third[1]]
    assert page.cursor is None


async def test_a_cursor_leaves_out_partitions_of_which_nothing_was_shown(store: Store) -> None:
    admin = await split(store, 1000)
    ids = await pending_in(store, f"{TOPIC}/2", 3)
    page = await admin.list(TOPIC, State.PENDING, limit=2)
    assert page.cursor == "__0.2.0"
    page = await admin.list(TOPIC, State.PENDING, cursor=page.cursor)
    assert [one.id for one in page.messages] == ids[2:]


@pytest.mark.parametrize(
    "cursor",
    [
        *("_", "__", "0.0.0", "1.0.0_", "1.0.0_0.0.0", "1_1", "1.0.0_1", "___1.0.0", "01.0.0"),
        *("+1.0.0", "1.0.0 _1.0.0", f"{2**52}.0.0", "1.0.0_x.0.0", "\u0661.0.0"),
    ],
)
async def test_a_cursor_that_no_page_of_partitions_gave_is_refused(
    store: Store, cursor: str
) -> None:
    admin = await split(store)
    with pytest.raises(InvalidInput, match="is not the cursor of an earlier page"):
        await admin.list(TOPIC, State.PENDING, cursor=cursor)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("state", ARCHIVES)
async def test_archived_messages_are_requeued_and_discarded_in_their_partition(
    store: Store, part: str, state: State
) -> None:
    admin = await split(store)
    again = await bring_in(store, part, state, id="again")
    gone = await bring_in(store, part, state)
    assert await admin.requeue(TOPIC, again)
    assert not await admin.requeue(TOPIC, again)
    view = await admin.get(TOPIC, again)
    assert view is not None
    assert (view.state, view.partition) == (State.PENDING, PARTS.index(part))
    assert await admin.discard(TOPIC, gone)
    assert not await admin.discard(TOPIC, gone)
    counts = await store.views.counts(part)
    assert (counts.pending, counts.total) == (1, 1)


@pytest.mark.parametrize("part", PARTS)
async def test_a_message_is_cancelled_in_its_partition_and_no_other_is_written_to(
    store: Store, raw: Redis, part: str
) -> None:
    admin = await split(store)
    await pending_in(store, part, id="own")
    keys = {key async for key in raw.scan_iter() if b"{%b}" % part.encode() not in key}
    assert await admin.cancel(TOPIC, "own") is Cancelled.DONE
    assert await admin.cancel(TOPIC, "own") is Cancelled.ABSENT
    one = await leased_in(store, part)
    assert await admin.cancel(TOPIC, one.id) is Cancelled.PROCESSING
    assert {key async for key in raw.scan_iter() if b"{%b}" % part.encode() not in key} == keys


async def test_a_pause_is_one_of_all_partitions(store: Store) -> None:
    admin = await split(store)
    for part in PARTS:
        await pending_in(store, part)
    await store.pause_topic(PARTS[1])
    assert (await admin.pause(TOPIC), await admin.pause(TOPIC)) == (True, False)
    for part in PARTS:
        assert (await store.dispatch_message(part, "w1", count=1, lease=LEASE)).messages == []
    await store.resume_topic(PARTS[0])
    assert (await admin.stats(TOPIC)).paused
    assert (await admin.resume(TOPIC), await admin.resume(TOPIC)) == (True, False)
    assert not (await admin.stats(TOPIC)).paused


@pytest.mark.parametrize("state", ARCHIVES)
async def test_a_limit_is_one_over_all_partitions(store: Store, clock: Clock, state: State) -> None:
    admin = await split(store)
    ids: dict[str, list[str]] = {part: [] for part in PARTS}
    for part in PARTS * 4:
        clock.advance(1)
        ids[part].append(await bring_in(store, part, state))
    assert await admin.requeue_all(TOPIC, state, limit=6) == 6
    left = await ids_of(admin, state)
    assert set(left) == {*ids[PARTS[1]][2:], *ids[PARTS[2]]}
    assert await admin.discard_all(TOPIC, state, limit=3) == 3
    assert set(await ids_of(admin, state)) == {*ids[PARTS[2]][1:]}
    assert await admin.requeue_all(TOPIC, state) == 3
    assert await admin.discard_all(TOPIC, state) == 0
    assert (await admin.stats(TOPIC)).pending == 9


@pytest.mark.corrupts
async def test_the_audit_says_in_which_partition_something_is_wrong(
    store: Store, raw: Redis
) -> None:
    admin = await split(store)
    for part in PARTS:
        await pending_in(store, part)
    assert await admin.audit(TOPIC) == []
    (id,) = await pending_in(store, PARTS[2])
    await raw.rpop(store.keys.of(PARTS[2]).pending, 2)
    violations = await admin.audit(TOPIC)
    assert len(violations) == 2
    assert {one.topic for one in violations} == {PARTS[2]}
    assert id in {one.id for one in violations}


@pytest.mark.corrupts
async def test_what_is_wrong_with_one_partition_is_told_as_it_is(store: Store, raw: Redis) -> None:
    admin = await split(store, 50)
    await raw.set(store.keys.of(f"{TOPIC}/49").pending, "x")
    with pytest.raises(WrongType, match=r"\{orders/49\}:pending holds a string, not a list"):
        await admin.stats(TOPIC)


# grow


async def test_a_topic_grows_and_never_shrinks(store: Store, admin: Admin) -> None:
    await pending(store)
    assert await admin.grow(TOPIC, 4) == 4
    assert await admin.grow(TOPIC, 4) == 4
    assert store.partitions[TOPIC] == 4
    with pytest.raises(InvalidInput, match="has 4 partitions and cannot have 3"):
        await admin.grow(TOPIC, 3)
    assert (await admin.stats(TOPIC)).partitions == 4


@pytest.mark.parametrize("count", [0, -1, 1025, True, 1.5, "2"])
async def test_a_number_of_partitions_out_of_range_is_refused(
    store: Store, admin: Admin, count: Any
) -> None:
    await pending(store)
    with pytest.raises(InvalidInput, match="is not a whole number from 1 to 1024"):
        await admin.grow(TOPIC, count)


async def test_a_topic_that_nobody_produced_to_does_not_grow(store: Store, admin: Admin) -> None:
    with pytest.raises(InvalidInput, match="no topic 'orderz'"):
        await admin.grow("orderz", 2)
    assert await admin.topics() == []


async def test_a_paused_topic_that_grows_stays_paused(store: Store, admin: Admin) -> None:
    await pending(store)
    await admin.pause(TOPIC)
    await admin.grow(TOPIC, 3)
    for part in PARTS:
        assert (await store.views.counts(part)).paused
    assert await admin.resume(TOPIC)
    await admin.grow(TOPIC, 4)
    assert not (await admin.stats(TOPIC)).paused


async def test_a_grow_that_died_leaves_no_partition_paused(
    store: Store, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(topics: Any) -> None:
        raise asyncio.CancelledError

    await pending(store)
    await admin.pause(TOPIC)
    with monkeypatch.context() as dying:
        dying.setattr(store, "register_topics", die)
        with pytest.raises(asyncio.CancelledError):
            await admin.grow(TOPIC, 3)
    await admin.resume(TOPIC)
    await admin.grow(TOPIC, 3)
    assert not (await admin.stats(TOPIC)).paused


@pytest.mark.parametrize("paused", [True, False])
async def test_who_pauses_or_resumes_while_the_topic_grows_means_the_new_partitions_too(
    store: Store, admin: Admin, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    await pending(store)
    if not paused:
        await admin.pause(TOPIC)
    register = store.register_topics

    async def decide_first(topics: Any) -> None:
        await (admin.pause(TOPIC) if paused else admin.resume(TOPIC))
        await register(topics)

    with monkeypatch.context() as racing:
        racing.setattr(store, "register_topics", decide_first)
        await admin.grow(TOPIC, 3)
    assert [(await store.views.counts(part)).paused for part in PARTS] == [paused] * 3


async def test_a_pause_reaches_the_partitions_that_come_meanwhile(
    store: Store, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pending(store)
    pause = store.pause_topic

    async def grow_first(part: str, **by: Any) -> bool:
        await store.register_topics({TOPIC: 3})
        return await pause(part, **by)

    monkeypatch.setattr(store, "pause_topic", grow_first)
    assert await admin.pause(TOPIC)
    assert [(await store.views.counts(part)).paused for part in PARTS] == [True] * 3
