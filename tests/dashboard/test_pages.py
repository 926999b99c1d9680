"""The pages that show something, over HTTP: every route, on a real server."""

from __future__ import annotations

import asyncio
import html
import json
import re
from typing import TYPE_CHECKING

import msgspec
import pytest

from mx_rmq import MessageQueue, Worker
from mx_rmq.admin import MessageView
from mx_rmq.core.message import State
from mx_rmq.core.status import ProgressNote
from mx_rmq.dashboard import Dashboard, queries
from tests.dashboard.visitor import HOSTILE, Visitor
from tests.lab.archives import archived
from tests.lab.messages import TOPIC, bring, leased
from tests.runtime.stage import until_so

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.servers import Server


def text_of(page: str) -> str:
    """Return what a reader sees of a page, its white space made plain."""
    main = page[page.index("<main") : page.index("</main>")]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main)).split())


async def test_an_empty_queue_says_what_to_do_on_every_page(visitor: Visitor) -> None:
    assert "mx-rmq produce orders" in text_of(await visitor.page("/"))
    assert "No dead letters" in text_of(await visitor.page("/dead"))
    assert "Nothing is quarantined" in text_of(await visitor.page("/quarantine"))
    assert "mx-rmq worker MODULE" in text_of(await visitor.page("/workers"))
    assert "No actions yet" in text_of(await visitor.page("/log"))
    assert "Enter an id" in text_of(await visitor.page("/find"))


async def test_the_overview_counts_every_state_and_says_what_needs_attention(
    mq: MessageQueue, visitor: Visitor
) -> None:
    await archived(mq.store, State.DEAD, 3)
    await archived(mq.store, State.QUARANTINED, 2)
    await leased(mq.store, 4)
    await mq.produce_many(TOPIC, range(1200))
    await mq.produce("mails", 1)
    await mq.admin.pause("mails")
    page = await visitor.page("/")
    counted = dict(re.findall(r'data-topic="orders" data-figure="(\w+)">([^<]*)<', page))
    assert counted["pending"] == "1,200"
    assert (counted["processing"], counted["dead"], counted["quarantined"]) == ("4", "3", "2")
    text = text_of(page)
    assert "orders : 1,200 pending and 4 in processing, but no live worker serves the topic" in text
    assert "mails : paused, 1 pending" in text
    assert "orders : 3 dead messages" in text


@pytest.mark.parametrize("state", State)
async def test_the_topic_page_lists_each_state(
    mq: MessageQueue, visitor: Visitor, state: State
) -> None:
    if state is State.PENDING:
        id = await mq.produce(TOPIC, {"number": 42})
    elif state is State.PROCESSING:
        id = (await leased(mq.store))[0].id
    else:
        id = (await bring(mq.store, state)).id
    page = await visitor.page(f"/topics/{TOPIC}?state={state}")
    assert f"/topics/{TOPIC}/message?id={id}" in page
    assert f'aria-current="true" class="{state}"' in page


async def test_a_list_is_turned_page_by_page_and_searched(
    mq: MessageQueue, visitor: Visitor
) -> None:
    ids = await mq.produce_many(TOPIC, [{"number": number} for number in range(120)])
    seen: list[str] = []
    path = f"/topics/{TOPIC}?state=pending&limit=50"
    while True:
        page = await visitor.page(path)
        seen += re.findall(r'data-row href="[^"]*\?id=([^"&]+)', page)
        following = re.search(r'data-next href="([^"#]+)', page)
        if following is None:
            break
        path = html.unescape(following[1])
    assert seen == ids
    page = await visitor.page(f"/topics/{TOPIC}?state=pending&text=%22number%22:117")
    assert re.findall(r'data-row href="[^"]*\?id=([^"&]+)', page) == [ids[117]]
    nothing = text_of(await visitor.page(f"/topics/{TOPIC}?state=pending&text=nowhere&last=1h"))
    assert "No match: “nowhere” in the id or the payload, from" in nothing


async def test_the_archives_are_searched_over_all_topics(
    mq: MessageQueue, visitor: Visitor
) -> None:
    await archived(mq.store, State.DEAD, 12)
    page = await visitor.page("/dead?error=valueerr")
    assert len(re.findall("data-row", page)) == 10
    assert "All matches" in page
    assert "No match" in text_of(await visitor.page("/dead?error=KeyError"))
    await archived(mq.store, State.QUARANTINED)
    assert "ValueError: no" in text_of(await visitor.page("/quarantine?last=15m"))


async def test_what_can_be_done_to_all_messages_stands_above_them(
    mq: MessageQueue, visitor: Visitor
) -> None:
    await archived(mq.store, State.DEAD, 3)
    page = await visitor.page(f"/topics/{TOPIC}?state=dead")
    assert 0 < page.index("Requeue all…") < page.index("Discard all…") < page.index("data-row")


async def test_a_message_is_shown_with_its_errors_headers_and_payload(
    mq: MessageQueue, visitor: Visitor
) -> None:
    @mq.handler("payments", max_attempts=1)
    async def charge(payment: dict[str, int | None]) -> None:
        raise ConnectionError("the bank does not answer")

    id = await mq.produce("payments", {"order": 7, "ünï": None}, headers={"trace": "abc"})
    await Worker(mq).drain()
    text = text_of(await visitor.page(f"/topics/payments/message?id={id}"))
    assert "dead" in text
    assert "ConnectionError : the bank does not answer" in text
    assert 'raise ConnectionError("the bank does not answer")' in text
    assert '{ "order": 7, "ünï": null }' in text
    assert "trace abc" in text
    assert "1 attempt failed." in text
    answer = await visitor.get(f"/topics/payments/raw?id={id}")
    found = await mq.admin.get("payments", id)
    assert found is not None
    assert answer.content == found.raw
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "attachment" in answer.headers["content-disposition"]
    assert await mq.admin.requeue("payments", id)
    await Worker(mq).drain()
    text = text_of(await visitor.page(f"/topics/payments/message?id={id}"))
    assert "1 attempt failed since it was requeued. 1 before that." in text


async def test_a_message_has_a_history_also_when_it_is_finished(
    mq: MessageQueue, visitor: Visitor
) -> None:
    @mq.handler("mails")
    async def send(mail: str) -> None:
        pass

    id = await mq.produce("mails", "hello")
    await Worker(mq, name="w-1").drain()
    text = text_of(await visitor.page(f"/topics/mails/message?id={id}"))
    assert "no longer in the topic" in text
    assert re.search(r"produced .* dispatched by w-1 .* completed by w-1", text)
    assert re.search(r"The history of this topic reaches back to 20\S+ ", text)
    answer = await visitor.get(f"/find?id={id}", 303)
    assert answer.headers["location"] == f"/topics/mails/message?id={id}"


async def test_a_message_that_is_older_than_the_history_says_so(
    mq: MessageQueue, visitor: Visitor
) -> None:
    id = await mq.produce("mails", "hello")
    key = mq.store.keys.of("mails").history
    await mq.store.caller.command("XTRIM", key, "MAXLEN", "0")
    page = f"/topics/mails/message?id={id}"
    assert "No history: it is empty or turned off." in text_of(await visitor.page(page))
    await asyncio.sleep(0.002)  # the next one has a later millisecond
    await mq.produce("mails", "hello")
    told = text_of(await visitor.page(page))
    assert "No history: the message is older than the history of its topic." in told


async def test_a_huge_payload_is_shown_in_part_and_not_decoded(
    mq: MessageQueue, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await mq.produce(TOPIC, [{"n": number, "x": [1, 2]} for number in range(40_000)])

    def never(message: MessageView) -> str:
        raise AssertionError("a long payload was decoded")

    monkeypatch.setattr(MessageView, "_decoded", property(never))
    page = await visitor.page(f"/topics/{TOPIC}/message?id={id}")
    assert len(page) < 500_000  # every quotation mark has five characters
    assert "Truncated: " in page
    page = await visitor.page(f"/topics/{TOPIC}")
    assert "KiB: [{&#34;n&#34;:0," in page
    assert len(page) < 30_000
    assert "0,&#34;x" in await visitor.page(f"/topics/{TOPIC}/cancel?id={id}")


async def test_times_without_a_date_are_shown_as_numbers(
    mq: MessageQueue, visitor: Visitor, raw: Redis
) -> None:
    id = await mq.produce(TOPIC, 1)
    payload = mq.store.keys.of(TOPIC).payload
    record = json.loads(await raw.hget(payload, id) or b"")
    for created_at in (99_999_999_999_999_999, 9_223_372_036_854_775_807):
        await raw.hset(payload, id, json.dumps({**record, "created_at": created_at}))
        for path in (f"/topics/{TOPIC}?state=pending", f"/topics/{TOPIC}/message?id={id}"):
            assert f"{created_at / 1000:g} s" in await visitor.page(path)


async def test_whatever_foreign_hands_wrote_is_shown_and_nothing_of_it_is_markup(
    mq: MessageQueue, visitor: Visitor, raw: Redis
) -> None:
    await mq.produce(TOPIC, {HOSTILE: HOSTILE}, id="mild", headers={HOSTILE: HOSTILE})
    keys = mq.store.keys.of(TOPIC)
    for id in (b"\xff\xfe", HOSTILE.encode(), b"a/../b?c#d%2f&notice=requeued", b""):
        await raw.hset(keys.payload, id, HOSTILE.encode() + b"\xff")
        await raw.lpush(keys.pending, id)
    await mq.admin.pause(TOPIC)
    await raw.hset(mq.store.keys.workers, HOSTILE, f'9999999999999 {{"host": "{HOSTILE[:20]}"}}')
    page = await visitor.page(f"/topics/{TOPIC}?state=pending")
    links = [html.unescape(link) for link in re.findall(r'data-row href="([^"]+)', page)]
    assert len(links) == 5
    for path in (
        *links,
        f"/topics/{TOPIC}?state=pending&text=%3Cscript%3E&error=%22%3E",
        "/workers",
    ):
        page = await visitor.page(path)
        harmless(page)
    assert "\\udcff" in await visitor.page(links[1])
    harmless(await visitor.page("/find?id=%3Cscript%3E%22"))
    harmless(await visitor.page("/topics/%3Cscript%3E", 404))
    harmless(await visitor.page("/%3Cscript%3E", 404))
    assert await mq.admin.cancel(TOPIC, "mild")
    await raw.flushall()


def harmless(page: str) -> None:
    """Only tags of ours, no handler and no style in an attribute, nothing that cannot be seen."""
    assert "<script>" not in page
    assert "<img src=x" not in page
    assert "49" not in re.findall(r"\{\{.{0,5}", page)
    assert not re.search(r"<[^>]*\s(on\w+|style)=", page)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)


async def test_an_id_is_found_in_whichever_topic_has_it(
    mq: MessageQueue, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.produce("a", 1, id="same")
    await mq.produce("b", 1, id="same")
    await mq.produce("b", 1, id="alone")
    answer = await visitor.get("/find?id=alone", 303)
    assert answer.headers["location"] == "/topics/b/message?id=alone"
    assert "is in 2 topics" in text_of(await visitor.page("/find?id=same"))
    assert "Not found" in text_of(await visitor.page("/find?id=none"))
    monkeypatch.setattr(queries, "FIND_WITHIN", 0)
    assert "Not all topics could be searched" in text_of(await visitor.page("/find?id=none"))


async def test_workers_show_what_they_run(
    mq: MessageQueue, visitor: Visitor, server: Server
) -> None:
    begun = asyncio.Event()

    @mq.handler("slow")
    async def sleep(payload: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with MessageQueue(server.url) as other:
        other.handlers = mq.handlers
        worker = Worker(other, name="w-1", grace=0)
        async with worker:
            id = await mq.produce("slow", 1)
            await asyncio.wait_for(begun.wait(), 10)
            assert worker._engine is not None
            await worker._engine.beat()
            text = text_of(await visitor.page("/workers"))
            assert "w-1 alive" in text
            assert re.search(rf"{id} slow .*sleep 1 ", text)


async def test_workers_show_their_batches(
    mq: MessageQueue, visitor: Visitor, server: Server
) -> None:
    begun = asyncio.Event()

    @mq.handler("slow", batch=3, linger=60)
    async def sleep(payloads: list[int]) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with MessageQueue(server.url) as other:
        other.handlers = mq.handlers
        worker = Worker(other, name="w-1", grace=0)
        async with worker:
            id, *_ = await mq.produce_many("slow", [1, 2, 3])
            await asyncio.wait_for(begun.wait(), 10)
            assert worker._engine is not None
            await worker._engine.beat()
            text = text_of(await visitor.page("/workers"))
            assert "slow (batches of 3)" in text
            assert f"{id} and 2 more slow" in text


async def test_wrong_addresses_get_a_page_that_says_so(visitor: Visitor, mq: MessageQueue) -> None:
    await mq.produce(TOPIC, 1)
    assert "No such topic" in await visitor.page("/topics/orderz", 404)
    assert "There is no message" in await visitor.page(f"/topics/{TOPIC}/message?id=x", 404)
    assert "is not one of pending" in text_of(await visitor.page(f"/topics/{TOPIC}?state=x", 400))
    assert "is not a time" in await visitor.page(f"/topics/{TOPIC}?since=yesterday", 400)
    assert "is not the cursor of an earlier page" in text_of(
        await visitor.page(f"/topics/{TOPIC}?cursor=x&state=dead", 400)
    )
    await visitor.page("/jobs/7", 404)
    await visitor.page("/nothing", 404)
    assert (await visitor.client.get("/topics/orders/pause")).status_code == 405


@pytest.mark.usefixtures("quick")
async def test_a_server_that_is_away_is_said_on_every_page(
    mq: MessageQueue, visitor: Visitor, server: Server
) -> None:
    await mq.produce(TOPIC, 1)
    await visitor.page("/")
    server.kill()
    try:
        page = text_of(await visitor.page(f"/topics/{TOPIC}", 503))
        assert "The server is unreachable" in page
        assert "mx-rmq doctor" in page

        async def noticed() -> bool:
            return (await visitor.client.get("/healthz")).status_code == 503

        await until_so(noticed)
        assert "The server is unreachable" in await visitor.page("/", 503)
    finally:
        server.start()

    async def back() -> bool:
        return (await visitor.client.get("/healthz")).status_code == 200

    await until_so(back)


async def test_a_queue_that_is_not_open_is_said(server: Server) -> None:
    mq = MessageQueue(server.url)
    async with Visitor(Dashboard(mq, allow_all=True)) as visitor:
        assert "async with mq" in await visitor.page("/workers", 503)


async def test_a_running_message_shows_its_progress_with_an_escaped_note(
    mq: MessageQueue, visitor: Visitor
) -> None:
    (held,) = await leased(mq.store)
    report = msgspec.json.encode(ProgressNote(0.4, HOSTILE))
    await mq.store.note_progress(TOPIC, "w1", [(held, report)], keep=60_000)
    page = await visitor.page(f"/topics/{TOPIC}/message?id={held.id}")
    assert "Progress 40%" in text_of(page)
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)" in page
