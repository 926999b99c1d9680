"""Pictures of every page, light and dark: `make screenshots`."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mx_rmq import MessageQueue, State
from mx_rmq.dashboard import Dashboard
from mx_rmq.dashboard.audit_log import AuditEntry
from mx_rmq.dashboard.jobs import Job
from mx_rmq.dashboard.search import Search
from tests.dashboard.hour import bustle
from tests.dashboard.scene import Scene, chromium, scene, serving
from tests.dashboard.small import smaller
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from playwright.async_api import Browser, FloatRect

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "images" / "dashboard"
TOOLS: Final = ROOT / ".tools"

DESK: Final = (1280, 800)
PHONE: Final = (390, 844)
TALLEST: Final = 1600
"""Pixels of a page that are on its picture, at the most; on a phone half as many again."""


def pages(one: Scene) -> dict[str, str]:
    """Return the pages by the names of their pictures."""
    ids = one.ids
    return {
        "overview": "/",
        "topic": "/topics/mails",
        "topic-paused": "/topics/invoices",
        "keys": "/topics/invoices/keys",
        "limits": "/topics/invoices/limits?key=tenant-7",
        "search": "/topics/payments?state=dead&error=BankAway&last=1h",
        "message": f"/topics/payments/message?id={ids['dead']}",
        "message-quarantined": f"/topics/payments/message?id={ids['hostile']}",
        "edit": f"/topics/payments/edit?id={ids['quarantined']}",
        "discard": f"/topics/payments/discard?id={ids['rejected']}",
        "bulk": "/topics/payments/bulk?act=requeue&state=dead&error=BankAway",
        "dead-letters": "/dead",
        "quarantine": "/quarantine",
        "workers": "/workers",
        "log": "/log",
        "help": "/help",
        "not-found": "/topics/orderz",
    }


async def take(browser: Browser, url: str, name: str, size: tuple[int, int], dark: bool) -> None:
    """Take one picture."""
    width, height = size
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    page = await context.new_page()
    await page.goto(url)
    if await page.locator("[data-chart]").count():
        await page.wait_for_selector(".curve")
        await page.locator("input[name=span][value='3600']").check(force=True)
        await page.wait_for_timeout(300)
    path = FOLDER / f"{name}-{'dark' if dark else 'light'}.png"
    whole = await page.evaluate("document.documentElement.scrollHeight")
    tallest = TALLEST if size == DESK else TALLEST * 1.5
    clip: FloatRect = {"x": 0, "y": 0, "width": width, "height": min(whole, tallest)}
    png = await page.screenshot(full_page=True, clip=clip)
    await page.goto("about:blank")
    path.write_bytes(await smaller(page, png))
    await context.close()


async def act(one: Scene) -> None:
    """Do something, so that the log and a job have something to show."""
    board = one.board
    for who, did, topic, id, outcome in (
        ("anna", "pause", "invoices", "", "done"),
        ("anna", "edit and requeue", "payments", one.ids["quarantined"], "done"),
        ("ben", "discard", "payments", one.ids["rejected"], "done"),
        ("ben", "cancel", "invoices", one.ids["pending"], "processing"),
    ):
        entry = AuditEntry(who=who, where="10.0.3.7", did=did, topic=topic, id=id, outcome=outcome)
        board.parts.audit_log.add(entry)
    job = Job(
        who="anna",
        where="10.0.3.7",
        act="cancel",
        topic="invoices",
        state=State.PENDING,
        search=Search(text="order"),
        limit=60,
        rate=2,
    )
    board.parts.jobs.start(job)


async def main(wanted: set[str]) -> None:
    logging.getLogger("mx_rmq").setLevel(logging.CRITICAL)  # the scene is full of failures
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Server(Kind.VALKEY_9_1, Path(folder)) as server:
        async with chromium(TOOLS) as browser, MessageQueue(server.url) as mq:
            if not wanted or "empty" in wanted:
                async with serving(Dashboard(mq, allow_all=True)) as url:
                    for dark in (False, True):
                        await take(browser, url, "empty", DESK, dark)
            async with (
                scene(server.url, authorize=lambda request: "anna") as one,
                bustle(one, server.url),
            ):
                await act(one)
                shots = {**pages(one), "job": f"/jobs/{one.board.parts.jobs.latest()[0].id}"}
                for name in ("overview", "topic", "message", "dead-letters"):
                    shots[f"phone-{name}"] = shots[name]
                for name, path in shots.items():
                    if wanted and name not in wanted:
                        continue
                    for dark in (False, True):
                        size = PHONE if name.startswith("phone") else DESK
                        await take(browser, one.url + path, name, size, dark)
                if not wanted or "away" in wanted:
                    server.kill()
                    for dark in (False, True):
                        await take(browser, f"{one.url}/topics/orders", "away", DESK, dark)
                    server.start()


if __name__ == "__main__":
    asyncio.run(main(set(sys.argv[1:])))
