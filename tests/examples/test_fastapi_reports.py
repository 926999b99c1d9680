"""The page of the FastAPI application, in a real browser. test_readmes.py does the rest."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.cli.running import running
from tests.dashboard.scene import chromium
from tests.lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest_plugins = ["mx_rmq.testing"]

HOSTILE = "<img src=x onerror=alert(1)> & 'co'"


@contextmanager
def served(url: str, directory: Path) -> Iterator[str]:
    """Run the application with uvicorn; yield its address."""
    port = free_port()
    words = ("-m", "uvicorn", "fastapi_reports.app:app", "--port", str(port))
    with running(directory, *words, program=[sys.executable], MX_RMQ_URL=url) as web:
        web.until_told("Application startup complete")
        yield f"http://127.0.0.1:{port}"


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
