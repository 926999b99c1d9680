"""Keys and limits in the dashboard, over HTTP: what is shown, and what can be changed."""

from __future__ import annotations

import html
import json
import logging
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from mx_rmq.admin import HeldBack, LimitView
from mx_rmq.core.limits import Limit, Rate, declared
from mx_rmq.dashboard import Dashboard
from tests.dashboard.visitor import Visitor
from tests.lab.messages import TOPIC
from tests.runtime.stage import until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mx_rmq import MessageQueue

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}\u202e"


async def fill(mq: MessageQueue, **counts: int) -> None:
    for key, count in counts.items():
        await mq.produce_many(TOPIC, list(range(count)), keys=[key] * count)


async def dispatch(mq: MessageQueue, count: int, limits: str = "") -> int:
    found = await mq.store.dispatch_in_turn(TOPIC, "w", count=count, lease=60_000, limits=limits)
    return len(found.messages)


def rows(page: str) -> list[list[str]]:
    """Return the text of the cells of every row of a page's tables."""
    found = []
    for row in re.findall(r"<tr>(.*?)</tr>", page.partition("<tbody>")[2], re.DOTALL):
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        found.append([html.unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in cells])
    return found


async def test_keys_are_shown_with_what_limits_them(mq: MessageQueue, visitor: Visitor) -> None:
    await fill(mq, noisy=5, quiet=1)
    await mq.produce(TOPIC, 1)
    await mq.produce(TOPIC, 1)
    await dispatch(mq, 3, declared(None, Limit(running=1)))
    page = await visitor.page(f"/topics/{TOPIC}/keys")
    noisy, plain, quiet = rows(page)
    assert (noisy[0], noisy[1], noisy[3:]) == ("noisy", "4", ["1", "80%", "running 1 of 1"])
    assert (plain[0], plain[1], plain[3]) == ("messages without a key", "1", "–")
    assert (quiet[0], quiet[1], quiet[3]) == ("quiet", "0", "1")
    assert "1 key waiting, 1 of them limited" in page
    found = rows(await visitor.page(f"/topics/{TOPIC}/keys?key=nobody"))
    assert found[0][0] == "nobody"
    topic = await visitor.page(f"/topics/{TOPIC}")
    assert "1 waiting, 1 limited</a>" in topic
    assert "<dt>Each key</dt><dd>running 1</dd>" in topic


async def test_a_topic_without_keys_says_so(mq: MessageQueue, visitor: Visitor) -> None:
    await mq.produce(TOPIC, 1, delay=60)
    assert "No keys." in await visitor.page(f"/topics/{TOPIC}/keys")
    page = await visitor.page(f"/topics/{TOPIC}")
    assert "<dt>Keys</dt>" not in page
    assert "<dt>Limits</dt>" not in page


async def test_the_topic_shows_its_limits_and_what_blocks_it(
    mq: MessageQueue, visitor: Visitor
) -> None:
    await fill(mq, a=3)
    await mq.admin.limit(TOPIC, running=1, rate="100/m")
    assert await dispatch(mq, 3) == 1
    page = await visitor.page(f"/topics/{TOPIC}")
    assert "<dt>Limits</dt><dd>running 1, rate 100/m, burst 1</dd>" in page
    assert "<dt>Held back</dt><dd>running 1 of 1</dd>" in page
    keys = await visitor.page(f"/topics/{TOPIC}/keys")
    assert "No message of this topic may start now: running 1 of 1." in keys
    await mq.admin.pause(TOPIC, seconds=600, reason="<b>")
    page = await visitor.page(f"/topics/{TOPIC}")
    assert re.search(
        r"<dt>Held back</dt><dd>paused for (10 min|9 min 5\d s).*: &lt;b&gt;</dd>", page
    )


async def test_limits_of_a_topic_are_set_and_restored(mq: MessageQueue, visitor: Visitor) -> None:
    await mq.produce(TOPIC, 1)
    where = f"/topics/{TOPIC}/limits"
    answer = await visitor.submit(where, "Set limits", running="5", rate="50/s")
    assert "Limits changed." in answer.text
    assert (await mq.admin.limits(TOPIC)).set == LimitView(running=5, rate=Rate(50, 1, 5))
    answer = await visitor.submit(where, "Set limits", running="", rate="50/s")
    assert (await mq.admin.limits(TOPIC)).set == LimitView(rate=Rate(50, 1, 5))
    answer = await visitor.submit(where, "Set limits", running="", rate="50/s")
    assert "Nothing changed: the limits are as they were." in answer.text


async def test_a_form_changes_only_what_the_operator_changed(
    mq: MessageQueue, visitor: Visitor
) -> None:
    await mq.produce(TOPIC, 1)
    await mq.admin.limit(TOPIC, rate=Rate(50, 1, 40))  # while the form is open: it showed none
    await visitor.post(f"/topics/{TOPIC}/limits", running="3", was_running="", rate="", was_rate="")
    assert (await mq.admin.limits(TOPIC)).set == LimitView(running=3, rate=Rate(50, 1, 40))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"running": "many"}, "is not a whole number from 0"),
        ({"running": "-1"}, "is not a whole number from 0"),
        ({"rate": "fast"}, "is not a rate such as 50/s, 100/m or 1000/h"),
        ({"weight": "2"}, "needs key="),
    ],
)
async def test_a_limit_that_makes_no_sense_is_refused(
    mq: MessageQueue, visitor: Visitor, fields: dict[str, str], text: str
) -> None:
    await mq.produce(TOPIC, 1)
    answer = await visitor.post(f"/topics/{TOPIC}/limits", 400, **fields)
    assert text in html.unescape(answer.text)
    assert not (await mq.admin.limits(TOPIC)).set


async def test_a_key_is_limited_paused_and_resumed(mq: MessageQueue, visitor: Visitor) -> None:
    await fill(mq, a=1)
    where = f"/topics/{TOPIC}/limits?key=a"
    answer = await visitor.submit(where, "Set limits", running="2", rate="", weight="0.5")
    assert "Limits changed." in answer.text
    assert '<h1>Key <span class="mono">a</span>' in answer.text
    answer = await visitor.submit(where, "Pause", seconds="600", reason="their API is down")
    assert "Paused." in answer.text
    view = await mq.admin.key(TOPIC, "a")
    assert (view.running_limit, view.weight) == (2, 0.5)
    assert view.limited_by is not None
    assert (view.limited_by.by, view.limited_by.reason) == ("paused", "their API is down")
    assert not (await mq.admin.stats(TOPIC)).paused
    answer = await visitor.submit(where, "Resume")
    assert "Resumed." in answer.text
    assert (await mq.admin.key(TOPIC, "a")).limited_by is None
    await visitor.post(f"/topics/{TOPIC}/resume?key=a")
    answer = await visitor.submit(f"/topics/{TOPIC}/limits", "Pause", seconds="", reason="later")
    assert "Paused." in answer.text
    assert (await mq.admin.limits(TOPIC)).held_back == HeldBack(by="paused", reason="later")
    assert "<dt>Set</dt><dd>running 2, weight 0.5</dd>" in await visitor.page(where)


async def test_what_was_done_to_a_key_is_in_the_audit_log(
    mq: MessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(mq, a=1)
    caplog.set_level(logging.INFO, logger="mx_rmq.dashboard.audit")
    where = f"/topics/{TOPIC}/limits?key=a"
    async with Visitor(Dashboard(mq, authorize=lambda request: "ann")) as visitor:
        await visitor.submit(where, "Set limits", running="2", rate="", weight="")
        await visitor.submit(where, "Pause", seconds="600", reason="why not")
        await visitor.submit(where, "Resume")
        await visitor.post(where, 400, running="x")
        log = await visitor.page("/log")
    entries = [json.loads(one.message) for one in caplog.records if "audit" in one.name]
    assert [(one["did"], one.get("about", ""), one["who"]) for one in entries] == [
        ("limit", "key a: running 2", "ann"),
        ("pause", "key a: for 10 min 0 s: why not", "ann"),
        ("resume", "key a", "ann"),
        ("limit", "", "ann"),
    ]
    assert entries[-1]["outcome"].startswith("refused: running='x'")
    assert "key a: for 10 min 0 s: why not" in log
    happened = [one async for one in _limited(mq)]
    assert happened == ["ann"] * 3


async def _limited(mq: MessageQueue) -> AsyncIterator[str]:
    count = 0
    async for one in mq.admin.tail(TOPIC, since=0.0):
        if one.what == "limited":
            yield one.by
            count += 1
        if count == 3:
            return


async def test_keys_are_escaped_wherever_they_are_shown(mq: MessageQueue, visitor: Visitor) -> None:
    id = await mq.produce(TOPIC, 1, key=HOSTILE)
    await mq.admin.limit(TOPIC, HOSTILE, running=0)
    await mq.admin.pause(TOPIC, HOSTILE, reason=HOSTILE)
    key = quote(HOSTILE)
    await visitor.post(f"/topics/{TOPIC}/pause?key={key}", reason=HOSTILE)
    for path in (
        f"/topics/{TOPIC}",
        f"/topics/{TOPIC}/keys",
        f"/topics/{TOPIC}/keys?key={key}",
        f"/topics/{TOPIC}/limits",
        f"/topics/{TOPIC}/limits?key={key}",
        f"/topics/{TOPIC}/message?id={id}",
        "/log",
        "/",
    ):
        page = await visitor.page(path)
        assert "<script>alert" not in page, path
        assert "<img" not in re.sub(r'<img src="[^"]*icon.svg"', "", page), path
        assert "\u202e" not in page, path
    found = rows(await visitor.page(f"/topics/{TOPIC}/keys"))
    assert found[0][0].startswith("<script>alert(1)</script>")
    link = re.findall(r'data-row href="([^"]+)"', await visitor.page(f"/topics/{TOPIC}/keys"))[0]
    assert "Key <span" in await visitor.page(html.unescape(link))


async def test_the_messages_of_a_key_are_listed_and_cancelled(
    mq: MessageQueue, visitor: Visitor
) -> None:
    await fill(mq, a=3, b=2)
    page = await visitor.page(f"/topics/{TOPIC}/limits?key=a")
    (link,) = re.findall(r"<dt>Waiting</dt><dd><a href=\"([^\"]+)\">3</a>", page)
    found = await visitor.page(html.unescape(link))
    assert len(rows(found)) == 3
    (bulk,) = re.findall(r'href="([^"]+act=cancel[^"]+)"', found)
    assert "with the key “a”" in await visitor.page(html.unescape(bulk))
    answer = await visitor.submit(html.unescape(bulk), "Cancel them")
    assert answer.status_code == 200
    await until_so(lambda: _is_left(mq, 2))


async def _is_left(mq: MessageQueue, count: int) -> bool:
    return (await mq.admin.stats(TOPIC)).pending == count


async def test_a_key_that_produce_refuses_is_refused(mq: MessageQueue, visitor: Visitor) -> None:
    await mq.produce(TOPIC, 1)
    for path in ("keys", "limits"):
        assert "is not a string of 1 to 128" in await visitor.page(
            f"/topics/{TOPIC}/{path}?key=%09", 400
        )


async def test_who_may_only_read_sees_limits_without_forms(mq: MessageQueue) -> None:
    await fill(mq, a=1)
    board = Dashboard(mq, allow_all=True, read_only=True)
    async with Visitor(board) as visitor:
        page = await visitor.page(f"/topics/{TOPIC}/limits?key=a")
        assert "This dashboard is read-only." in page
        assert 'method="post"' not in page
        assert rows(await visitor.page(f"/topics/{TOPIC}/keys"))[0][0] == "a"
    await board.close()
