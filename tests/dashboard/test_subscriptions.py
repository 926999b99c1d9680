"""Subscriptions in the dashboard, over HTTP: how far each is behind, and how one is ended."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import pytest

from mx_rmq import State, Worker
from mx_rmq.admin import What
from mx_rmq.dashboard import Dashboard
from tests.dashboard.visitor import HOSTILE, Visitor
from tests.lab.messages import TOPIC
from tests.runtime.stage import until_so

if TYPE_CHECKING:
    from mx_rmq import MessageQueue

PAGE = f"/topics/{TOPIC}"
QUESTION = f"{PAGE}/unsubscribe?name=search"


@pytest.fixture(autouse=True)
async def _subscribed(mq: MessageQueue) -> None:
    """Two subscriptions, in each of which two messages wait."""

    async def handle(number: int) -> None: ...

    for name in ("billing", "search"):
        mq.handler(TOPIC, subscription=name)(handle)
    async with Worker(mq):
        await mq.admin.pause(f"{TOPIC}@billing")
        await mq.admin.pause(f"{TOPIC}@search")
        await mq.produce_many(TOPIC, [1, 2])
        await until_so(lambda: copied(mq))


async def copied(mq: MessageQueue) -> bool:
    return not (await mq.admin.stats(TOPIC)).pending


async def names(mq: MessageQueue) -> list[str]:
    return [one.name for one in await mq.admin.subscriptions(TOPIC)]


async def test_a_topic_shows_its_subscriptions_and_a_way_to_end_each(visitor: Visitor) -> None:
    page = await visitor.page(PAGE)
    for name in ("billing", "search"):
        assert f'href="/topics/{TOPIC}%40{name}"' in page
        assert f'href="{PAGE}/unsubscribe?name={name}"' in page
    assert page.count('<td data-label="Lag" class="num">2</td>') == 2
    assert "unsubscribe" not in await visitor.page(f"{PAGE}@billing")


async def test_a_subscription_is_ended_after_a_question(
    mq: MessageQueue, board: Dashboard, visitor: Visitor
) -> None:
    page = await visitor.page(PAGE)
    question = html.unescape(re.findall(r'href="([^"]+name=search)"', page)[0])
    asked = await visitor.page(question)
    assert "End this subscription?" in asked
    assert "<dt>Lag</dt><dd>2</dd>" in asked
    assert await names(mq) == ["billing", "search"]
    answer = await visitor.submit(question, "Unsubscribe", waiting="dead")
    assert "Subscription ended." in answer.text
    assert await names(mq) == ["billing"]
    dead = await mq.admin.list(f"{TOPIC}@search", State.DEAD)
    assert [one.reason for one in dead.messages] == ["unsubscribed"] * 2
    assert (await mq.admin.stats(f"{TOPIC}@billing")).pending == 2
    (entry,) = board.parts.audit_log.latest()
    assert (entry.did, entry.topic, entry.about, entry.outcome) == (
        *("unsubscribe", TOPIC, "subscription search", "2 messages dead-lettered"),
    )
    assert "subscription search" in await visitor.page("/log")
    assert "no such subscription" in await visitor.page(question, 409)


async def test_the_messages_that_wait_may_be_dropped(
    mq: MessageQueue, board: Dashboard, visitor: Visitor
) -> None:
    await visitor.submit(QUESTION, "Unsubscribe", waiting="drop")
    assert (await mq.admin.stats(f"{TOPIC}@search")).total == 0
    assert board.parts.audit_log.latest()[0].outcome == "2 messages dropped"


async def test_the_history_says_who_ended_it(mq: MessageQueue) -> None:
    async with Visitor(Dashboard(mq, authorize=lambda request: "anna@example.org")) as visitor:
        await visitor.submit(QUESTION, "Unsubscribe", waiting="dead")
    async for one in mq.admin.tail(TOPIC, since=0):
        if one.what is What.UNSUBSCRIBED:
            assert one.by == "anna@example.org"
            break


async def test_what_was_ended_before_is_not_ended_again(
    mq: MessageQueue, board: Dashboard, visitor: Visitor
) -> None:
    for notice in ("unsubscribed", "no_subscription"):
        answer = await visitor.post(f"{PAGE}/unsubscribe", name="search", waiting="dead")
        assert f"notice={notice}" in answer.headers["location"]
    outcomes = [one.outcome for one in board.parts.audit_log.latest()]
    assert outcomes == ["nothing done", "2 messages dead-lettered"]


async def test_a_wrong_form_ends_nothing_and_is_noted(
    mq: MessageQueue, board: Dashboard, visitor: Visitor
) -> None:
    good = {"name": "search", "waiting": "dead"}
    for change in ({"waiting": ""}, {"waiting": "burn"}, {"name": ""}, {"name": HOSTILE}):
        answer = await visitor.post(f"{PAGE}/unsubscribe", 400, **{**good, **change})
        assert "<script>alert" not in answer.text
    await visitor.post(f"{PAGE}/unsubscribe", 403, token="forged", **good)
    assert "<script>" not in await visitor.page(f"{PAGE}/unsubscribe?name=<script>", 409)
    assert await names(mq) == ["billing", "search"]
    entries = board.parts.audit_log.latest()
    assert [one.did for one in entries] == ["unsubscribe"] * 5
    assert all("refused" in one.outcome for one in entries)


async def test_a_read_only_dashboard_only_shows_them(mq: MessageQueue) -> None:
    board = Dashboard(mq, allow_all=True, read_only=True)
    async with Visitor(board) as visitor:
        page = await visitor.page(PAGE)
        assert f'href="/topics/{TOPIC}%40search"' in page
        assert "unsubscribe" not in page
        assert 'method="post"' not in await visitor.page(QUESTION)
    await board.close()
    assert await names(mq) == ["billing", "search"]
