"""An archived message goes round again with another payload, whatever is left of its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.admin import Admin
from mx_rmq.core.errors import InvalidInput, PayloadTooLarge
from mx_rmq.core.message import State
from mx_rmq.settings import Limits
from mx_rmq.store.quarantine import QuarantineReason
from mx_rmq.store.store import Store
from tests.lab.archives import ARCHIVES
from tests.lab.messages import TOPIC, Priority, bring, pending, take
from tests.lab.servers import Kind
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.clock import Clock
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1])

FIELDS: dict[str, Any] = {"priority": Priority.HIGH, "headers": {"trace": "t"}, "max_attempts": 3}


@pytest.fixture
def admin(store: Store) -> Admin:
    return Admin(store)


async def quarantine(store: Store, raw: Redis, data: bytes, **fields: Any) -> str:
    """Let a message be set aside because of its bytes."""
    (id,) = await pending(store, **fields)
    data = data.replace(b"%s", id.encode())
    await raw.hset(store.keys.of(TOPIC).payload, id, data)
    (one,) = await take(store)
    why = QuarantineReason.of(id=id, topic=TOPIC, error=TypeError("no"), data=data, worker="w7")
    await store.handle_parse_error(TOPIC, "w1", one, why)
    return id


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("state", ARCHIVES)
async def test_a_message_goes_round_again_with_another_payload_and_all_the_rest(
    store: Store, admin: Admin, clock: Clock, state: State, given: bool
) -> None:
    one = await bring(store, state, **FIELDS)
    created = clock.now / 1000
    clock.advance(5000)
    new = {"order": [1, "ü", None]}
    assert await admin.edit(TOPIC, one.id, new, state=state if given else None) is True
    assert await admin.edit(TOPIC, one.id, new) is False
    view = await admin.get(TOPIC, one.id)
    assert view is not None
    assert (view.state, view.payload, view.unreadable) == (State.PENDING, new, "")
    assert (view.priority, view.headers, view.max_attempts) == (Priority.HIGH, {"trace": "t"}, 3)
    assert (view.attempts, view.reason, view.created_at) == (0, "", created)
    assert len(view.errors) == (state is State.DEAD)


@pytest.mark.parametrize("state", [State.PENDING, State.DELAYED, State.PROCESSING])
async def test_a_live_message_is_not_edited(
    store: Store, admin: Admin, raw: Redis, state: State
) -> None:
    one = await bring(store, state)
    before = await snapshot(raw, TOPIC)
    assert await admin.edit(TOPIC, one.id, 5) is False
    with pytest.raises(InvalidInput, match="edit or discard dead or quarantined messages"):
        await admin.edit(TOPIC, one.id, 5, state=state)
    assert await snapshot(raw, TOPIC) == before


async def test_bytes_that_are_no_record_become_one_of_what_is_known(
    store: Store, admin: Admin, raw: Redis, clock: Clock
) -> None:
    id = await quarantine(store, raw, b"\xff\x00 no record")
    assert await admin.edit(TOPIC, id, {"mended": True}) is True
    view = await admin.get(TOPIC, id)
    assert view is not None
    assert (view.id, view.topic, view.state) == (id, TOPIC, State.PENDING)
    assert (view.payload, view.unreadable, view.priority) == ({"mended": True}, "", "normal")
    assert view.created_at == clock.now / 1000
    (failure,) = view.errors
    assert (failure.type, failure.text, failure.worker) == ("TypeError", "no", "w7")
    (one,) = await take(store)
    assert one.id == id


async def test_what_can_be_read_of_a_broken_record_is_kept(
    store: Store, admin: Admin, raw: Redis
) -> None:
    broken = (
        b'{"v": "one", "id": "%s", "topic": "orders", "payload": 1, "created_at": 1700000000000,'
        b' "priority": "low", "headers": {"trace": "t"}, "max_attempts": "many",'
        b' "errors": [{"type": "KeyError", "text": "x", "at": 5}]}'
    )
    id = await quarantine(store, raw, broken)
    assert await admin.edit(TOPIC, id, 2) is True
    view = await admin.get(TOPIC, id)
    assert view is not None
    assert (view.payload, view.priority, view.headers) == (2, Priority.LOW, {"trace": "t"})
    assert (view.created_at, view.max_attempts) == (1_700_000_000, None)
    assert [one.type for one in view.errors] == ["KeyError", "TypeError"]


@pytest.mark.corrupts
@pytest.mark.parametrize("state", ARCHIVES)
@pytest.mark.parametrize(
    "kept",
    [b"", b"\xff", b"[" * 100_000, b'{"v":1,"id":"other","topic":"orders","payload":1}', b"5\nx"],
)
async def test_whatever_stands_in_an_archive_can_be_edited(
    store: Store, admin: Admin, raw: Redis, state: State, kept: bytes
) -> None:
    one = await bring(store, state)
    await raw.hset(store.keys.of(TOPIC).archive_of(state)[1], one.id, kept)
    assert await admin.edit(TOPIC, one.id, "new") is True
    view = await admin.get(TOPIC, one.id)
    assert view is not None
    assert (view.state, view.payload, view.unreadable) == (State.PENDING, "new", "")


@pytest.mark.corrupts
async def test_an_id_that_no_record_can_hold_is_refused(
    store: Store, admin: Admin, raw: Redis
) -> None:
    await bring(store, State.DEAD)
    keys = store.keys.of(TOPIC)
    await raw.zadd(keys.dlq, {b"\xff": 5})
    await raw.hset(keys.dlq_payload, b"\xff", b"x")
    with pytest.raises(InvalidInput, match="cannot be encoded as JSON"):
        await admin.edit(TOPIC, "\udcff", 1)


async def test_a_payload_that_produce_would_refuse_is_refused(
    store: Store, server: Server, raw: Redis
) -> None:
    one = await bring(store, State.DEAD)
    before = await snapshot(raw, TOPIC)
    async with await Store.open(server.url, limits=Limits(max_payload=10)) as strict:
        admin = Admin(strict)
        with pytest.raises(PayloadTooLarge, match="the payload is 13 bytes; the limit is 10"):
            await admin.edit(TOPIC, one.id, "x" * 11)
        with pytest.raises(
            InvalidInput, match="a payload of type object cannot be encoded as JSON"
        ):
            await admin.edit(TOPIC, one.id, object())
        with pytest.raises(InvalidInput, match="nan is not a JSON number"):
            await admin.edit(TOPIC, one.id, float("nan"))
    assert await snapshot(raw, TOPIC) == before
