"""However much there is, a page looks at little and shows little, and says how to go on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mx_rmq.dashboard import pages
from mx_rmq.store import Store
from tests.dashboard.test_pages import text_of
from tests.lab.archives import corpse, fill
from tests.lab.messages import TOPIC

if TYPE_CHECKING:
    import pytest
    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from tests.dashboard.visitor import Visitor
    from tests.lab.servers import Server


async def test_workers_come_page_by_page(
    mq: MessageQueue, visitor: Visitor, server: Server
) -> None:
    async with await Store.open(server.url) as store:
        for number in range(120):
            await store.beat_worker(f"w-{number:03}", b"{}")
    shown, path = [], "/workers"
    while path:
        page = await visitor.page(path)
        assert "120 alive" in text_of(page)
        shown.append(re.findall(r'<h2 class="mono">(w-\d+)</h2>', page))
        following = re.search(r'data-next href="([^"]+)"', page)
        path = following[1] if following else ""
    assert [len(names) for names in shown] == [50, 50, 20]
    assert [name for names in shown for name in names] == [
        f"w-{number:03}" for number in range(120)
    ]
    assert "101 to 120 of 120" in text_of(page)
    for odd in ("120", "-1", "x", "9" * 30, "\u0663"):
        assert "120 alive" in text_of(await visitor.page(f"/workers?from={odd}"))


async def test_a_search_over_all_topics_shares_out_how_many_messages_it_looks_at(
    mq: MessageQueue,
    visitor: Visitor,
    raw: Redis,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "LOOK", 100)
    async with await Store.open(server.url) as store:
        every = [corpse(number, payload="old" if number < 40 else "new") for number in range(80)]
        await fill(store, raw, every, at=1_700_000_000_000)
    assert "No match among the newest" not in text_of(await visitor.page("/dead?text=old"))
    for number in range(4):  # now 20 for each
        await mq.produce(f"other.{number}", 1, id="x")
        keys = store.keys.of(f"other.{number}")
        await raw.zadd(keys.dlq, {"x": 1})
        await raw.hset(keys.dlq_payload, "x", b"?")
    page = await visitor.page("/dead?text=old")
    assert "No match among the newest" in text_of(page)
    further = re.search(r'href="([^"]+)">Search further', page)
    assert further
    assert further[1].startswith(f"/topics/{TOPIC}?")
    assert "d-000039" in await visitor.page("/topics/orders?state=dead&text=old")


async def test_an_id_that_a_topic_has_is_not_looked_for_in_histories(
    mq: MessageQueue, visitor: Visitor, raw: Redis
) -> None:
    await mq.produce("a", 1, id="here")
    await mq.produce("b", 1, id="gone")
    assert await mq.admin.cancel("b", "gone")
    await raw.config_resetstat()
    assert (await visitor.get("/find?id=here", 303)).headers["location"].startswith("/topics/a/")
    assert "cmdstat_xrevrange" not in await raw.info("commandstats")
    assert (await visitor.get("/find?id=gone", 303)).headers["location"].startswith("/topics/b/")
