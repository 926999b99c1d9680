"""note_record: processing -> processing"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from mx_rmq.core import codec, steps
from mx_rmq.core.errors import InvalidInput
from mx_rmq.store.results import Settled, Signal
from tests.lab.calls import resend_next
from tests.lab.messages import LEASE, TOPIC, draft, leased, message, renamed, take
from tests.lab.snapshot import snapshot
from tests.store.contracts import ONE_SERVER, HolderContract, foreign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from mx_rmq.core.message import Message
    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock


def noted(one: Leased, value: int = 1) -> Message:
    """Return the message with a finished step."""
    done = steps.Steps(done={"charge": msgspec.Raw(b"%d" % value)})
    return steps.write(renamed(codec.decode(one.record), one.id), done)


async def note(store: Store, *taken: Leased, worker: str = "w1", value: int = 1) -> list[Settled]:
    notes = [(one, noted(one, value), "charge") for one in taken]
    return await store.note_record(TOPIC, worker, notes)


class TestNoteRecord(HolderContract):
    name = "note_record"

    async def settle(
        self, store: Store, taken: Sequence[Leased], *, worker: str = "w1"
    ) -> list[Settled]:
        return await note(store, *taken, worker=worker)

    async def test_a_message_with_an_id_that_is_not_utf8_can_be_settled(
        self, store: Store, raw: Redis
    ) -> None:
        """It has no steps, for it is no message: quarantine is its place."""
        one = await foreign(store, raw, b"\xff\x00\xfe")
        with pytest.raises(InvalidInput, match="cannot be encoded as JSON"):
            await self.settle(store, [one])


async def test_only_the_record_changes(store: Store, raw: Redis) -> None:
    one, other, third = await leased(store, 3)
    before = await snapshot(raw, TOPIC)
    stale = other._replace(token=other.token - 1)
    assert await note(store, one, stale, third) == [Settled.DONE, Settled.LOST, Settled.DONE]
    new = {one.id: codec.encode(noted(one)), third.id: codec.encode(noted(third))}
    assert await snapshot(raw, TOPIC) == replace(before, records=before.records | new)


async def test_a_noted_step_is_there_at_the_next_attempt(store: Store, clock: Clock) -> None:
    (one,) = await leased(store)
    assert await note(store, one, value=7) == [Settled.DONE]
    clock.advance(LEASE)
    late = await store.handle_timeout_message(TOPIC, "monitor", count=1, recovery=1)
    assert steps.read(codec.decode(late.messages[0].record)).done["charge"] == msgspec.Raw(b"7")


async def test_the_lease_is_as_long_as_before(store: Store, raw: Redis, clock: Clock) -> None:
    (one,) = await leased(store)
    before = (await snapshot(raw, TOPIC)).deadlines
    clock.advance(5)
    await note(store, one)
    assert (await snapshot(raw, TOPIC)).deadlines == before
    clock.advance(LEASE)
    await store.handle_timeout_message(TOPIC, "monitor", count=1, recovery=1)
    assert await note(store, one, value=2) == [Settled.LOST]


async def test_a_repeated_call_says_so_and_overwrites_nothing(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)

    async def go_on() -> None:
        assert await note(store, one, value=2) == [Settled.DONE]

    resend_next(store, raw, between=go_on)
    assert await note(store, one, value=1) == [Settled.REPEATED]
    assert (await snapshot(raw, TOPIC)).records == {one.id: codec.encode(noted(one, 2))}


async def test_a_replaced_message_keeps_its_new_record(store: Store, raw: Redis) -> None:
    (one,) = await leased(store, id="own")
    await store.replace_message(TOPIC, draft("new", id="own"))
    before = await snapshot(raw, TOPIC)
    assert await note(store, one) == [Settled.REPLACED]
    assert await snapshot(raw, TOPIC) == before


async def test_a_missing_record_is_written_again(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    await raw.hdel(store.keys.of(TOPIC).payload, one.id)
    assert await note(store, one) == [Settled.DONE]
    assert (await snapshot(raw, TOPIC)).records == {one.id: codec.encode(noted(one))}


async def test_signals_stay(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    await store.signal_message(TOPIC, [Signal(one.id, "a", b"1")])
    await note(store, one)
    assert (await snapshot(raw, TOPIC)).signals == {f"{one.id}\ta\t1"}


async def test_a_full_server_takes_notes(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    await raw.config_set("maxmemory", 1)
    try:
        assert await note(store, one) == [Settled.DONE]
    finally:
        await raw.config_set("maxmemory", 0)
    assert (await snapshot(raw, TOPIC)).records == {one.id: codec.encode(noted(one))}


@ONE_SERVER
async def test_a_record_of_another_message_is_refused(store: Store, raw: Redis) -> None:
    one, other = await leased(store, 2)
    before = await snapshot(raw, TOPIC)
    with pytest.raises(InvalidInput, match="the record belongs to message"):
        await store.note_record(TOPIC, "w1", [(one, message(other), "x")])
    assert await snapshot(raw, TOPIC) == before


async def test_the_history_says_what_was_noted(store: Store) -> None:
    (one,) = await leased(store)
    await note(store, one)
    assert await take(store) == []
    told = await store.views.history.of(TOPIC, one.id)
    assert ("noted", "w1", "charge") in [(entry.what, entry.by, entry.about) for entry in told]
