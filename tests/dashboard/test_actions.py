"""What an operator does, over HTTP: every action, without any script in the browser."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.message import State
from mx_rmq.dashboard import Dashboard, bulk_actions
from tests.dashboard.visitor import Visitor
from tests.lab.archives import ARCHIVES, archived
from tests.lab.messages import TOPIC, leased
from tests.runtime.stage import until

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import MessageQueue


async def state_of(mq: MessageQueue, id: str) -> State | None:
    found = await mq.admin.get(TOPIC, id)
    return None if found is None else found.state


async def test_the_history_says_who_it_was(mq: MessageQueue) -> None:
    (id,) = await archived(mq.store, State.DEAD)
    async with Visitor(Dashboard(mq, authorize=lambda request: "anna@example.org")) as visitor:
        answer = await visitor.submit(f"/topics/{TOPIC}/message?id={id}", "Requeue")
    assert 'requeued</span>\n        <span>by <span class="mono">anna@example.org' in answer.text
    assert [one.by for one in await mq.admin.history(TOPIC, id)][-1] == "anna@example.org"


async def test_a_topic_is_paused_and_resumed(mq: MessageQueue, visitor: Visitor) -> None:
    await mq.produce(TOPIC, 1)
    answer = await visitor.submit(f"/topics/{TOPIC}", "Pause")
    assert "Paused." in answer.text
    assert (await mq.admin.stats(TOPIC)).paused
    answer = await visitor.submit(f"/topics/{TOPIC}", "Resume")
    assert "Resumed." in answer.text
    assert not (await mq.admin.stats(TOPIC)).paused


@pytest.mark.parametrize("state", ARCHIVES)
async def test_an_archived_message_is_requeued(
    mq: MessageQueue, visitor: Visitor, state: State
) -> None:
    (id,) = await archived(mq.store, state)
    answer = await visitor.submit(f"/topics/{TOPIC}/message?id={id}", "Requeue")
    assert "Requeued." in answer.text
    assert await state_of(mq, id) is State.PENDING
    answer = await visitor.post(f"/topics/{TOPIC}/requeue?id={id}")
    assert "notice=gone" in answer.headers["location"]


@pytest.mark.parametrize("state", ARCHIVES)
async def test_an_archived_message_is_discarded_after_a_question(
    mq: MessageQueue, visitor: Visitor, state: State
) -> None:
    (id,) = await archived(mq.store, state)
    page = await visitor.page(f"/topics/{TOPIC}/message?id={id}")
    question = re.findall(r'class="button danger" href="([^"]+)', page)[0]
    answer = await visitor.submit(html.unescape(question), "Discard")
    assert "Discarded." in answer.text
    assert await state_of(mq, id) is None
    assert "cannot be discarded" in await visitor.page(html.unescape(question), 409)


async def test_a_pending_message_is_cancelled_after_a_question(
    mq: MessageQueue, visitor: Visitor
) -> None:
    id = await mq.produce(TOPIC, 1)
    answer = await visitor.submit(f"/topics/{TOPIC}/cancel?id={id}", "Cancel")
    assert "Cancelled." in answer.text
    assert await state_of(mq, id) is None


async def test_a_message_that_a_worker_has_cannot_be_cancelled(
    mq: MessageQueue, visitor: Visitor
) -> None:
    (one,) = await leased(mq.store)
    assert "Cancel…" not in await visitor.page(f"/topics/{TOPIC}/message?id={one.id}")
    answer = await visitor.post(f"/topics/{TOPIC}/cancel?id={one.id}")
    assert "notice=taken" in answer.headers["location"]
    assert await state_of(mq, one.id) is State.PROCESSING


@pytest.mark.parametrize("state", ["pending", "delayed", "processing"])
@pytest.mark.parametrize("reason", ["wrong <price>", ""])
async def test_a_live_message_is_aborted_after_a_question(
    mq: MessageQueue, visitor: Visitor, board: Dashboard, state: str, reason: str
) -> None:
    if state == "processing":
        id = (await leased(mq.store))[0].id
    else:
        id = await mq.produce(TOPIC, 1, delay=60 if state == "delayed" else None)
    assert "Abort…" in await visitor.page(f"/topics/{TOPIC}/message?id={id}")
    answer = await visitor.submit(f"/topics/{TOPIC}/abort?id={id}", "Abort", reason=reason)
    assert "Aborted. It is in the dead letters" in answer.text
    found = await mq.admin.get(TOPIC, id)
    assert found is not None
    assert (found.state, found.reason) == (
        State.DEAD,
        f"aborted: {reason or 'no reason given'}",
    )
    again = await visitor.post(f"/topics/{TOPIC}/abort?id={id}", reason=reason)
    assert "notice=gone" in again.headers["location"]
    assert "cannot be aborted: it is dead" in await visitor.page(
        f"/topics/{TOPIC}/abort?id={id}", 409
    )
    assert "Abort…" not in await visitor.page(f"/topics/{TOPIC}/message?id={id}")


async def test_many_are_aborted_with_a_reason(
    mq: MessageQueue, visitor: Visitor, board: Dashboard
) -> None:
    await leased(mq.store, 3)
    path = f"/topics/{TOPIC}/bulk?act=abort&state=processing"
    assert "Abort 3 processing messages?" in await visitor.page(path)
    await visitor.submit(path, "Abort them", reason="all wrong")
    (job,) = board.parts.jobs.latest()
    await until(lambda: job.stage == "done")
    dead = (await mq.admin.list(TOPIC, State.DEAD)).messages
    assert [one.reason for one in dead] == ["aborted: all wrong"] * 3


@pytest.mark.parametrize("state", ARCHIVES)
async def test_an_archived_message_is_edited_and_requeued(
    mq: MessageQueue, visitor: Visitor, state: State
) -> None:
    (id,) = await archived(mq.store, state)
    path = f"/topics/{TOPIC}/edit?id={id}"
    wrong = await visitor.post(path, 400, payload='{"number": ')
    assert "This is not JSON" in wrong.text
    assert "{&#34;number&#34;: </textarea>" in wrong.text
    await visitor.post(path, 400, payload="NaN")
    await visitor.post(path, 400, payload="1e400")
    await visitor.post(path, 400, payload="[" * 100_000)
    await visitor.post(path, 400, payload='"\\ud800"')
    assert await state_of(mq, id) is state
    answer = await visitor.submit(
        path, "Requeue with this payload", payload='{"number": 2,\r\n"ü": []}'
    )
    assert "Requeued with the new payload." in answer.text
    found = await mq.admin.get(TOPIC, id)
    assert found is not None
    assert (found.state, found.payload) == (State.PENDING, {"number": 2, "ü": []})


async def test_an_edited_payload_is_kept_digit_for_digit(
    mq: MessageQueue, visitor: Visitor
) -> None:
    (id,) = await archived(mq.store, State.DEAD)
    path, long = f"/topics/{TOPIC}/edit?id={id}", b'{"a":0.1234567890123456789,"b":[1e2,null]}'
    typed = long.decode().replace(",", ",\r\n  ")
    await visitor.submit(path, "Requeue with this payload", payload=typed)
    found = await mq.admin.get(TOPIC, id)
    assert found is not None
    assert (found.state, found.content) == (State.PENDING, long)


@pytest.mark.parametrize(
    ("page", "act"), [("message", "requeue"), ("edit", "edit"), ("discard", "discard")]
)
@pytest.mark.parametrize("state", ARCHIVES)
async def test_nothing_is_done_to_a_message_that_was_archived_since_the_page_was_shown(
    mq: MessageQueue, visitor: Visitor, raw: Redis, state: State, page: str, act: str
) -> None:
    (id,) = await archived(mq.store, state)
    shown = await visitor.page(f"/topics/{TOPIC}/{page}?id={id}")
    seen = re.search(r'name="seen" value="(\d+)"', shown)
    assert seen is not None
    index, _ = mq.store.keys.of(TOPIC).archive_of(state)
    await raw.zincrby(index, 1, id)  # as if the next one of this id had died a moment later
    sent = {"payload": "2", "state": state.value, "seen": seen[1]}
    answer = await visitor.post(f"/topics/{TOPIC}/{act}?id={id}", 400, **sent)
    assert "is no longer the one you saw" in html.unescape(answer.text)
    assert await state_of(mq, id) is state
    await raw.zincrby(index, -1, id)
    await visitor.post(f"/topics/{TOPIC}/{act}?id={id}", 303, **sent)
    assert await state_of(mq, id) is not state


@pytest.mark.corrupts
async def test_a_message_whose_id_is_no_text_can_be_discarded(
    mq: MessageQueue, visitor: Visitor, raw: Redis
) -> None:
    await mq.produce(TOPIC, 1)
    index, contents = mq.store.keys.of(TOPIC).archive_of(State.DEAD)
    for id in (b"\xff/..", b""):
        await raw.zadd(index, {id: 1_700_000_000_000})
        await raw.hset(contents, id, b"not a record")
    page = await visitor.page(f"/topics/{TOPIC}?state=dead")
    links = [html.unescape(one) for one in re.findall(r'data-row href="([^"]+)', page)]
    assert len(links) == 2
    for link in links:
        answer = await visitor.submit(link.replace("/message?", "/discard?"), "Discard")
        assert "Discarded." in answer.text
    assert await raw.zcard(index) == 0


async def test_what_cannot_be_requeued_is_said_and_noted(
    mq: MessageQueue, visitor: Visitor, raw: Redis
) -> None:
    (id,) = await archived(mq.store, State.DEAD)
    _, contents = mq.store.keys.of(TOPIC).archive_of(State.DEAD)
    await raw.hset(contents, id, b"not a record")
    answer = await visitor.post(f"/topics/{TOPIC}/requeue?id={id}", 400)
    assert "no worker could read it" in answer.text
    assert "refused: message" in await visitor.page("/log")


# many


async def test_many_are_counted_first_and_then_requeued_in_the_background(
    mq: MessageQueue, visitor: Visitor, board: Dashboard
) -> None:
    await archived(mq.store, State.DEAD, 30)
    path = f"/topics/{TOPIC}/bulk?act=requeue&state=dead&error=ValueError&last=1h"
    page = await visitor.page(path)
    assert "Requeue 30 dead messages?" in page
    assert 'name="since"' in page  # 'the last hour' is a fixed time from now on
    assert (await mq.admin.stats(TOPIC)).dead == 30  # nothing was done yet
    answer = await visitor.submit(path, "Requeue them", limit="10")
    (job,) = board.parts.jobs.latest()
    await until(lambda: job.stage == "done")
    assert "Requeue dead messages in orders" in answer.text
    assert "<strong>10</strong> requeued" in await visitor.page(f"/jobs/{job.id}")
    stats = await mq.admin.stats(TOPIC)
    assert (stats.dead, stats.pending) == (20, 10)
    assert "done: 10 messages" in await visitor.page("/log")


@pytest.mark.parametrize(
    ("act", "state", "query"),
    [
        ("discard", State.DEAD, "&last=1h"),
        ("requeue", State.QUARANTINED, ""),
        ("cancel", State.PENDING, ""),
        ("cancel", State.DELAYED, "&text=%22number%22"),
    ],
)
async def test_only_what_was_counted_is_done(
    mq: MessageQueue, visitor: Visitor, board: Dashboard, act: str, state: State, query: str
) -> None:
    async def more(count: int) -> None:
        if state in ARCHIVES:
            await archived(mq.store, state, count)
        else:
            delay = 60 if state is State.DELAYED else None
            await mq.produce_many(TOPIC, [{"number": 1}] * count, delay=delay)

    await more(3)
    page = await visitor.page(f"/topics/{TOPIC}/bulk?act={act}&state={state}{query}")
    assert f"{act.capitalize()} 3 {state} messages?" in page
    await asyncio.sleep(0.005)  # the server counts milliseconds
    await more(5)
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))
    sent = {str(name): html.unescape(value) for name, value in fields.items()}
    await visitor.post(f"/topics/{TOPIC}/bulk", 303, **sent)
    (job,) = board.parts.jobs.latest()
    await until(lambda: job.stage == "done")
    assert job.done == 3
    assert getattr(await mq.admin.stats(TOPIC), state) == 5


async def test_a_job_can_be_stopped(mq: MessageQueue, visitor: Visitor, board: Dashboard) -> None:
    await archived(mq.store, State.QUARANTINED, 5)
    path = f"/topics/{TOPIC}/bulk?act=discard&state=quarantined"
    answer = await visitor.submit(path, "Discard them", rate="1")
    assert 'http-equiv="refresh"' in answer.text
    (job,) = board.parts.jobs.latest()
    assert "The job is stopping" in (await visitor.submit(f"/jobs/{job.id}", "Stop")).text
    await until(lambda: job.stage == "stopped")
    assert 0 < (await mq.admin.stats(TOPIC)).quarantined <= 5


async def test_a_process_does_not_stop_a_job_of_its_own_for_that_of_another(
    mq: MessageQueue,
) -> None:
    """A balancer may send the form to either: the one that does not run the job says so."""
    await mq.produce_many(TOPIC, [1] * 900, delay=3600)
    here, there = (Dashboard(mq, allow_all=True, secret="same") for _ in range(2))
    async with Visitor(here) as visitor:
        path = f"/topics/{TOPIC}/bulk?act=cancel&state=delayed"
        await visitor.submit(path, "Cancel them", rate="1")
        token, cookies = await visitor.token(), visitor.client.cookies
    async with Visitor(there, cookies=cookies) as visitor:
        await visitor.submit(path, "Cancel them", rate="1")
        (job,) = here.parts.jobs.latest()
        (other,) = there.parts.jobs.latest()
        answer = await visitor.post(f"/jobs/{job.id}/stop", 404, token=token)
        assert "another process runs the job" in answer.text
        assert other.id in there.parts.jobs._tasks
        assert not there.parts.jobs._tasks[other.id].cancelling()
    await here.close()
    await there.close()


async def test_pending_ones_are_cancelled_by_a_search(
    mq: MessageQueue, visitor: Visitor, board: Dashboard
) -> None:
    await mq.produce_many(TOPIC, [{"to": "a"}] * 3 + [{"to": "b"}] * 2)
    path = f"/topics/{TOPIC}/bulk?act=cancel&state=pending&text=%22b%22"
    assert "Cancel 2 pending messages?" in await visitor.page(path)
    await visitor.submit(path, "Cancel them")
    (job,) = board.parts.jobs.latest()
    await until(lambda: job.stage == "done")
    assert (await mq.admin.stats(TOPIC)).pending == 3


async def test_wrong_forms_are_refused(mq: MessageQueue, visitor: Visitor) -> None:
    await mq.produce(TOPIC, 1)
    path = f"/topics/{TOPIC}/bulk"
    for fields in (
        {"act": "requeue", "state": "pending"},
        {"act": "discard", "state": "nowhere"},
        {"act": "cancel", "state": "pending", "limit": "-1"},
        {"act": "cancel", "state": "pending", "rate": "0"},
        {"act": "cancel", "state": "pending", "limit": "1e9"},
        {"act": "cancel", "state": "pending", "text": "x" * 201},
    ):
        await visitor.post(path, 400, **fields)
    assert "No message matches" in await visitor.page(f"{path}?act=requeue&state=dead")
    assert (await mq.admin.stats(TOPIC)).pending == 1


# the journal


async def test_every_action_is_written_down_on_one_line_and_shown(
    mq: MessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    board = Dashboard(mq, authorize=lambda request: "a\nnn <b>")
    (id,) = await archived(mq.store, State.DEAD)
    with caplog.at_level(logging.INFO, "mx_rmq.dashboard.audit"):
        async with Visitor(board) as visitor:
            await visitor.submit(f"/topics/{TOPIC}/message?id={id}", "Requeue")
            await visitor.submit(f"/topics/{TOPIC}", "Pause")
            page = await visitor.page("/log")
    await board.close()
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    assert [(one["who"], one["did"], one.get("id"), one["outcome"]) for one in lines] == [
        ("a\nnn <b>", "requeue", id, "done"),
        ("a\nnn <b>", "pause", None, "done"),
    ]
    assert all("\n" not in record.getMessage() for record in caplog.records)
    assert "nn &lt;b&gt;" in page
    assert page.index('<td data-label="Action">pause') < page.index(
        '<td data-label="Action">requeue'
    )


async def test_who_is_asked_learns_how_many_were_looked_at_if_time_ran_out(
    mq: MessageQueue, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await archived(mq.store, State.DEAD, 3)
    monkeypatch.setattr(bulk_actions, "COUNT_WITHIN", 0)
    page = await visitor.page(f"/topics/{TOPIC}/bulk?act=discard&state=dead&text=nowhere")
    assert "at least 0 dead messages" in page
    assert "Only 0 of them were checked." in page
