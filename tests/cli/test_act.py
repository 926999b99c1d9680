"""requeue, discard, cancel, pause and resume, as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.message import State
from mx_rmq.core.partition import partitions
from tests.cli.calls import HOSTILE, harmless, run, run_json
from tests.lab.archives import ARCHIVES, archived
from tests.lab.messages import TOPIC, bring, delayed, draft, leased, pending
from tests.lab.servers import Kind
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)

MX_RMQ = str(Path(sys.executable).with_name("mx-rmq"))


# requeue and discard


@pytest.mark.parametrize("state", ARCHIVES)
async def test_messages_are_requeued_and_missing_ones_told_of(
    store: Store, server: Server, state: State
) -> None:
    ids = await archived(store, state, 3)
    told = await run(server, "requeue", TOPIC, ids[0], "nope", ids[1], ids[0])
    assert told.exit_code == 1
    assert told.stdout == f"{ids[0]}: requeued\nnope: not there\n{ids[1]}: requeued\n"
    counts = await store.views.counts(TOPIC)
    assert (counts.pending, counts.total) == (2, 3)
    assert await run_json(server, "requeue", TOPIC, ids[2], "--state", state) == {
        "topic": TOPIC,
        "requeued": [ids[2]],
        "absent": [],
        "refused": {},
    }


@pytest.mark.parametrize("state", ARCHIVES)
async def test_messages_are_discarded_and_missing_ones_told_of(
    store: Store, server: Server, state: State
) -> None:
    ids = await archived(store, state, 2)
    told = await run(server, "discard", TOPIC, ids[0], "nope", "--yes")
    assert (told.exit_code, told.stdout) == (1, f"{ids[0]}: discarded\nnope: not there\n")
    found = await run_json(server, "discard", TOPIC, ids[1], "--yes")
    assert found["discarded"] == [ids[1]]
    assert (await store.views.counts(TOPIC)).total == 0


@pytest.mark.corrupts
async def test_what_cannot_be_requeued_is_refused_and_the_rest_done(
    store: Store, server: Server, raw: Redis
) -> None:
    bad, good = await archived(store, State.DEAD, 2)
    await raw.hset(store.keys.of(TOPIC).dlq_payload, bad, HOSTILE)
    told = await run(server, "requeue", TOPIC, bad, good)
    assert (told.exit_code, told.stdout) == (2, f"{good}: requeued\n")
    assert told.stderr.startswith(f"Error: message '{bad}' cannot be requeued")
    assert "then discard it\n" in told.stderr
    assert harmless(told.stderr)
    found = await run_json(server, "requeue", TOPIC, bad, code=2)
    assert list(found["refused"]) == [bad]


@pytest.mark.parametrize("state", ARCHIVES)
async def test_all_of_a_state_are_requeued_or_discarded(
    store: Store, server: Server, clock: Clock, state: State
) -> None:
    await archived(store, state, 7, clock=clock)
    told = await run(server, "requeue", TOPIC, "--all", "--state", state, "--limit", "2", "--yes")
    assert (told.exit_code, told.stdout) == (0, f"2 {state} messages of orders requeued\n")
    found = await run_json(server, "discard", TOPIC, "--all", "--state", state, "--yes")
    assert found == {"topic": TOPIC, "state": state, "discarded": 5}
    told = await run(server, "discard", TOPIC, "--all", "--state", state, "--yes")
    assert (told.exit_code, told.stdout) == (0, f"0 {state} messages of orders discarded\n")
    assert (await store.views.counts(TOPIC)).total == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("requeue", TOPIC), "Name the messages, or say --all."),
        (("discard", TOPIC, "id", "--all"), "Name the messages, or say --all."),
        (("discard", TOPIC, "--all"), "--all of which state? --state dead or --state quarantined"),
        (("discard", TOPIC, "id", "--limit", "1"), "--limit goes with --all."),
        (("discard", TOPIC, "id", "--state", "pending"), "'pending' is not one of 'dead'"),
        (("cancel", TOPIC), "Missing argument 'IDS...'"),
    ],
)
async def test_a_call_that_makes_no_sense_is_refused(
    store: Store, server: Server, words: tuple[str, ...], said: str
) -> None:
    await pending(store)
    failed = await run(server, *words, "--yes")
    assert failed.exit_code == 2
    assert said in failed.stderr


# asking


@pytest.mark.parametrize(
    ("words", "deed"),
    [
        (("discard", TOPIC, "a", "b"), "discard 2 messages of orders"),
        (("cancel", TOPIC, "a"), "cancel 1 message of orders"),
        (("requeue", TOPIC, "--all", "--state", "dead"), "requeue 3 dead messages of orders"),
        (
            ("discard", TOPIC, "--all", "--state", "dead", "--limit", "2"),
            "discard 2 dead messages of orders",
        ),
    ],
)
async def test_nothing_is_destroyed_unasked_where_nobody_can_be_asked(
    store: Store, server: Server, raw: Redis, words: tuple[str, ...], deed: str
) -> None:
    await archived(store, State.DEAD, 3)
    before = await snapshot(raw, TOPIC)
    refused = await run(server, *words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (f"Error: nobody is there to be asked whether to {deed}: say --yes\n")
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 0), (b"n\n", 2, 1)])
async def test_somebody_at_a_terminal_is_asked(
    store: Store, server: Server, answer: bytes, code: int, left: int
) -> None:
    one = await bring(store, State.DEAD)
    master, slave = os.openpty()
    os.write(master, answer)
    told = subprocess.run(
        [MX_RMQ, "discard", TOPIC, one.id, "--url", server.url],
        stdin=slave,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(master)
    os.close(slave)
    assert told.returncode == code
    assert "Discard 1 message of orders? [y/N]" in told.stderr
    assert (await store.views.counts(TOPIC)).dead == left


# cancel


async def test_only_what_nobody_has_begun_is_cancelled(store: Store, server: Server) -> None:
    (held,) = await leased(store)
    (waits,) = await pending(store)
    (later,) = await delayed(store, 1000)
    told = await run(server, "cancel", TOPIC, waits, "nope", later, "--yes")
    assert told.exit_code == 1
    assert told.stdout == f"{waits}: cancelled\nnope: not there\n{later}: cancelled\n"
    refused = await run(server, "cancel", TOPIC, held.id, "--yes")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"Error: message '{held.id}' is in processing: a worker has begun with it\n"
    )
    assert (await store.views.counts(TOPIC)).total == 1


# pause and resume


async def test_a_topic_is_paused_and_resumed(store: Store, server: Server) -> None:
    await pending(store)
    assert (await run(server, "pause", TOPIC)).stdout == "orders: paused\n"
    assert (await store.views.counts(TOPIC)).paused
    again = await run(server, "pause", TOPIC)
    assert (again.exit_code, again.stdout) == (0, "orders: nothing to do, it was so already\n")
    assert await run_json(server, "resume", TOPIC) == {
        "topic": TOPIC,
        "state": "resumed",
        "changed": True,
    }
    assert not (await store.views.counts(TOPIC)).paused


@pytest.mark.parametrize("command", ["requeue", "discard", "cancel", "pause", "resume"])
async def test_an_unknown_topic_is_refused_before_anything_is_asked(
    store: Store, server: Server, command: str
) -> None:
    await pending(store)
    ids = () if command in ("pause", "resume") else ("a", "b")
    failed = await run(server, command, "orderz", *ids)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert failed.stderr.startswith("Error: no topic 'orderz' under the prefix")
    assert failed.stderr.count("\n") == 1


# partitions


async def test_a_topic_grows(store: Store, server: Server) -> None:
    await pending(store)
    told = await run(server, "grow", TOPIC, "4")
    assert (told.exit_code, told.stdout) == (0, "orders: 4 partitions\n")
    assert await run_json(server, "grow", TOPIC, "5") == {"topic": TOPIC, "partitions": 5}
    assert await store.views.partitions(TOPIC) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((TOPIC, "1"), "Error: topic 'orders' has 2 partitions and cannot have 1: what is in"),
        ((TOPIC, "0"), "Error: partitions=0 is not a whole number from 1 to 1024"),
        ((TOPIC, "1025"), "Error: partitions=1025 is not a whole number from 1 to 1024"),
        ((TOPIC, "many"), "'many' is not a valid integer"),
        (("orderz", "2"), "Error: no topic 'orderz' under the prefix"),
    ],
)
async def test_a_topic_does_not_grow_to_a_wrong_number(
    store: Store, server: Server, words: tuple[str, ...], said: str
) -> None:
    await store.register_topics({TOPIC: 2})
    failed = await run(server, "grow", *words)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert said in failed.stderr
    assert await store.views.partitions(TOPIC) == 2


async def test_messages_are_acted_on_in_whatever_partition_they_are(
    store: Store, server: Server
) -> None:
    await store.register_topics({TOPIC: 3})
    for part in partitions(TOPIC, 3):
        await store.produce_normal_message(part, [draft(), draft(id=part.replace("/", "."))])
    listed = (await run_json(server, "list", TOPIC, "--state", "pending"))["messages"]
    ids = [one["id"] for one in listed]
    assert len(ids) == 6
    told = await run(server, "cancel", TOPIC, *ids[1:], "--yes")
    assert told.exit_code == 0
    assert told.stdout == "".join(f"{id}: cancelled\n" for id in ids[1:])
    assert (await run(server, "pause", TOPIC)).stdout == "orders: paused\n"
    for part in partitions(TOPIC, 3):
        assert (await store.views.counts(part)).paused
    assert (await run(server, "resume", TOPIC)).stdout == "orders: resumed\n"
