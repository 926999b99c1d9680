"""How to test the application: with the testing kit of mx-rmq and the test client of FastAPI.

In the directory above: python -m pytest fastapi_reports
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import ASGITransport, AsyncClient

from fastapi_reports import reports
from fastapi_reports.app import app, app_with_worker
from fastapi_reports.reports import mq
from mx_rmq import MessageQueue, Worker
from mx_rmq.testing import assert_produced, drain

pytest_plugins = ["mx_rmq.testing"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "PAGE_SECONDS", 0.01)


@pytest.fixture
def client(mx_rmq_use: Callable[..., MessageQueue]) -> Iterator[TestClient]:
    """The application without a worker, on a test server."""
    mx_rmq_use(mq)
    with TestClient(app) as client:
        yield client


@pytest.fixture
def working(mx_rmq_use: Callable[..., MessageQueue]) -> Iterator[TestClient]:
    """The application that writes the reports itself."""
    mx_rmq_use(mq)
    with TestClient(app_with_worker) as client:
        yield client


def ordered(client: TestClient, **order: Any) -> str:
    answer = client.post("/reports", json=order)
    assert answer.status_code == 202
    return str(answer.json()["id"])


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield what the server sent, until the event that ends it."""
    for line in lines:
        if line == "event: end":
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
    pytest.fail("the stream had no end")


def test_an_order_is_produced_and_a_drain_writes_the_report(client: TestClient) -> None:
    id = ordered(client, title="sales", pages=2)
    assert_produced(mq, "report.ordered", {"title": "sales", "pages": 2}, id=id)
    assert drain(mq).completed == 1
    assert client.get(f"/reports/{id}").json() == {
        "title": "sales",
        "pages": ["Page 1 of sales", "Page 2 of sales"],
    }


def test_an_async_client_does_not_open_the_queue(mx_rmq_use: Callable[..., MessageQueue]) -> None:
    mx_rmq_use(mq)

    async def order() -> int:
        transport = ASGITransport(app=app)
        async with mq, AsyncClient(transport=transport, base_url="http://test") as client:
            await client.post("/reports", json={"title": "sales", "pages": 1})
            return (await Worker(mq).drain()).completed

    assert asyncio.run(order()) == 1


def test_progress_comes_as_events_until_the_report_is_there(working: TestClient) -> None:
    id = ordered(working, title="sales", pages=60)
    answer = working.get(f"/reports/{id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, *middle, last = events(answer.iter_lines())
    assert first["state"] in ("pending", "processing")
    shares = [one["progress"] for one in middle if one["progress"]]
    assert shares == sorted(shares)
    assert any(f"{one['note']}".endswith("of 60") for one in middle)
    assert last["state"] == "completed"
    assert len(working.get(f"/reports/{id}").json()["pages"]) == 60


def test_a_report_that_is_being_written_can_be_aborted(working: TestClient) -> None:
    id = ordered(working, title="everything", pages=100_000)
    while status(working, id).state != "processing":
        time.sleep(0.01)
    assert working.delete(f"/reports/{id}").json() is True
    assert working.delete(f"/reports/{id}").json() is False
    answer = working.get(f"/reports/{id}")
    assert answer.status_code == 410
    assert "aborted: stopped by the reader" in answer.json()["detail"]
    (end,) = events(working.get(f"/reports/{id}/events").iter_lines())
    assert (end["state"], end["reason"]) == ("dead", "aborted: stopped by the reader")


def test_an_order_that_waits_can_be_aborted(client: TestClient) -> None:
    id = ordered(client, title="sales")
    assert client.delete(f"/reports/{id}-2").json() is False
    assert client.delete(f"/reports/{id}").json() is True
    assert drain(mq).completed == 0


def test_what_is_unknown_or_wrong_is_refused(client: TestClient) -> None:
    assert client.get("/reports/never-ordered").status_code == 404
    assert client.post("/reports", json={"pages": 3}).status_code == 422
    assert client.delete("/reports/never-ordered").status_code == 422  # no topic yet
    assert list(events(client.get("/reports/never-ordered/events").iter_lines())) == []


def status(client: TestClient, id: str) -> Any:
    assert client.portal is not None
    return client.portal.call(mq.status, "report.ordered", id)
