"""note_progress: processing -> processing"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.core.message import State
from mx_rmq.store.results import Settled
from tests.lab.messages import TOPIC, leased, settle, take
from tests.lab.snapshot import snapshot
from tests.store.contracts import HolderContract

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store

KEEP = 600_000


class TestNoteProgress(HolderContract):
    name = "note_progress"

    async def settle(
        self, store: Store, taken: Sequence[Leased], *, worker: str = "w1"
    ) -> list[Settled]:
        reports = [(one, b"{}") for one in taken]
        return await store.note_progress(TOPIC, worker, reports, keep=KEEP)


async def test_the_last_word_is_kept_with_its_token_and_expires(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    before = await snapshot(raw, TOPIC)
    for words in (b'{"share":0.1}', b'{"share":0.2}'):
        done = await store.note_progress(TOPIC, "w1", [(one, words)], keep=KEEP)
        assert done == [Settled.DONE]
    key = store.keys.of(TOPIC).progress(one.id)
    assert await raw.get(key) == f'{one.token} {{"share":0.2}}'.encode()
    assert 0 < await raw.pttl(key) <= KEEP
    assert await snapshot(raw, TOPIC) == before


async def test_each_message_of_a_batch_has_its_own_and_a_stale_one_has_none(
    store: Store, raw: Redis
) -> None:
    first, stale, last = await leased(store, 3)
    reports = [(first, b"1"), (stale._replace(token=1), b"2"), (last, b"3")]
    done = await store.note_progress(TOPIC, "w1", reports, keep=KEEP)
    assert done == [Settled.DONE, Settled.LOST, Settled.DONE]
    keys = [store.keys.of(TOPIC).progress(one.id) for one in (first, stale, last)]
    assert await raw.mget(keys) == [f"{first.token} 1".encode(), None, f"{last.token} 3".encode()]


async def test_those_who_watch_are_told(store: Store, raw: Redis) -> None:
    (one,) = await leased(store)
    async with raw.pubsub(ignore_subscribe_messages=True) as ear:
        await ear.subscribe(store.channel_of(TOPIC))
        await ear.get_message(timeout=10)
        await store.note_progress(TOPIC, "w1", [(one, b"{}")], keep=KEEP)
        message = None
        while message is None:
            message = await ear.get_message(timeout=10)
    assert message["data"] == f"progress {len(one.id)} -1\n{one.id}".encode()


async def test_the_next_attempt_starts_without_one(store: Store) -> None:
    (one,) = await leased(store)
    await store.note_progress(TOPIC, "w1", [(one, b'{"share":0.5,"note":"half"}')], keep=KEEP)
    (found,) = await store.read_status(TOPIC, [one.id], live=True, with_progress=True)
    assert found is not None
    assert (found.status().progress, found.status().note) == (0.5, "half")
    await settle(store, one, State.PENDING)
    await take(store)
    (found,) = await store.read_status(TOPIC, [one.id], live=True, with_progress=True)
    assert found is not None
    assert (found.status().progress, found.status().note) == (None, "")
