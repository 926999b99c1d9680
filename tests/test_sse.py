"""mq.sse: what a browser gets that follows a message."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Delivery, InvalidInput, MessageQueue, Worker
from tests.runtime.stage import on_a_server, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.lab.servers import Server

pytestmark = on_a_server

END = b"event: end\ndata: {}\n\n"


@pytest.fixture
async def mq(server: Server, raw: Redis) -> AsyncIterator[MessageQueue]:
    async with MessageQueue(server.url) as mq:
        yield mq


def tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


def data(event: bytes) -> dict[str, Any]:
    """Return what an event without a name carries."""
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    found: dict[str, Any] = json.loads(event.removeprefix(b"data: "))
    return found


async def test_every_change_is_an_event_and_the_last_one_says_that_it_was(
    mq: MessageQueue,
) -> None:
    done = asyncio.Event()

    @mq.handler("report", result_ttl=60)
    async def write(pages: int, delivery: Delivery) -> None:
        delivery.progress(0.5, "half\n\ndata: not an event")
        await done.wait()

    id = await mq.produce("report", 1)
    notes = []
    async with Worker(mq):
        async for event in mq.sse("report", id):
            if event == END:
                break
            notes.append(data(event))
            if notes[-1]["note"]:
                done.set()
    assert notes[-1] == {
        "state": "completed",
        "attempt": 1,
        "progress": None,
        "note": "",
        "reason": "",
    }
    (half,) = [note for note in notes if note["progress"]]
    assert (half["progress"], half["note"]) == (0.5, "half\n\ndata: not an event")


async def test_a_stream_of_nothing_ends_at_once_and_says_so(mq: MessageQueue) -> None:
    await mq.produce("report", 1)
    assert [event async for event in mq.sse("report", "never")] == [END]
    assert [event async for event in mq.topic("report", int).sse("never")] == [END]


async def test_while_nothing_changes_a_comment_is_sent(mq: MessageQueue) -> None:
    id = await mq.produce("report", 1)
    events = mq.sse("report", id, heartbeat=0.05)
    assert data(await anext(events))["state"] == "pending"
    assert [await anext(events) for _ in range(2)] == [b": still waiting\n\n"] * 2
    await mq.admin.abort("report", id, "no longer needed")
    last = [event async for event in events if not event.startswith(b":")]
    assert data(last[0])["reason"] == "aborted: no longer needed"
    assert last[1:] == [END]


async def test_a_reader_that_goes_away_leaves_nothing_behind(mq: MessageQueue) -> None:
    id = await mq.produce("report", 1)

    async def read() -> None:
        async for _ in mq.sse("report", id):
            pass

    reading = asyncio.create_task(read())
    await until(lambda: "mx-rmq sse" in tasks())
    reading.cancel()
    await asyncio.wait([reading])
    assert "mx-rmq sse" not in tasks()


def test_it_works_without_an_event_loop(server: Server) -> None:
    mq = MessageQueue(server.url)
    reports = mq.topic("report", int)
    id = reports.sync.produce(1)
    for events in (mq.sync.sse("report", id, heartbeat=0.05), reports.sync.sse(id, heartbeat=0.05)):
        assert data(next(events))["state"] == "pending"
        assert next(events).startswith(b":")
    mq.sync.abort("report", id)
    *_, last, end = mq.sync.sse("report", id)
    assert (data(last)["state"], end) == ("dead", END)
    mq.sync.close()


async def test_the_headers_are_the_same_for_all(mq: MessageQueue) -> None:
    assert mq.sse_headers["Content-Type"].startswith("text/event-stream")
    with pytest.raises(TypeError):
        mq.sse_headers["Content-Type"] = "text/html"  # type: ignore[index]  # that is the point


async def test_a_heartbeat_that_is_none_is_refused(mq: MessageQueue) -> None:
    for heartbeat in (0, -1, "15"):
        with pytest.raises(InvalidInput, match="heartbeat="):
            mq.sse("report", "1", heartbeat=heartbeat)  # type: ignore[arg-type]  # as a user may
