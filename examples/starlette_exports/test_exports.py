"""How to test the application: with the testing kit of mx-rmq and the test client of Starlette.

In the directory above: python -m pytest starlette_exports
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from mx_rmq import MessageQueue
from mx_rmq.testing import assert_produced, drain
from starlette_exports import exports
from starlette_exports.app import app, app_with_worker
from starlette_exports.exports import mq

pytest_plugins = ["mx_rmq.testing"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "PAGE_SECONDS", 0.01)


@pytest.fixture
def client(mx_rmq_use: Callable[..., MessageQueue]) -> Iterator[TestClient]:
    """The application without a worker, on a test server."""
    mx_rmq_use(mq)
    with TestClient(app) as client:
        yield client


@pytest.fixture
def working(mx_rmq_use: Callable[..., MessageQueue]) -> Iterator[TestClient]:
    """The application that writes the exports itself."""
    mx_rmq_use(mq)
    with TestClient(app_with_worker) as client:
        yield client


def ordered(client: TestClient, **export: Any) -> str:
    answer = client.post("/exports", json=export)
    assert answer.status_code == 202
    return str(answer.json()["id"])


def statuses(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the statuses that the server sent, until the event that ends them."""
    for line in lines:
        if line == "event: end":
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
    pytest.fail("the stream had no end")


def test_an_order_is_produced_and_a_drain_writes_the_table(client: TestClient) -> None:
    id = ordered(client, table="users", rows=2)
    assert_produced(mq, "export.ordered", {"table": "users", "rows": 2}, id=id)
    assert drain(mq).completed == 1
    assert client.get(f"/exports/{id}").text == "table,row\nusers,1\nusers,2\n"


def test_progress_comes_as_events_until_the_table_is_there(working: TestClient) -> None:
    id = ordered(working, table="users", rows=3000)
    answer = working.get(f"/exports/{id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    *before, last = statuses(answer.iter_lines())
    assert any(status["note"].endswith("of 3000 rows") for status in before)
    assert last["state"] == "completed"
    assert working.get(f"/exports/{id}").text.endswith("users,3000\n")


def test_an_export_that_is_being_written_can_be_aborted(working: TestClient) -> None:
    id = ordered(working, table="everything", rows=10_000_000)
    assert working.delete(f"/exports/{id}").json() is True
    assert working.delete(f"/exports/{id}").json() is False
    answer = working.get(f"/exports/{id}")
    assert answer.status_code == 410
    assert "aborted: stopped by the reader" in answer.json()["detail"]


def test_what_is_unknown_or_wrong_is_refused(client: TestClient) -> None:
    assert client.get("/exports/never-ordered").status_code == 404
    assert client.post("/exports", json={"rows": 3}).status_code == 422
    assert client.post("/exports", content=b"rows").status_code == 422
    assert list(statuses(client.get("/exports/never-ordered/events").iter_lines())) == []
