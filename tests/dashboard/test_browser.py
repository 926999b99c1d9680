"""The dashboard in a real browser: what scripts, styles, keys and eyes make of it."""

from __future__ import annotations

import re
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import expect
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.routing import Mount

from mx_rmq.dashboard import Dashboard, sampler
from tests.dashboard.hour import make_up_an_hour
from tests.dashboard.scene import HOSTILE, Scene, chromium, scene, serving
from tests.dashboard.screenshots import pages
from tests.lab.servers import Kind, Server
from tests.runtime.stage import until, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from playwright.async_api import Browser, BrowserContext, Page

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

expect.set_options(timeout=60_000)  # the machine may be busy

SOUND = (Path(__file__).parent / "sound.js").read_text()


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Let the dashboards look at the topics more often than every two seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "EVERY", 0.3)
        patch.setattr(sampler, "SHARE", 0)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all; every test has a context of its own."""
    async with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def url(running: Callable[[Kind], Server]) -> str:
    """An empty server for this file."""
    return running(Kind.VALKEY_9_1).url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(url: str) -> AsyncIterator[Scene]:
    """A scene for those who leave it as they found it, or nearly so."""
    async with Redis.from_url(url) as raw:
        await raw.flushall()
        async with scene(url) as one:
            make_up_an_hour(one.board)
            yield one
        await raw.flushall()


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
    context: BrowserContext = await browser.new_context(reduced_motion="reduce", **options)
    context.set_default_timeout(60_000)
    watched = Watched(await context.new_page(), url)
    yield watched
    await context.close()
    assert watched.complaints == []


async def test_every_page_is_sound_on_a_desk_and_on_a_phone_light_and_dark(
    browser: Browser, one: Scene
) -> None:
    async with tab(browser, one.url) as seen:
        for name, path in pages(one).items():
            if name == "not-found":
                continue  # a 404 is an error to the console
            await seen.go(path)
            grounds = set()
            for width, scheme in ((1280, "light"), (390, "dark"), (390, "light"), (800, "dark")):
                await seen.page.set_viewport_size({"width": width, "height": 800})
                await seen.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                assert await seen.page.evaluate(SOUND) == [], (name, width, scheme)
                grounds.add(
                    await seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
                )
            assert len(grounds) == 2, name


async def test_nothing_that_foreign_hands_wrote_becomes_markup(
    browser: Browser, one: Scene, url: str
) -> None:
    dead = await one.mq.produce(
        "payments", {"order": 1, "card": HOSTILE}, headers={"x-note": HOSTILE}
    )
    async with Redis.from_url(url) as raw:
        keys = one.mq.store.keys
        await raw.hset(keys.workers, HOSTILE, '9999999999999 {"host": "x"}')
        await raw.hset(keys.of("invoices").payload, HOSTILE, HOSTILE)
        await raw.rpush(keys.of("invoices").pending, HOSTILE)
    await one.mq.produce("invoices", 1, key=HOSTILE)
    await one.mq.admin.pause("invoices", HOSTILE, reason=HOSTILE)
    await until_so(lambda: _dead(one, dead))
    async with tab(browser, one.url) as seen:
        page, id = seen.page, one.ids["hostile"]
        for path in (
            f"/topics/payments/message?id={id}",
            f"/topics/payments/message?id={dead}",
            "/topics/invoices/keys",
            f"/topics/invoices/keys?key={quote(HOSTILE)}",
            f"/topics/invoices/limits?key={quote(HOSTILE)}",
            "/topics/invoices/limits",
            f"/topics/payments/edit?id={id}",
            f"/topics/payments/discard?id={id}",
            "/topics/payments?state=quarantined",
            "/topics/invoices?state=pending",
            "/topics/payments?text=%3Cscript%3Ewindow.pwned=1%3C/script%3E",
            "/dead",
            "/quarantine",
            "/workers",
        ):
            await seen.go(path)
            main = page.locator("main")
            assert "window.pwned" in (await main.text_content() or "") + await main.inner_html()
            assert await page.evaluate("window.pwned") is None
            assert await page.locator("main script, main img").count() == 0
        await seen.go(f"/topics/payments/message?id={id}")
        code = page.locator("pre[data-json]")
        assert HOSTILE in (await code.text_content() or "")
        assert await code.locator(".json-key").count() == 2
        await seen.go("/topics/invoices?state=pending")
        await page.get_by_role("link", name="window.pwned").click()
        assert HOSTILE in (await page.locator("h1").text_content() or "")
        assert await page.evaluate("window.pwned") is None


async def _dead(one: Scene, id: str) -> bool:
    found = await one.mq.admin.get("payments", id)
    return found is not None and found.state == "dead"


async def test_no_script_and_no_style_but_ours_is_let_in(browser: Browser, one: Scene) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    answer = await page.goto(one.url)
    assert answer is not None
    assert "unsafe" not in answer.headers["content-security-policy"]
    refused = await page.evaluate(
        """() => new Promise((done) => {
            const refused = [];
            document.addEventListener("securitypolicyviolation", (event) => {
                if (refused.push(event.effectiveDirective) === 3) done(refused.sort());
            });
            const script = document.createElement("script"), image = new Image();
            script.textContent = "window.pwned = 1";
            image.src = "http://elsewhere.example/x.png";
            document.body.append(script, image);
            document.body.insertAdjacentHTML("beforeend", "<p style='color: red'>x</p>");
        })"""
    )
    assert refused == ["img-src", "script-src-elem", "style-src-attr"]
    assert await page.evaluate("window.pwned") is None
    await context.close()


async def test_a_page_elsewhere_cannot_act(browser: Browser, one: Scene) -> None:
    context = await browser.new_context()
    ours = await context.new_page()
    await ours.goto(f"{one.url}/topics/orders")
    token = await ours.locator("input[name=token]").first.input_value()
    theirs = await context.new_page()
    await theirs.set_content(
        f"<form method=post action='{one.url}/topics/orders/pause'>"
        f"<input name=token value='{token}'><button>Win</button></form>"
    )
    async with theirs.expect_navigation() as going:
        await theirs.get_by_role("button").click()
    answer = await going.value
    assert answer is not None
    assert answer.status == 403
    assert not (await one.mq.admin.stats("orders")).paused
    await context.close()


async def test_figures_and_charts_change_without_reloading(browser: Browser, one: Scene) -> None:
    async with tab(browser, one.url) as seen:
        await seen.go("/")
        page = seen.page
        await page.evaluate("window.same = true")
        curves = {
            name: page.locator(f"[data-chart={chart}] .curve.{name}")
            for chart, name in (
                ("throughput", "produced"),
                ("throughput", "completed"),
                ("waiting", "oldest"),
                ("depth", "pending"),
                ("depth", "dead"),
            )
        }
        drawn = {name: await curve.get_attribute("d") for name, curve in curves.items()}
        waiting = page.locator("[data-topic='invoices'][data-figure='pending']")
        before = int((await waiting.inner_text()).replace(",", ""))
        await one.mq.produce_many("invoices", [{}] * 1000)
        await expect(waiting).to_have_text(f"{before + 1000:,}")
        await expect(page.locator("#pulse")).to_contain_text("live")
        for name, curve in curves.items():
            assert await curve.get_attribute("d") != drawn[name], name
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

        await seen.go("/topics/invoices")
        pending = page.locator(".tabs .pending b")
        await one.mq.produce("invoices", {})
        await expect(pending).to_have_text(f"{before + 1001:,}")
        await expect(page.locator("[data-chart=depth] .curve.pending")).to_have_count(1)


async def test_every_action_by_mouse(browser: Browser, url: str) -> None:
    async with scene(url, prefix="acts") as one, tab(browser, one.url) as seen:
        page, admin = seen.page, one.mq.admin
        notice = page.locator(".notice")

        await seen.go("/topics/orders")
        await page.get_by_role("button", name="Pause").click()
        await expect(notice).to_contain_text("Paused")
        assert (await admin.stats("orders")).paused
        await page.get_by_role("button", name="Resume").click()
        await expect(notice).to_contain_text("Resumed")

        await seen.go("/quarantine")
        await page.get_by_role("link", name=one.ids["quarantined"]).click()
        await page.get_by_role("link", name="Edit and requeue…").click()
        await page.get_by_label("Payload (JSON)").fill('{"order": 1043, ')
        await expect(page.locator("#json-hint")).to_contain_text("Not JSON yet")
        await page.get_by_label("Payload (JSON)").fill('{"order": 1043, "card": "visa"}')
        await page.get_by_role("button", name="Requeue with this payload").click()
        await page.wait_for_url("**/message?*")
        await until_so(lambda: _gone(one, "payments", one.ids["quarantined"]))
        await page.reload()
        await expect(page.locator(".history .completed")).to_have_count(1)

        await seen.go("/dead")  # it shows the newest of each topic: look for an older one
        await page.get_by_label("Error", exact=True).fill("stolen")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("link", name=one.ids["rejected"]).click()
        await page.get_by_role("link", name="Discard…").click()
        await page.get_by_role("button", name="Discard").click()
        await expect(notice).to_contain_text("Discarded")
        assert await admin.get("payments", one.ids["rejected"]) is None

        await admin.pause("payments")
        await seen.go(f"/topics/payments/message?id={one.ids['dead']}")
        await page.get_by_role("button", name="Requeue", exact=True).click()
        await expect(notice).to_contain_text("Requeued")
        await page.get_by_role("link", name="Cancel…").click()
        await page.get_by_role("button", name="Cancel").click()
        await expect(notice).to_contain_text("Cancelled")
        assert await admin.get("payments", one.ids["dead"]) is None

        await seen.go("/topics/payments?state=dead")
        await page.get_by_label("Error", exact=True).fill("bankaway")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("link", name="Requeue all matches…").click()
        await expect(page.locator("h1")).to_have_text("Requeue 14 dead messages?")
        await page.get_by_label("Limit (messages)", exact=True).fill("5")
        await page.get_by_role("button", name="Requeue them").click()
        await expect(page.locator(".badge")).to_have_text("done")
        stats = await admin.stats("payments")
        assert (stats.dead, stats.pending) == (9, 5)
        assert await page.evaluate(SOUND) == []

        await seen.go("/log")
        rows = page.locator("section[aria-labelledby=entries-title] tbody tr")
        assert await rows.count() == 8
        assert len(one.board.parts.audit_log.latest()) == 8
        assert await page.evaluate(SOUND) == []


async def _gone(one: Scene, topic: str, id: str) -> bool:
    return await one.mq.admin.get(topic, id) is None


async def test_everything_can_be_reached_by_keys(browser: Browser, one: Scene) -> None:
    async with tab(browser, one.url) as seen:
        page = seen.page
        await page.clock.set_fixed_time(time.time())  # a key after "g" comes in time
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
        await page.get_by_label("Turn shortcuts off").check()
        await page.keyboard.press("Escape")
        await page.keyboard.press("t")
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_reading_and_acting_work_without_scripts(browser: Browser, one: Scene) -> None:
    async with tab(browser, one.url, java_script_enabled=False) as seen:
        page = seen.page
        await seen.go("/")
        await page.get_by_role("link", name="payments").first.click()
        await page.locator(".tabs a.dead").click()
        await page.get_by_role("link", name=one.ids["rejected"]).click()
        await page.get_by_role("button", name="Requeue", exact=True).click()
        await expect(page.locator(".notice")).to_contain_text("Requeued")
        await page.get_by_role("link", name="Help").click()
        await expect(page.locator("h1")).to_have_text("Help")


async def test_workers_are_shown_anew_by_themselves(browser: Browser, one: Scene) -> None:
    async with tab(browser, one.url) as seen:
        page = seen.page
        await page.clock.install()
        await seen.go("/workers")
        await expect(page.locator("article")).to_contain_text(["report-2026-10"])
        async with page.expect_response("**/workers"):
            await page.clock.fast_forward(5000)
        await expect(page.locator("article")).to_contain_text(["report-2026-10"])


async def test_it_works_below_a_path_of_another_application(browser: Browser, one: Scene) -> None:
    board = Dashboard(one.mq, authorize=lambda request: "anna")
    app = Starlette(routes=[Mount("/queues/mx", app=board)])
    async with serving(board, app) as url, tab(browser, f"{url}/queues/mx") as seen:
        page = seen.page
        await page.clock.set_fixed_time(time.time())
        await seen.go("/")
        await expect(page.locator("#pulse")).to_contain_text("live")
        await expect(page.locator("[data-chart=depth] .curve.pending")).to_have_count(1)
        links = await page.evaluate("[...document.links].map((link) => link.pathname)")
        assert all(link.startswith("/queues/mx/") for link in links)
        await page.keyboard.press("g")
        await page.keyboard.press("w")
        await page.wait_for_url("**/queues/mx/workers")
        await seen.go("/topics/reports")
        await page.get_by_role("button", name="Pause").click()
        await page.wait_for_url("**/queues/mx/topics/reports?notice=paused")
        await page.get_by_role("button", name="Resume").click()
        await expect(page.locator(".notice")).to_contain_text("Resumed")


async def test_whoever_may_only_read_has_no_buttons(browser: Browser, one: Scene) -> None:
    board = Dashboard(one.mq, allow_all=True, read_only=True)
    async with serving(board) as url, tab(browser, url) as seen:
        for path in (
            "/topics/payments?state=dead",
            f"/topics/payments/message?id={one.ids['dead']}",
            f"/topics/payments/discard?id={one.ids['dead']}",
            f"/topics/payments/edit?id={one.ids['dead']}",
        ):
            await seen.go(path)
            await expect(seen.page.locator(".top .chip")).to_have_text("read-only")
            assert await seen.page.locator("form[method=post]").count() == 0
        post = "fetch('pause', {method: 'POST', body: new URLSearchParams()}).then((a) => a.status)"
        assert await seen.page.evaluate(post) == 403
        await until(lambda: seen.complaints)  # the console is heard on a way of its own
        assert "403" in seen.complaints.pop()


async def test_a_page_says_by_itself_that_the_server_is_away_and_back(
    browser: Browser, tmp_path: Path
) -> None:
    with Server(Kind.VALKEY_9_1, tmp_path) as server:
        async with scene(server.url, patience=1) as one:
            context = await browser.new_context()
            page = await context.new_page()
            await page.goto(one.url)
            await expect(page.locator("#pulse")).to_contain_text("live")
            server.kill()
            try:
                await expect(page.locator("#away")).to_contain_text("is unreachable")
            finally:
                server.start()
            await one.mq.produce("orders", {})
            await expect(page.locator("#away")).to_be_hidden(timeout=30_000)
            await context.close()
