"""How to test the application: with the testing kit of mx-rmq and the test client of Litestar.

In the directory above: python -m pytest litestar_invoices
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from litestar_invoices import invoices
from litestar_invoices.app import app, app_with_worker
from litestar_invoices.invoices import mq
from mx_rmq import MessageQueue
from mx_rmq.testing import assert_produced, drain

pytest_plugins = ["mx_rmq.testing"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoices, "INVOICE_SECONDS", 0.01)


@pytest.fixture
def client(mx_rmq_use: Callable[..., MessageQueue]) -> Iterator[TestClient[Litestar]]:
    """The application without a worker, on a test server."""
    mx_rmq_use(mq)
    with TestClient(app) as client:
        yield client


@pytest.fixture
def working(mx_rmq_use: Callable[..., MessageQueue]) -> Iterator[TestClient[Litestar]]:
    """The application that writes the invoices itself."""
    mx_rmq_use(mq)
    with TestClient(app_with_worker) as client:
        yield client


def started(client: TestClient[Litestar], **run: Any) -> str:
    answer = client.post("/runs", json=run)
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


def test_a_run_is_produced_and_a_drain_writes_the_invoices(client: TestClient[Litestar]) -> None:
    id = started(client, month="2026-11", customers=2)
    assert_produced(mq, "invoices.due", {"month": "2026-11", "customers": 2}, id=id)
    assert drain(mq).completed == 1
    assert client.get(f"/runs/{id}").json() == {
        "month": "2026-11",
        "numbers": ["2026-11-0001", "2026-11-0002"],
    }


def test_progress_comes_as_events_until_the_invoices_are_there(
    working: TestClient[Litestar],
) -> None:
    id = started(working, month="2026-11", customers=60)
    answer = working.get(f"/runs/{id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    *before, last = statuses(answer.iter_lines())
    assert any(status["note"].endswith("of 60") for status in before)
    assert last["state"] == "completed"
    assert len(working.get(f"/runs/{id}").json()["numbers"]) == 60


def test_a_run_can_be_aborted(working: TestClient[Litestar]) -> None:
    id = started(working, month="2026-11", customers=100_000)
    assert working.delete(f"/runs/{id}").json() is True
    assert working.delete(f"/runs/{id}").json() is False
    answer = working.get(f"/runs/{id}")
    assert answer.status_code == 410
    assert "aborted: stopped by the accountant" in answer.json()["detail"]


def test_what_is_unknown_or_wrong_is_refused(client: TestClient[Litestar]) -> None:
    assert client.get("/runs/never-started").status_code == 404
    assert client.post("/runs", json={"customers": 3}).status_code == 400
    assert list(statuses(client.get("/runs/never-started/events").iter_lines())) == []
