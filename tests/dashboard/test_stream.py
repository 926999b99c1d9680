"""The figures that change by themselves: the sampler, its hour, and what pages hear of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.message import State
from mx_rmq.dashboard import Dashboard, queries, sampler, stream
from mx_rmq.dashboard.sampler import FIGURES, KEPT, Series
from tests.dashboard.visitor import Visitor
from tests.lab.archives import archived
from tests.lab.messages import TOPIC
from tests.runtime.stage import until

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from tests.lab.servers import Server


class Listener:
    """Hears a stream of events, as a browser does; httpx would wait for its end."""

    def __init__(self, board: Dashboard, query: str = "") -> None:
        self.text = ""
        self.gone = asyncio.Event()
        self._asked = False
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": "/live",
            "raw_path": b"/live",
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"host", b"localhost")],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
        }
        self.task = asyncio.create_task(board(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.gone.is_set():
            raise OSError("nobody listens any more")
        self.text += message.get("body", b"").decode()

    def events(self, name: str) -> list[Any]:
        return [
            json.loads(block.partition("\ndata: ")[2])
            for block in self.text.split("\n\n")
            if block.startswith(f"event: {name}\n")
        ]

    async def leave(self) -> None:
        self.gone.set()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


pytestmark = pytest.mark.usefixtures("quick")


async def test_pages_hear_every_change_without_being_loaded_again(
    mq: MessageQueue, board: Dashboard
) -> None:
    await mq.produce(TOPIC, 1)
    everything, one = Listener(board), Listener(board, f"topic={TOPIC}")
    await until(lambda: everything.events("sample") and one.events("sample"))
    await mq.produce_many(TOPIC, range(9))
    await mq.produce("mails", 1)
    await until(lambda: everything.events("sample")[-1]["all"]["pending"] == 11)
    await until(lambda: one.events("sample")[-1]["topics"][TOPIC]["pending"] == 10)
    assert list(one.events("sample")[-1]["topics"]) == [TOPIC]
    await mq.admin.pause(TOPIC)
    await until(lambda: everything.events("sample")[-1]["paused"] == [TOPIC])
    assert board.parts.sampler.listeners == 2
    await everything.leave()
    await one.leave()
    assert board.parts.sampler.listeners == 0


async def test_nothing_is_kept_of_topics_and_pages_that_there_are_not(
    mq: MessageQueue, board: Dashboard, visitor: Visitor
) -> None:
    await mq.produce(TOPIC, 1)
    seen = await board.parts.sampler.first()
    for number in range(50):
        assert json.loads(stream._sample_event(seen, f"t{number}", 1).partition("data: ")[2])[
            "topics"
        ]
        stream._sample_event(seen, None, number + 2)
        stream._sample_event(seen, TOPIC, number)
    assert not seen.events.keys() - {(None, 1), (TOPIC, 1)}
    for name in ("no%20topic", "x" * 129, "%00"):
        await visitor.get(f"/live?topic={name}", 404)


async def test_rates_are_what_happened_between_two_looks(
    mq: MessageQueue, board: Dashboard
) -> None:
    await mq.produce(TOPIC, 1)
    listener = Listener(board)
    await until(lambda: listener.events("sample"))
    await mq.produce_many(TOPIC, range(500))

    def counted() -> float:
        samples = pairwise(listener.events("sample"))
        return sum(
            float((later["all"]["produced"] or 0) * (later["at"] - earlier["at"]))
            for earlier, later in samples
        )

    await until(lambda: counted() > 499)
    assert counted() == pytest.approx(500, rel=0.01)
    await listener.leave()


async def test_pages_hear_that_the_server_is_away_and_that_it_is_back(
    mq: MessageQueue, board: Dashboard, server: Server
) -> None:
    await mq.produce(TOPIC, 1)
    listener = Listener(board)
    await until(lambda: listener.events("sample"))
    server.kill()
    try:
        await until(lambda: listener.events("away"))
    finally:
        server.start()
    heard = len(listener.events("sample"))
    await until(lambda: len(listener.events("sample")) > heard)
    await listener.leave()


async def test_a_server_that_froze_since_the_latest_look_is_not_called_healthy(
    mq: MessageQueue, board: Dashboard, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "EVERY", 3600)
    async with Visitor(board) as visitor:
        assert (await visitor.get("/healthz")).text == "ok\n"
        monkeypatch.setattr(queries, "ANSWERS_WITHIN", 0.2)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            answers = await asyncio.gather(*(visitor.get("/healthz", 503) for _ in range(20)))
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert {one.text for one in answers} == {"away\n"}
        assert board.parts.sampler.error is None  # it has not looked since


async def test_listeners_are_let_go_when_it_closes_and_too_many_are_refused(
    mq: MessageQueue, board: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "STREAMS", 1)
    listener = Listener(board)
    await until(lambda: listener.events("sample"))
    async with Visitor(board) as visitor:
        await visitor.get("/live", 503)
        await asyncio.wait_for(visitor.client.head("/live"), 5)
    await board.close()
    await asyncio.wait_for(listener.task, 5)
    assert board.parts.sampler.listeners == 0


async def test_of_many_that_come_at_once_no_more_than_allowed_may_listen(
    mq: MessageQueue, board: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "STREAMS", 3)
    listeners = [Listener(board) for _ in range(10)]
    await until(lambda: sum(bool(one.events("sample")) for one in listeners) == 3)
    assert sum("Too many pages" in one.text for one in listeners) == 7
    for one in listeners:
        await one.leave()
    assert board.parts.sampler.listeners == 0


async def test_a_stream_ends_by_itself_and_says_so(
    mq: MessageQueue, board: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "LASTS", 0.5)
    await board.parts.sampler.first()
    listener = Listener(board)
    await asyncio.wait_for(listener.task, 30)
    assert listener.events("sample")
    assert listener.text.endswith("event: again\ndata: {}\n\n")


async def test_charts_get_the_last_hour(mq: MessageQueue, visitor: Visitor) -> None:
    await archived(mq.store, State.DEAD, 2)
    for path in ("/live/series", f"/live/series?topic={TOPIC}"):
        chart = (await visitor.get(path)).json()
        assert list(chart) == ["at", *FIGURES]
        assert chart["dead"][-1] == 2
    assert list((await visitor.get("/live/sparks")).json()) == [TOPIC]
    assert (await visitor.get("/live/series?topic=nowhere")).json()["at"] == []


def test_a_series_keeps_an_hour_and_hides_no_peak() -> None:
    series = Series()
    now = 1_000_000.0
    for number in range(5000):
        series.add(now + number * 2, {"pending": float(number == 4990), "completed": 10.0})
    assert KEPT / 2 <= len(series) <= KEPT / 2 + 100
    chart = series.chart(now + 4999 * 2 - KEPT, 100)
    assert len(chart["at"]) <= 100
    assert max(one or 0 for one in chart["pending"]) == 1
    assert set(chart["completed"]) == {10.0}
    assert chart["oldest"][-1] is None
    assert series.chart(now + 4999 * 2 - 10, 100)["at"] == [now + 2 * n for n in range(4994, 5000)]


async def test_metrics_are_served_if_somebody_makes_them(mq: MessageQueue) -> None:
    async def metrics(accept: str) -> tuple[str, bytes]:
        return "text/plain; version=0.0.4", f"# {accept}\n".encode()

    async with Visitor(Dashboard(mq, allow_all=True, metrics=metrics)) as visitor:
        answer = await visitor.get("/metrics", headers={"Accept": "text/plain"})
        assert answer.text == "# text/plain\n"
        assert answer.headers["content-type"] == "text/plain; version=0.0.4"
    async with Visitor(Dashboard(mq, allow_all=True)) as visitor:
        await visitor.get("/metrics", 404)


async def test_of_many_topics_some_are_looked_at_and_a_page_hears_of_its_own(
    mq: MessageQueue, board: Dashboard, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MOST", 3)
    monkeypatch.setattr(sampler, "ROWS", 2)
    for topic in ("a", "all", "b", "c"):
        await mq.produce(topic, 1)
    rows = [
        re.findall(r'data-topic-row="([^"]+)"', await visitor.page(f"/?page={number}"))
        for number in (1, 2, 3)
    ]
    assert rows == [["a", "all"], ["b"], []]
    page = await visitor.page("/")
    assert 'data-next href="/?page=2#topics-title"' in page
    assert "Showing the first 3 of 4 topics, by name." in page
    assert 'data-live="*"' in page  # no topic has this name
    assert list((await visitor.get("/live/sparks?page=2")).json()) == ["b"]
    listeners = [Listener(board, "page=2"), Listener(board, "page=2"), Listener(board, "topic=c")]
    await until(lambda: all(one.events("sample") for one in listeners))
    assert [list(one.events("sample")[-1]["topics"]) for one in listeners] == [["b"], ["b"], ["c"]]
    assert listeners[0].events("sample")[-1]["count"] == 3
    for one in listeners:
        await one.leave()


@pytest.mark.corrupts
async def test_a_topic_that_is_gone_is_forgotten(
    mq: MessageQueue, board: Dashboard, raw: Redis
) -> None:
    await mq.produce(TOPIC, 1)
    kept = board.parts.sampler
    await kept.first()
    assert len(kept.series(TOPIC)) > 0
    await raw.flushall()
    await until(lambda: not len(kept.series(TOPIC)))


async def test_a_slow_look_is_given_up_and_said(
    mq: MessageQueue, board: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(sampler, "WITHIN", 0.05)
    monkeypatch.setattr(board.parts.queries, "overview", never)
    began = time.monotonic()
    async with Visitor(board) as visitor:
        page = await visitor.page("/", 503)
    assert "That took too long" in page
    assert "The server is up" in page
    assert time.monotonic() - began < 5
