"""The FastAPI application: tested as its author would test it, then run as its users run it."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi.testclient import TestClient
from playwright.async_api import expect

from fastapi_reports import reports
from fastapi_reports.app import app
from fastapi_reports.reports import mq
from mx_rmq.testing import assert_produced, drain
from tests.cli.running import running, until
from tests.dashboard.scene import chromium
from tests.lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mx_rmq import MessageQueue

pytest_plugins = ["mx_rmq.testing"]

HOSTILE = "<img src=x onerror=alert(1)> & 'co'"


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
def working(
    mx_rmq_use: Callable[..., MessageQueue], monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    """The application that writes the reports itself."""
    mx_rmq_use(mq)
    monkeypatch.setenv("REPORTS_WORKER", "inside")
    with TestClient(app) as client:
        yield client


def ordered(client: TestClient | httpx.Client, **order: Any) -> str:
    answer = client.post("/reports", json=order)
    assert answer.status_code == 202
    return str(answer.json()["id"])


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield what the server sent."""
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


# with the testing kit


def test_an_order_is_produced_and_a_drain_writes_the_report(client: TestClient) -> None:
    id = ordered(client, title="sales", pages=2)
    assert_produced(mq, "report.ordered", {"title": "sales", "pages": 2}, id=id)
    assert drain(mq).completed == 1
    assert client.get(f"/reports/{id}").json() == {
        "title": "sales",
        "pages": ["Page 1 of sales", "Page 2 of sales"],
    }


def test_progress_comes_as_events_until_the_report_is_there(working: TestClient) -> None:
    id = ordered(working, title="sales", pages=200)
    answer = working.get(f"/reports/{id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, *middle, last = events(answer.iter_lines())
    assert first["state"] in ("pending", "processing")
    shares = [one["progress"] for one in middle if one["progress"]]
    assert shares == sorted(shares)
    assert any(f"{one['note']}".endswith("of 200") for one in middle)
    assert last["state"] == "completed"
    assert len(working.get(f"/reports/{id}").json()["pages"]) == 200


def test_a_report_that_is_being_written_can_be_aborted(working: TestClient) -> None:
    id = ordered(working, title="everything", pages=100_000)
    until(lambda: status(working, id).state == "processing")
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
    assert client.get("/reports/nobody-ordered-it").status_code == 404
    assert client.post("/reports", json={"pages": 3}).status_code == 422
    assert client.delete("/reports/nobody-ordered-it").status_code == 422  # no topic yet
    assert list(events(client.get("/reports/nobody-ordered-it/events").iter_lines())) == []


def status(client: TestClient, id: str) -> Any:
    assert client.portal is not None
    return client.portal.call(mq.status, "report.ordered", id)


# as processes


@contextmanager
def served(url: str, directory: Path, **environment: str) -> Iterator[str]:
    """Run the application with uvicorn; yield its address."""
    port = free_port()
    words = ("-m", "uvicorn", "fastapi_reports.app:app", "--port", str(port))
    environment |= {"MX_RMQ_URL": url}
    with running(directory, *words, program=[sys.executable], **environment) as web:
        web.until_told("Application startup complete")
        yield f"http://127.0.0.1:{port}"


def test_one_process_serves_and_writes(mx_rmq_url: str, short_path: Path) -> None:
    with (
        served(mx_rmq_url, short_path, REPORTS_WORKER="inside") as address,
        httpx.Client(base_url=address, timeout=30) as client,
    ):
        id = ordered(client, title="sales", pages=1)
        assert client.get(f"/reports/{id}").json()["pages"] == ["Page 1 of sales"]


@pytest.mark.timeout(180)
async def test_a_reader_orders_follows_reads_and_aborts_while_a_worker_writes(
    mx_rmq_url: str, short_path: Path
) -> None:
    words = ("worker", "fastapi_reports.reports:mq", "--url", mx_rmq_url)
    with running(short_path, *words), served(mx_rmq_url, short_path) as address:
        async with chromium() as browser:
            page = await browser.new_page()
            page.on("dialog", lambda _: pytest.fail("the title was run as a script"))
            await page.goto(address)
            output = page.locator("output")
            await page.fill("input[name=title]", HOSTILE)
            await page.fill("input[name=pages]", "10")
            await page.click("form button")
            await expect(output).to_contain_text("of 10", timeout=60_000)
            await expect(page.locator("li").last).to_have_text(f"Page 10 of {HOSTILE}")
            await expect(output).to_contain_text("completed")
            await page.fill("input[name=pages]", "1000")
            await page.click("form button")
            await expect(output).to_contain_text("of 1000", timeout=60_000)
            await page.get_by_role("button", name="Abort").click()
            await expect(output).to_contain_text("dead", timeout=10_000)
            await expect(output).to_contain_text("aborted: stopped by the reader")
