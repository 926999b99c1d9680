"""processing -> quarantined. Caps and TTL: test_archive_caps.py."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import DecodeError
from mx_rmq.core.message import State
from mx_rmq.core.text import MAX_ERROR_TEXT
from mx_rmq.settings import Limits
from mx_rmq.store.quarantine import QuarantineReason, read
from mx_rmq.store.results import Leased, Settled
from tests.lab.archives import archive, archived, find_archived, key_name, list_archived
from tests.lab.broken import assert_refused, vital
from tests.lab.calls import resend_next
from tests.lab.messages import LEASE, TOPIC, bring, leased, message, settle, take
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock

TEN_MB = bytes(range(256)) * 40_000
assert len(TEN_MB) > 10_000_000


async def odd(store: Store, raw: Redis, data: bytes, id: bytes = b"odd") -> Leased:
    """Lease a message whose record is not one, as somebody else may have written it."""
    keys = store.keys.of(TOPIC)
    await store.register(TOPIC)
    await raw.hset(keys.payload, id, data)
    await raw.lpush(keys.pending, id)
    (one,) = await take(store)
    assert one.record == data
    return one


async def quarantine(store: Store, one: Leased) -> QuarantineReason:
    """Do what a consumer does with bytes that it cannot read."""
    with pytest.raises(DecodeError) as caught:
        message(one)
    error = QuarantineReason.of(
        id=one.id, topic=TOPIC, error=caught.value, data=one.record, worker="w1"
    )
    assert await store.handle_parse_error(TOPIC, "w1", one, error) is Settled.DONE
    return error


async def only_entry(raw: Redis) -> tuple[QuarantineReason, bytes]:
    after = await snapshot(raw, TOPIC)
    ((id, data),) = after.quarantined.items()
    assert after == Snapshot(
        quarantine={id: after.quarantine[id]},
        quarantined={id: data},
        rung=after.rung,
        meta=after.meta,
    )
    return read(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe not UTF-8 \x80",
        b"\x00",
        b"a\x00b\x00",
        bytes(range(32)) + b"\x7f",
        b'"\'`\\" }{ ][',
        b"\n",
        b"one\ntwo\r\n\nthree\n",
        b'{"v":1,"id":"cut off',
        b"",
        bytes(range(256)),
        b"[" * 5000,
        b"%s%d%.0f" + rb"\r\n\0\x00",
    ],
    ids=repr,
)
async def test_the_exact_bytes_are_kept_whatever_they_are(
    store: Store, raw: Redis, clock: Clock, data: bytes
) -> None:
    one = await odd(store, raw, data)
    at = clock.advance(7)
    error = await quarantine(store, one)
    assert await only_entry(raw) == (error, data)
    assert (error.id, error.topic, error.worker) == ("odd", TOPIC, "w1")
    assert (error.error_type, error.length) == ("DecodeError", len(data))
    entry = await find_archived(store, TOPIC, State.QUARANTINED, "odd")
    assert entry is not None
    assert entry.at == at


@pytest.mark.parametrize("kept", [0, 1, 4 * 2**20, len(TEN_MB) - 1, len(TEN_MB), 2**40])
async def test_ten_megabytes_are_cut_at_the_limit_and_their_length_is_noted(
    store: Store, raw: Redis, kept: int
) -> None:
    store.limits = Limits(quarantine_bytes=kept)
    one = await odd(store, raw, TEN_MB)
    error = await quarantine(store, one)
    about, data = await only_entry(raw)
    assert about == error
    assert about.length == len(TEN_MB)
    assert data == (TEN_MB[:kept] if kept else TEN_MB), "0 switches a limit off"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\r\n", "two\nlines\r\n"),
        ("\"quoted\" \\ and 'quoted'", "\"quoted\" \\ and 'quoted'"),
        ("\x00\x01\x1b[31m\x7f", "\x00\x01\x1b[31m\x7f"),
        ("lone \ud800 surrogate, \udcff byte", "lone \\ud800 surrogate, \\udcff byte"),
        ("ü" * MAX_ERROR_TEXT + "rest", "ü" * (MAX_ERROR_TEXT - 1) + "…"),
        ("", ""),
        ("\U0001f600\u2028\u2029", "\U0001f600\u2028\u2029"),
    ],
    ids=["newline", "quotes", "control", "surrogates", "long", "none", "emoji"],
)
async def test_any_error_text_is_kept_and_does_not_touch_the_bytes(
    store: Store, raw: Redis, text: str, shown: str
) -> None:
    one = await odd(store, raw, b"bytes\n\xff")
    error = QuarantineReason.of(id=one.id, topic=TOPIC, error=ValueError(text), data=one.record)
    assert await store.handle_parse_error(TOPIC, "w1", one, error) is Settled.DONE
    about, data = await only_entry(raw)
    assert (about.error_type, about.error) == ("ValueError", shown)
    assert data == b"bytes\n\xff"


@pytest.mark.parametrize(
    "id", [b"\xff\xfe", b"a b", b"a\nb", b"a\x00b", b'"', b":{}*?", b"x" * 500]
)
async def test_an_id_that_is_none_of_ours_is_quarantined_and_discarded_like_any_other(
    store: Store, raw: Redis, id: bytes
) -> None:
    one = await odd(store, raw, b"bytes", id)
    await quarantine(store, one)
    (entry,) = await list_archived(store, TOPIC, State.QUARANTINED)
    assert entry.id.encode("utf-8", "surrogateescape") == id
    assert await find_archived(store, TOPIC, State.QUARANTINED, entry.id) == entry
    about, data = read(entry.data)
    assert about.id == entry.id.encode("utf-8", "backslashreplace").decode()
    assert data == b"bytes"
    done = await store.discard_message(TOPIC, State.QUARANTINED, entry.id, archived=entry.at)
    assert done is Settled.DONE
    assert (await snapshot(raw, TOPIC)).quarantine == {}


async def test_only_the_message_that_cannot_be_read_goes(
    store: Store, raw: Redis, clock: Clock
) -> None:
    first, one, last = await leased(store, 3)
    before = await snapshot(raw, TOPIC)
    error = QuarantineReason.of(id=one.id, topic=TOPIC, error=ValueError("no"), data=one.record)
    assert await store.handle_parse_error(TOPIC, "w1", one, error) is Settled.DONE
    assert await snapshot(raw, TOPIC) == replace(
        before,
        records={other.id: other.record for other in (first, last)},
        leases={other.id: before.leases[other.id] for other in (first, last)},
        deadlines={other.id: before.deadlines[other.id] for other in (first, last)},
        quarantine={one.id: clock.now},
        quarantined={one.id: error.line() + b"\n" + one.record},
    )


@pytest.mark.parametrize("lost", ["token", "worker", "id", "time-out"])
async def test_who_does_not_hold_the_lease_changes_nothing(
    store: Store, raw: Redis, clock: Clock, lost: str
) -> None:
    (one,) = await leased(store)
    if lost == "time-out":
        clock.advance(LEASE)
        await store.handle_timeout_message(TOPIC, "monitor", count=10, recovery=1000)
    before = await snapshot(raw, TOPIC)
    stale = {"token": one._replace(token=one.token + 1), "id": one._replace(id="unknown")}.get(
        lost, one
    )
    worker = "w2" if lost == "worker" else "w1"
    assert await archive(store, State.QUARANTINED, stale, worker) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.parametrize("state", [None, *State])
async def test_a_message_in_another_state_stays_there(
    store: Store, raw: Redis, state: State | None
) -> None:
    one = await bring(store, None if state is State.PROCESSING else state)
    if state is State.PROCESSING:
        (one,) = await leased(store, worker="w2")
    before = await snapshot(raw, TOPIC)
    assert await archive(store, State.QUARANTINED, one) is Settled.LOST
    assert await snapshot(raw, TOPIC) == before


async def test_the_same_call_again_is_told_that_it_was_done(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    resend_next(store, raw)
    assert await archive(store, State.QUARANTINED, one) is Settled.REPEATED
    assert (await only_entry(raw))[1] == one.record


@pytest.mark.parametrize("then", [None, *State])
async def test_the_same_call_again_leaves_a_message_alone_that_went_on_meanwhile(
    store: Store, raw: Redis, clock: Clock, then: State | None
) -> None:
    (one,) = await leased(store)
    set_aside = clock.now

    async def go_on() -> None:
        assert await store.requeue_message(
            TOPIC, State.QUARANTINED, one.id, archived=set_aside, message=message(one)
        )
        clock.advance(10)
        (second,) = await take(store)
        await settle(store, second, then)

    resend_next(store, raw, between=go_on)
    assert await archive(store, State.QUARANTINED, one) is Settled.REPEATED


async def test_a_record_that_is_gone_leaves_an_entry_without_bytes(
    store: Store, raw: Redis
) -> None:
    (one,) = await leased(store)
    await raw.delete(store.keys.of(TOPIC).payload)
    assert await archive(store, State.QUARANTINED, one) is Settled.DONE
    about, data = await only_entry(raw)
    assert (about.length, data) == (len(one.record), b"")


async def test_a_paused_topic_quarantines(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    assert await store.pause_topic(TOPIC)
    assert await archive(store, State.QUARANTINED, one) is Settled.DONE
    assert (await only_entry(raw))[1] == one.record


async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_half_written(
    store: Store, raw: Redis
) -> None:
    await archived(store, State.QUARANTINED)
    (one,) = await leased(store)
    for name in vital("handle_parse_error"):
        call = partial(archive, store, State.QUARANTINED, one)
        await assert_refused(store, raw, key_name(State.QUARANTINED, name), call)
    assert await archive(store, State.QUARANTINED, one) is Settled.DONE
