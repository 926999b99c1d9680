"""A client that dies anywhere in a call leaves no message behind: T1 of RELIABILITY.md."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core import codec
from mx_rmq.core.message import State
from mx_rmq.store.answers import Retried
from mx_rmq.store.quarantine import read
from tests.lab.cases import CASES
from tests.lab.messages import FAILURE, LEASE, TOPIC
from tests.lab.mortal import DELAY, RECOVERY, WORKER, Clients, Entry, Point, When, label, label_of
from tests.lab.servers import Kind, chosen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock
    from tests.lab.servers import Server

SCRIPTS = sorted({case.script for case in CASES} - {"pause_topic", "resume_topic", "trim_archive"})
ENDINGS = ("complete_message", "cancel_message", "discard_message")
MAX_ATTEMPTS = 2
ROUNDS = 8

pytestmark = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1, Kind.REDIS_7_0))


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    with Clients() as clients:
        yield clients


async def live(clients: Clients, server: Server, raw: Redis, doom: Point | None) -> list[Entry]:
    """Let a client live on an empty server until its end, and until the server knows of it."""
    await raw.flushall()
    journal = clients.run(server.url, doom)
    while any(client["name"] == WORKER for client in await raw.client_list()):
        pass  # the server still reads what the dead client has sent
    return journal


async def recover(store: Store, clock: Clock) -> Counter[str]:
    """Do what the living do until nothing waits; return what was handled, and how often."""
    handled: Counter[str] = Counter()
    for _ in range(ROUNDS):
        clock.advance(10 * LEASE)
        await store.process_delay_message(TOPIC, count=100)
        late = await store.handle_timeout_message(TOPIC, "monitor", count=100, recovery=RECOVERY)
        for one in late.messages:
            message = codec.decode_as(one.record, TOPIC, one.id).failed(FAILURE)
            if message.attempts < MAX_ATTEMPTS:
                again = Retried(one.claim, message, DELAY)
                assert all(await store.retry_message(TOPIC, "monitor", [again]))
            else:
                assert await store.move_to_dlq(TOPIC, "monitor", one.claim, message)
        taken = await store.dispatch_message(TOPIC, "heir", count=100, lease=LEASE)
        handled.update(label(one) for one in taken.messages)
        claims = [one.claim for one in taken.messages]
        assert all(await store.complete_message(TOPIC, "heir", claims))
        counts = await store.views.counts(TOPIC)
        if counts.pending + counts.delayed + counts.processing == 0:
            return handled
    raise AssertionError(f"after {ROUNDS} rounds something still waits: {counts}")


async def archived(store: Store) -> list[str]:
    """Return what is in the dead letters and in the quarantine."""
    dead = await store.views.archive(TOPIC, State.DEAD)
    set_aside = await store.views.archive(TOPIC, State.QUARANTINED)
    records = [one.data for one in dead] + [read(one.data)[1] for one in set_aside]
    return [label_of(record) for record in records]


def about(entries: list[Entry], *scripts: str) -> set[str]:
    return {label for entry in entries if entry.script in scripts for label in entry.labels}


async def test_the_story_calls_every_script_that_a_client_uses(
    clients: Clients, server: Server, raw: Redis
) -> None:
    journal = await live(clients, server, raw, None)
    assert sorted({entry.script for entry in journal}) == SCRIPTS


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_message_outlives_a_client_that_dies(
    clients: Clients,
    server: Server,
    raw: Redis,
    store: Store,
    clock: Clock,
    script: str,
    when: When,
) -> None:
    whole = await live(clients, server, raw, None)
    points = [Point(script, entry.nth, when) for entry in whole if entry[:2] == ("ok", script)]
    assert points
    for point in points:
        journal = await live(clients, server, raw, point)
        calls = [entry for entry in journal if entry.what == "call"]
        acknowledged = [entry for entry in journal if entry.what == "ok"]
        ran = calls[:-1] if when is When.BEFORE else calls
        assert calls[-1][1:3] == point[:2]
        assert len(acknowledged) == len(calls) - (when is not When.REPLIED)

        handled = await recover(store, clock)
        # Every message is in one of three places, once: handled now, archived, or ended before.
        handled.update(await archived(store))
        produces = [script for script in SCRIPTS if script.startswith("produce")]
        assert about(acknowledged, *produces) <= about(ran, *produces)
        assert handled == Counter(about(ran, *produces) - about(ran, *ENDINGS)), point
        assert await store.audit.topic(TOPIC) == [], point
