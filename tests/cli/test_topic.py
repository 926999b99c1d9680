"""pause, resume and grow, as a user runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.calls import run, run_json
from tests.lab.messages import TOPIC, pending
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from mx_rmq.store.store import Store
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)


async def test_a_topic_is_paused_and_resumed(store: Store, server: Server) -> None:
    await pending(store)
    assert (await run(server, "pause", TOPIC)).stdout == "orders: paused\n"
    assert (await store.views.counts(TOPIC)).paused
    again = await run(server, "pause", TOPIC)
    assert (again.exit_code, again.stdout) == (0, "orders: already paused\n")
    assert await run_json(server, "resume", TOPIC) == {
        "topic": TOPIC,
        "state": "resumed",
        "changed": True,
    }
    assert not (await store.views.counts(TOPIC)).paused
    assert (await run(server, "resume", TOPIC)).stdout == "orders: was not paused\n"


async def test_a_topic_grows(store: Store, server: Server) -> None:
    await pending(store)
    told = await run(server, "grow", TOPIC, "4")
    assert (told.exit_code, told.stdout) == (0, "orders: 4 partitions\n")
    assert await run_json(server, "grow", TOPIC, "5") == {"topic": TOPIC, "partitions": 5}
    assert await store.views.partitions(TOPIC) == 5


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((TOPIC, "1"), "has 2 partitions and cannot have 1: the messages in the others would be"),
        ((TOPIC, "0"), "Error: partitions=0 is not a whole number from 1 to 1024"),
        ((TOPIC, "1025"), "Error: partitions=1025 is not a whole number from 1 to 1024"),
        ((TOPIC, "many"), "'many' is not a valid integer"),
        (("orderz", "2"), "Error: no topic 'orderz' under the prefix"),
    ],
)
async def test_a_topic_does_not_grow_to_a_wrong_number(
    store: Store, server: Server, words: tuple[str, ...], expected: str
) -> None:
    await store.register_topics({TOPIC: 2})
    failed = await run(server, "grow", *words)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert expected in failed.stderr
    assert await store.views.partitions(TOPIC) == 2
