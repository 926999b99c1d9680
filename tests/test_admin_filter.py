"""Lists with a filter: what it means, and that a call looks at a bounded number of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mx_rmq.admin import Admin, Filter
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import Failure, State
from mx_rmq.core.partition import partitions
from tests.lab.archives import ARCHIVES, archived, corpse, fill
from tests.lab.messages import (
    TOPIC,
    Priority,
    bring,
    delayed,
    draft,
    drafts,
    leased,
    message,
    pending,
    settle,
    take,
)
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

pytestmark = pytest.mark.parametrize("kind", [Kind.REDIS_6_2])


@pytest.fixture
def admin(store: Store) -> Admin:
    return Admin(store)


async def found(admin: Admin, state: State, limit: int = 1000, **wanted: Any) -> list[str]:
    """Turn page after page; return the ids in the order in which they came."""
    ids: list[str] = []
    cursor = None
    while True:
        page = await admin.list(TOPIC, state, filter=Filter(**wanted), limit=limit, cursor=cursor)
        assert len(page.messages) <= limit
        assert page.looked >= len(page.messages)
        assert page.looked or page.cursor is None  # else nobody would come to the end
        ids += [one.id for one in page.messages]
        cursor = page.cursor
        if cursor is None:
            return ids


async def die(store: Store, id: str, error: str, reason: str) -> None:
    (one,) = await leased(store, id=id)
    failed = message(one).failed(Failure(type="TimeoutError", text="first", at=1))
    failed = failed.failed(Failure(type=error, text="said nothing of it", at=2))
    await store.move_to_dlq(TOPIC, "w1", one, msgspec.structs.replace(failed, reason=reason))


async def test_the_last_error_or_the_reason_is_asked_for(store: Store, admin: Admin) -> None:
    await die(store, "a", "ValueError", "failed 5 times")
    await die(store, "b", "KeyError", "rejected: no such order")
    await die(store, "c", "shop.Rejected", "")
    assert await found(admin, State.DEAD, error="valueerror") == ["a"]
    assert await found(admin, State.DEAD, error="Reject") == ["c", "b"]
    assert await found(admin, State.DEAD, error="TimeoutError") == []  # not the last one
    assert await found(admin, State.DEAD, error="said nothing") == []


async def test_a_quarantined_message_is_found_by_what_was_wrong_with_it(
    store: Store, admin: Admin
) -> None:
    one = await bring(store, State.QUARANTINED, id="q")
    assert await found(admin, State.QUARANTINED, error="valueerr") == [one.id]
    assert await found(admin, State.QUARANTINED, error="no") == [one.id]
    assert await found(admin, State.QUARANTINED, error="KeyError") == []


@pytest.mark.parametrize("state", [one for one in State if one is not State.COMPLETED])
async def test_text_is_looked_for_in_ids_and_payloads_whatever_the_case(
    store: Store, admin: Admin, state: State
) -> None:
    payloads = {"Order-7": "x", "b": {"Name": "Ünder 7, the ORDER-7"}, "c": ["y"]}
    made = [draft(payload, id=id, headers={"h": "order-7"}) for id, payload in payloads.items()]
    await store.produce_normal_message(TOPIC, made)
    for one in await take(store, 3):
        if state is not State.PROCESSING:
            await settle(store, one, state)
    assert set(await found(admin, state, text="oRDER-7")) == {"Order-7", "b"}
    assert await found(admin, state, text="üNDER") == ["b"]
    assert await found(admin, state, text="order-8") == []


@pytest.mark.corrupts
async def test_bytes_that_nobody_can_read_are_searched_as_they_are(
    store: Store, admin: Admin, raw: Redis
) -> None:
    ids = await archived(store, State.DEAD, 2)
    await raw.hset(store.keys.of(TOPIC).dlq_payload, ids[0], b"\xff{needle")
    assert await found(admin, State.DEAD, text="NEEDLE") == [ids[0]]
    assert await found(admin, State.DEAD, error="needle") == []
    other = await bring(store, State.QUARANTINED)
    await raw.hset(store.keys.of(TOPIC).error_parse_payload, other.id, b"no line, needle")
    assert await found(admin, State.QUARANTINED, text="needle") == [other.id]


@pytest.mark.parametrize("limit", [1, 3, 1000])
@pytest.mark.parametrize("state", ARCHIVES)
async def test_archived_messages_are_found_by_the_time_of_their_archiving(
    store: Store, admin: Admin, clock: Clock, raw: Redis, state: State, limit: int
) -> None:
    ids = await archived(store, state, 10, clock=clock)
    last = clock.now / 1000
    assert await found(admin, state, limit, since=last - 0.002) == ids[:6:-1]
    assert await found(admin, state, limit, until=last - 0.007) == ids[2::-1]
    between = {"since": last - 0.006, "until": last - 0.004}
    assert await found(admin, state, limit, **between) == ids[5:2:-1]
    assert await found(admin, state, limit, **between, text=ids[4]) == [ids[4]]
    assert await found(admin, state, limit, since=last + 1) == []
    await raw.config_resetstat()
    page = await admin.list(TOPIC, state, filter=Filter(until=last - 0.008))
    assert page.looked == 2  # the others were passed unseen


async def test_each_state_has_its_own_time(store: Store, admin: Admin, clock: Clock) -> None:
    start = clock.now / 1000
    old = await pending(store, 2)
    clock.advance(5000)
    new = await pending(store, 1)
    assert await found(admin, State.PENDING, since=start + 1) == new
    assert await found(admin, State.PENDING, until=start + 1) == old
    later = [
        (await delayed(store, wait, priority=priority))[0]
        for wait, priority in ((1000, Priority.LOW), (3000, Priority.HIGH), (2000, Priority.NORMAL))
    ]
    due = clock.now / 1000
    assert await found(admin, State.DELAYED, until=due + 2) == [later[0], later[2]]
    assert await found(admin, State.DELAYED, since=due + 2) == [later[2], later[1]]
    (held,) = await take(store, 1, lease=7000)
    assert await found(admin, State.PROCESSING, since=due + 7) == [held.id]
    assert await found(admin, State.PROCESSING, until=due + 6) == []


async def test_a_call_looks_at_a_bounded_number_and_the_next_one_goes_on_exactly_there(
    store: Store, admin: Admin, raw: Redis, clock: Clock
) -> None:
    every = [corpse(number, payload="x" if number % 3000 else "rare") for number in range(12_001)]
    await fill(store, raw, every, at=clock.now)
    await raw.config_resetstat()
    wanted = Filter(text="rare")
    page = await admin.list(TOPIC, State.DEAD, filter=wanted, limit=10)
    assert 5000 <= page.looked < 5300
    assert [one.id for one in page.messages] == ["d-012000", "d-009000"]
    assert page.cursor == str(page.looked)
    asked = await raw.info("commandstats")
    assert asked["cmdstat_hmget"]["calls"] < 100
    assert await found(admin, State.DEAD, 10, text="rare") == [
        f"d-{number:06}" for number in (12_000, 9000, 6000, 3000, 0)
    ]
    assert await found(admin, State.DEAD, 1, text="rare") == await found(
        admin, State.DEAD, 1000, text="rare"
    )
    assert await found(admin, State.DEAD, 1000, error="nothing of this") == []


async def test_a_caller_says_at_how_many_to_look(
    store: Store, admin: Admin, raw: Redis, clock: Clock
) -> None:
    every = [corpse(number) for number in range(700)]
    await fill(store, raw, every, at=clock.now)
    nothing = Filter(text="nowhere")
    for look in (1, 249, 250, 251, 700, 10_000):
        page = await admin.list(TOPIC, State.DEAD, filter=nothing, look=look)
        assert page.looked == min(look, 700)
        assert (page.cursor is None) == (look >= 700)
    for wrong in (0, -1, True, 1.5, None):
        with pytest.raises(InvalidInput, match=r"look=.* must be a whole number of at least 1"):
            await admin.list(TOPIC, State.DEAD, filter=nothing, look=wrong)  # type: ignore[arg-type]


async def test_a_call_reads_a_bounded_number_of_bytes(
    store: Store, admin: Admin, raw: Redis, clock: Clock
) -> None:
    every = [corpse(number, payload="x" * 500_000) for number in range(30)]
    await fill(store, raw, every, at=clock.now)
    page = await admin.list(TOPIC, State.DEAD, filter=Filter(text="nowhere"))
    assert 8 <= page.looked <= 16
    assert page.cursor is not None
    assert await found(admin, State.DEAD, text="d-0000") == [one.id for one in every[::-1]]


@pytest.mark.parametrize("limit", [1, 7, 1000])
async def test_pages_with_a_filter_go_through_all_partitions_in_one_order(
    store: Store, admin: Admin, limit: int
) -> None:
    await store.register_topics({TOPIC: 3})
    ids = []
    for number in range(60):
        part = partitions(TOPIC, 3)[number * number % 3]
        priority = [*Priority][number % 3]
        one = draft({"even": number % 2 == 0}, delay=number * 7 % 60 + 1, priority=priority)
        ((id, _),) = await store.produce_delay_message(part, [one])
        ids.append((number * 7 % 60, number, id))
    even = [id for _, number, id in sorted(ids) if number % 2 == 0]
    assert await found(admin, State.DELAYED, limit, text='"even":true') == even


async def test_a_message_that_is_gone_meanwhile_is_passed(
    store: Store, admin: Admin, raw: Redis
) -> None:
    ids = await pending(store, 3)
    wanted = Filter(text="-")
    page = await admin.list(TOPIC, State.PENDING, filter=wanted, limit=1)
    assert [one.id for one in page.messages] == ids[:1]
    await store.cancel_message(TOPIC, ids[0])
    page = await admin.list(TOPIC, State.PENDING, filter=wanted, cursor=page.cursor)
    assert [one.id for one in page.messages] == ids[2:]  # a cursor is a position


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"error": 5}, "error=5 is not a string"),
        ({"text": b"x"}, "text=b'x' is not a string"),
        ({"error": ""}, "error='' is empty: omit it, or pass the text to find"),
        ({"text": ""}, "text='' is empty"),
        ({"since": "2h"}, "since='2h' is not a time in seconds since 1970"),
        ({"until": float("nan")}, "until=nan is not a time in seconds since 1970"),
        ({"until": True}, "until=True is not a time"),
        ({"since": 1e300}, "since=1e\\+300 is not a time"),
        ({"since": 2, "until": 1}, "since=1970-01-01 00:00:02Z is after until=1970-"),
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused(
    store: Store, wanted: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidInput, match=expected):
        Filter(**wanted)


async def test_a_filter_without_wishes_is_none(store: Store, admin: Admin) -> None:
    assert not Filter()
    assert Filter(since=0)
    ids = [id for id, _ in await store.produce_normal_message(TOPIC, drafts(3))]
    page = await admin.list(TOPIC, State.PENDING, filter=Filter(), limit=2)
    assert ([one.id for one in page.messages], page.looked) == (ids[:2], 2)
