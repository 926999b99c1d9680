"""The dashboard in a real browser: what scripts, styles, keys and eyes make of it."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from tests.dashboard.scene import HOSTILE, Scene, chromium, make_up_an_hour, scene
from tests.dashboard.screenshots import pages
from tests.runtime.stage import until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, BrowserContext, Page
    from redis.asyncio import Redis

    from tests.lab.servers import Server

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("raw")]


class Watched:
    """A tab of which every complaint is heard."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{self.page.url}: {message.text}")

    async def go(self, path: str) -> None:
        await self.page.goto(self.url + path)


@asynccontextmanager
async def tab(browser: Browser, url: str, **options: Any) -> AsyncIterator[Watched]:
    """Open a page, and see afterwards that nobody complained."""
    context: BrowserContext = await browser.new_context(**options)
    context.set_default_timeout(15_000)
    watched = Watched(await context.new_page(), url)
    yield watched
    await context.close()
    assert watched.complaints == []


SOUND = (Path(__file__).parent / "sound.js").read_text()


async def test_every_page_is_sound_on_a_desk_and_on_a_phone_light_and_dark(
    server: Server,
) -> None:
    async with chromium() as browser, scene(server.url) as one:
        make_up_an_hour(one.board)
        for width, scheme in ((1280, "light"), (390, "dark"), (390, "light"), (800, "dark")):
            size = {"width": width, "height": 800}
            async with tab(browser, one.url, viewport=size, color_scheme=scheme) as seen:
                for name, path in pages(one).items():
                    if name in ("job", "not-found"):
                        continue  # no job yet; a 404 is an error to the console
                    await seen.go(path)
                    assert await seen.page.evaluate(SOUND) == [], (name, width, scheme)


async def test_nothing_in_a_message_becomes_markup(server: Server) -> None:
    async with chromium() as browser, scene(server.url) as one, tab(browser, one.url) as seen:
        id = one.ids["hostile"]
        for path in (
            f"/topics/payments/message?id={id}",
            f"/topics/payments/edit?id={id}",
            f"/topics/payments/discard?id={id}",
            "/topics/payments?state=quarantined",
            "/quarantine",
        ):
            await seen.go(path)
            await expect(seen.page.locator("main")).to_contain_text("window.pwned")
            assert await seen.page.evaluate("window.pwned") is None
            assert await seen.page.locator("main script, main img").count() == 0
        await seen.go(f"/topics/payments/message?id={id}")
        code = seen.page.locator("pre[data-json]")
        assert HOSTILE in (await code.text_content() or "")
        assert await code.locator(".json-key").count() == 2


async def test_figures_and_charts_change_without_reloading(server: Server) -> None:
    async with chromium() as browser, scene(server.url) as one, tab(browser, one.url) as seen:
        await seen.go("/")
        page = seen.page
        await page.evaluate("window.same = true")
        waiting = page.locator("[data-topic='invoices'][data-figure='pending']")
        before = int(await waiting.inner_text())
        await one.mq.produce_many("invoices", [{}] * 1000)
        await expect(waiting).to_have_text(f"{before + 1000:,}")
        await expect(page.locator("#pulse")).to_contain_text("live")
        await expect(page.locator("[data-chart=depth] .curve.pending")).to_have_count(1)
        now = page.locator("[data-chart=depth] [data-now=pending]")
        assert int((await now.inner_text()).replace(",", "")) >= before + 1000
        await page.locator("[data-chart=depth] svg").focus()
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator("[data-chart=depth] .cursor")).to_have_count(1)
        await page.get_by_role("button", name=re.compile("^dead")).click()
        await expect(page.locator("[data-chart=depth] .curve.dead")).to_have_count(0)
        await one.mq.produce("news", 1)
        await expect(page.locator("#new-topics")).to_be_visible()
        assert await page.evaluate("window.same")


async def test_every_action_by_mouse(server: Server) -> None:
    async with chromium() as browser, scene(server.url) as one, tab(browser, one.url) as seen:
        page, admin = seen.page, one.mq.admin
        said = page.locator(".said")

        await seen.go("/topics/orders")
        await page.get_by_role("button", name="Pause").click()
        await expect(said).to_contain_text("Paused")
        assert (await admin.stats("orders")).paused
        await page.get_by_role("button", name="Resume").click()
        await expect(said).to_contain_text("Resumed")

        await seen.go("/quarantine")
        await page.get_by_role("link", name=one.ids["quarantined"]).click()
        await page.get_by_role("link", name="Edit and requeue…").click()
        await page.get_by_label("Payload, as JSON").fill('{"order": 1043, ')
        await expect(page.locator("#json-hint")).to_contain_text("Not JSON yet")
        await page.get_by_label("Payload, as JSON").fill('{"order": 1043, "card": "visa"}')
        await page.get_by_role("button", name="Requeue with this payload").click()
        await page.wait_for_url("**/message?*")
        await until_so(lambda: _gone(one, "payments", one.ids["quarantined"]))

        await seen.go("/dead")  # it shows the newest of each topic: look for an older one
        await page.get_by_label("Error", exact=True).fill("stolen")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("link", name=one.ids["rejected"]).click()
        await page.get_by_role("link", name="Discard…").click()
        await page.get_by_role("button", name="Discard").click()
        await expect(said).to_contain_text("Discarded")
        assert await admin.get("payments", one.ids["rejected"]) is None

        await admin.pause("payments")
        await seen.go(f"/topics/payments/message?id={one.ids['dead']}")
        await page.get_by_role("button", name="Requeue", exact=True).click()
        await expect(said).to_contain_text("Requeued")
        await page.get_by_role("link", name="Cancel…").click()
        await page.get_by_role("button", name="Cancel").click()
        await expect(said).to_contain_text("Cancelled")
        assert await admin.get("payments", one.ids["dead"]) is None

        await seen.go("/topics/payments?state=dead")
        await page.get_by_label("Error", exact=True).fill("bankaway")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("link", name="Requeue all that fit…").click()
        await expect(page.locator("h1")).to_have_text("Requeue 14 dead messages?")
        await page.get_by_label("At most", exact=True).fill("5")
        await page.get_by_role("button", name="Requeue them").click()
        await expect(page.locator(".badge")).to_have_text("done")
        stats = await admin.stats("payments")
        assert (stats.dead, stats.pending) == (9, 5)

        await seen.go("/log")
        rows = page.locator("section[aria-labelledby=entries-title] tbody tr")
        assert await rows.count() == 8
        assert len(one.board.parts.journal.latest()) == 8


async def _gone(one: Scene, topic: str, id: str) -> bool:
    return await one.mq.admin.get(topic, id) is None


async def test_everything_can_be_reached_by_keys(server: Server) -> None:
    async with chromium() as browser, scene(server.url) as one, tab(browser, one.url) as seen:
        page = seen.page
        await seen.go("/")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        for _ in range(12):
            await page.keyboard.press("Tab")
            assert await page.evaluate(outline) != "none"
        await page.keyboard.press("?")
        await expect(page.locator("dialog#help")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator("dialog#help")).to_be_hidden()
        await page.keyboard.press("g")
        await page.keyboard.press("d")
        await page.wait_for_url("**/dead")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        chosen = await page.evaluate("document.activeElement.textContent")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/message?*")
        await expect(page.locator("h1")).to_have_text(chosen)
        await page.keyboard.press("g")
        await page.keyboard.press("q")
        await page.wait_for_url("**/quarantine")
        await page.keyboard.press("/")
        await page.keyboard.type("10-43")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**text=10-43**")
        assert await page.locator("[data-row]").count() == 1
        await page.keyboard.press("f")
        await page.keyboard.type(one.ids["dead"])
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/message?*")
        await page.keyboard.press("t")
        await page.keyboard.press("t")
        await page.reload()
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
        await page.keyboard.press("?")
        await page.get_by_label("Keys off").check()
        await page.keyboard.press("Escape")
        await page.keyboard.press("t")
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_reading_and_acting_work_without_scripts(server: Server) -> None:
    async with (
        chromium() as browser,
        scene(server.url) as one,
        tab(browser, one.url, java_script_enabled=False) as seen,
    ):
        page = seen.page
        await seen.go("/")
        await page.get_by_role("link", name="payments").first.click()
        await page.locator(".tabs a.dead").click()
        await page.get_by_role("link", name=one.ids["rejected"]).click()
        await page.get_by_role("button", name="Requeue", exact=True).click()
        await expect(page.locator(".said")).to_contain_text("Requeued")
        await page.get_by_role("link", name="Help").click()
        await expect(page.locator("h1")).to_have_text("Help")


async def test_a_page_says_by_itself_that_the_server_is_away_and_back(
    server: Server, raw: Redis
) -> None:
    async with chromium() as browser, scene(server.url) as one:
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(one.url)
        await expect(page.locator("#pulse")).to_contain_text("live")
        server.kill()
        try:
            await expect(page.locator("#away")).to_contain_text("is away", timeout=30_000)
        finally:
            server.start()
        await one.mq.produce("orders", {})
        await expect(page.locator("#away")).to_be_hidden(timeout=30_000)
        await context.close()
