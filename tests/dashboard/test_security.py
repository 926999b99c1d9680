"""Nobody gets in who may not, no page elsewhere acts here, and every answer says its rules."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Mount

from mx_rmq import MessageQueue
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.dashboard import Dashboard, Password, audit_log, auth
from mx_rmq.dashboard.app import _routes
from mx_rmq.dashboard.security import LOOPBACK
from tests.dashboard.visitor import HERE, Visitor
from tests.lab.archives import archived
from tests.lab.messages import TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

POSTS = [route.path for route in _routes(None) if "POST" in (route.methods or ())]


def filled(path: str) -> str:
    return path.replace("{topic}", TOPIC).replace("{job}", "1").replace("{schedule}", "s")


# headers


async def test_every_answer_bears_the_rules_for_browsers(
    mq: MessageQueue, visitor: Visitor
) -> None:
    await mq.produce(TOPIC, 1)
    for path in ("/", "/nothing", "/healthz", "/live/series", f"/topics/{TOPIC}/raw?id=x"):
        headers = (await visitor.client.get(path)).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
    page = await visitor.page("/")
    style = page.split('rel="stylesheet" href="')[1].split('"')[0]
    assert "immutable" in (await visitor.get(style)).headers["cache-control"]
    await visitor.get("/static/x/app.js")
    for name in ("nothing.css", "..%2fapp.py", "__init__.py"):
        await visitor.get(f"/static/x/{name}", 404)


async def test_the_session_cookie_is_kept_from_scripts_and_other_sites(
    board: Dashboard, mq: MessageQueue
) -> None:
    async with Visitor(board) as visitor:
        cookie = (await visitor.get("/")).headers["set-cookie"]
        assert cookie.startswith("mx_rmq=")
        assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))
        assert "set-cookie" not in (await visitor.get("/")).headers
    transport = httpx.ASGITransport(app=board)
    async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:
        cookie = (await client.get("/")).headers["set-cookie"]
        assert cookie.startswith("__Host-mx_rmq=")
        assert cookie.endswith("; Secure")


async def test_behind_a_proxy_with_tls_the_cookie_is_secure(mq: MessageQueue) -> None:
    board = Dashboard(mq, allow_all=True, origins=["https://queues.example"])
    async with Visitor(board) as visitor:
        cookie = (await visitor.get("/workers")).headers["set-cookie"]
        assert cookie.startswith("__Host-mx_rmq=")
        assert cookie.endswith("; Secure")


async def test_dashboards_on_one_host_do_not_share_their_cookies(mq: MessageQueue) -> None:
    names = set()
    for host, root in (
        ("localhost", ""),
        ("localhost:8233", ""),
        ("localhost:8234", ""),
        ("[::1]:8234", "/a"),
        ("localhost", "/a"),
        ("localhost", "/b"),
    ):
        async with Visitor(Dashboard(mq, allow_all=True, root_path=root)) as visitor:
            cookie = (await visitor.get("/help", headers={"Host": host})).headers["set-cookie"]
            names.add(cookie.partition("=")[0])
            assert cookie.startswith("mx_rmq")
    assert len(names) == 6


async def test_browsers_are_told_to_use_tls_alone_where_it_is_used(mq: MessageQueue) -> None:
    for origin, hsts, host, told in (
        ("https://queues.example", True, "queues.example", "max-age=31536000"),
        ("https://queues.example", True, "localhost", None),  # not for all that runs here
        ("https://queues.example", False, "queues.example", None),
        ("http://queues.example", True, "queues.example", None),
    ):
        board = Dashboard(mq, allow_all=True, origins=[origin], hsts=hsts)
        async with Visitor(board) as visitor:
            headers = (await visitor.get("/help", headers={"Host": host})).headers
            assert headers.get("strict-transport-security") == told


async def test_redirects_name_no_scheme_and_no_host(mq: MessageQueue) -> None:
    """Behind a proxy that speaks TLS we do not know either."""
    async with Visitor(Dashboard(mq, allow_all=True, hosts=["*"])) as visitor:
        for path, location in (
            ("/workers/", "/workers"),
            ("/topics/orders/?state=dead&self=1", "/topics/orders?state=dead&self=1"),
            ("/topics/a%2Fb%20c/", "/topics/a/b%20c"),
            ("//evil.example/", "/evil.example"),
            ("///evil.example//", "/evil.example"),
            ("/%5C%5Cevil.example/", "/%5C%5Cevil.example"),
            ("/%2F%2Fevil.example/", "/evil.example"),
        ):
            request = visitor.client.build_request("GET", f"{HERE}{path}")
            answer = await visitor.client.send(request)
            assert (answer.status_code, answer.headers["location"]) == (303, location), path


# forms of other pages


def made_up(session: str) -> str:
    """Return a token as somebody would make it who knows the code, but no secret."""
    mac = hmac.new(session.encode(), b"dashboard", hashlib.sha256)
    return base64.urlsafe_b64encode(mac.digest()).decode().rstrip("=")


async def test_no_action_is_taken_from_elsewhere(mq: MessageQueue, visitor: Visitor) -> None:
    (id,) = await archived(mq.store, State.DEAD)
    token = await visitor.token()
    ours = {"Origin": HERE}
    foreign: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
        ({"token": token}, {"Origin": "http://evil.example"}),
        ({"token": token}, {"Origin": "null"}),
        ({"token": token}, {"Origin": "http://localhost:81"}),
        ({"token": token}, {"Origin": "https://localhost"}),
        ({"token": token}, {"Origin": "http://["}),
        ({"token": token}, {"Sec-Fetch-Site": "cross-site"}),
        ({"token": token}, {}),
        ({"state": "dead"}, ours),
        ({"token": "x"}, ours),
        ({"token": token}, {**ours, "Cookie": "mx_rmq=another"}),
        ({"token": made_up("a")}, {**ours, "Cookie": "mx_rmq=a"}),
    )
    for path in POSTS:
        address = f"{filled(path)}?id={id}"
        for data, headers in foreign:
            answer = await visitor.client.post(address, data=data, headers=headers)
            assert answer.status_code == 403, (path, data, headers)
        strange = {**ours, "Content-Type": "text/plain"}
        answer = await visitor.client.post(address, content=f"token={token}", headers=strange)
        assert answer.status_code == 415
    stats = await mq.admin.stats(TOPIC)
    assert (stats.dead, stats.paused) == (1, False)


async def test_a_browser_without_an_origin_header_and_a_named_proxy_pass(
    mq: MessageQueue,
) -> None:
    await mq.produce(TOPIC, 1)
    board = Dashboard(mq, allow_all=True, origins=["http://Queues.example/"])
    async with Visitor(board) as visitor:
        token = await visitor.token()
        for headers in (
            {"Sec-Fetch-Site": "same-origin"},
            {"Origin": "http://queues.example"},
            {"Origin": "http://localhost", "Host": "localhost:80"},
        ):
            answer = await visitor.client.post(
                f"/topics/{TOPIC}/pause", data={"token": token}, headers=headers
            )
            assert answer.status_code == 303
    await board.close()


async def test_processes_with_the_same_secret_take_forms_of_each_other(mq: MessageQueue) -> None:
    await mq.produce(TOPIC, 1)
    async with Visitor(Dashboard(mq, allow_all=True, secret="same")) as visitor:
        token = await visitor.token()
        cookies = visitor.client.cookies
    async with Visitor(Dashboard(mq, allow_all=True, secret="same"), cookies=cookies) as visitor:
        await visitor.post(f"/topics/{TOPIC}/pause", token=token)
    async with Visitor(Dashboard(mq, allow_all=True), cookies=cookies) as visitor:
        answer = await visitor.post(f"/topics/{TOPIC}/pause", 403, token=token)
        assert "reload the page" in answer.text


async def test_what_is_broken_gets_a_page_that_says_so(mq: MessageQueue, visitor: Visitor) -> None:
    await mq.produce(TOPIC, 1)
    for path, code in (
        ("/workers?" + "&".join(map(str, range(2000))), 400),
        ("/jobs/" + "1" * 5000, 404),
        (f"/topics/{TOPIC}?until=9999-12-31T23:59:59-14:00", 400),
    ):
        answer = await visitor.get(path, code)
        assert answer.headers["cache-control"] == "no-store"
        assert "</html>" in answer.text
    headers = {"Origin": HERE, "Content-Type": "application/x-www-form-urlencoded"}
    pause = f"/topics/{TOPIC}/pause"
    answer = await visitor.client.post(pause, content=b"token=%FF", headers=headers)
    assert answer.status_code == 403


async def test_an_authorize_that_fails_lets_nobody_in(mq: MessageQueue) -> None:
    def fail(request: Request) -> str:
        raise RuntimeError("the directory is away")

    async with Visitor(Dashboard(mq, authorize=fail)) as visitor:
        answer = await visitor.get("/workers", 500)
        assert "default-src" in answer.headers["content-security-policy"]
        assert "directory" not in answer.text


async def test_every_refusal_is_written_down_with_its_reason(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await mq.produce(TOPIC, 1)

    def logged() -> list[tuple[str, str, str]]:
        lines = [json.loads(record.getMessage()) for record in caplog.records]
        caplog.clear()
        return [(one.get("who", ""), one["did"], one["outcome"]) for one in lines]

    monkeypatch.setattr(auth, "WRONG", 0)
    board = Dashboard(mq, authorize=Password("anna", "correct horse"))
    with caplog.at_level(logging.INFO, "mx_rmq.dashboard.audit"):
        async with Visitor(board, headers=basic("anna", "correct horse")) as visitor:
            await visitor.post(f"/topics/{TOPIC}/pause", 403, token="x")
            await visitor.post("/topics/none/pause", 404)
            await visitor.post(f"/topics/{TOPIC}/bulk", 400, act="requeue", state="pending")
            (token, topic, act) = logged()
            assert token[:2] == ("anna", "pause")
            assert token[2].startswith("refused: The form is from another session")
            assert topic[2].startswith("refused: no topic 'none'")
            assert act[1:] == (
                "bulk",
                "refused: act='requeue' cannot be applied to pending messages",
            )
            for _ in range(audit_log.REFUSED + 40):
                await visitor.get("/", 401, headers=basic("anna", "wrong horse"))
            guesses = logged()
            assert guesses == [("", "sign in", "refused: answered with 401")] * audit_log.REFUSED
            monkeypatch.setattr(audit_log, "SPAN", -1)
            await visitor.get("/", 401, headers=basic("anna", "wrong horse"))
            assert "40 earlier refusals were not recorded" in await visitor.page("/log")
        async with Visitor(Dashboard(mq, allow_all=True, read_only=True)) as visitor:
            logged()
            await visitor.post(f"/topics/{TOPIC}/pause", 403, token="")
            ((who, did, outcome),) = logged()
            assert (who, did) == ("dashboard", "pause")
            assert outcome.startswith("refused: This dashboard is read-only")


RIGHT, WRONG = ("anna", "correct horse"), ("anna", "wrong horse")


async def guess(board: Dashboard, *guesses: tuple[str, str]) -> list[int]:
    """Return how somebody is answered whom nobody knows yet."""
    codes = []
    for one in guesses:
        async with Visitor(board) as stranger:
            codes.append((await stranger.client.get("/help", headers=basic(*one))).status_code)
    return codes


async def test_in_a_flood_of_guesses_no_password_is_looked_at(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "WRONG", 3600)
    board = Dashboard(mq, authorize=Password(*RIGHT))
    assert await guess(board, *[RIGHT] * 10) == [200] * 10  # only wrong ones are counted
    assert await guess(board, *[WRONG] * 10) == [401] * auth.GUESSES + [429] * 6
    assert await guess(board, RIGHT, WRONG, RIGHT) == [429] * 3  # it says nothing about them
    monkeypatch.setattr(auth, "WRONG", 0)
    assert await guess(board, RIGHT) == [200]


async def test_a_flood_of_guesses_does_not_keep_out_who_was_let_in_before(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "WRONG", 3600)
    board = Dashboard(mq, authorize=Password(*RIGHT))
    async with Visitor(board) as operator:
        answer = await operator.get("/help", headers=basic(*RIGHT))
        (known,) = [
            one for one in answer.headers.get_list("set-cookie") if one.startswith("mx_rmq_known=")
        ]
        assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(known.split("; "))
        assert (await guess(board, *[WRONG] * 5))[-1] == 429
        answer = await operator.get("/help", headers=basic(*RIGHT))
        assert "set-cookie" not in answer.headers
        await operator.get("/help", 401)  # the cookie alone opens nothing
        codes = [
            (await operator.client.get("/help", headers=basic(*WRONG))).status_code
            for _ in range(6)
        ]
        assert codes == [401] * auth.GUESSES + [429] * 2  # nor does it let anybody guess
        cookies = dict(operator.client.cookies)
    monkeypatch.setattr(auth, "WRONG", 0)
    async with Visitor(board) as stranger:
        answer = await stranger.get("/help", 401, headers=basic(*WRONG))
        assert "set-cookie" not in answer.headers
    monkeypatch.setattr(auth, "WRONG", 3600)
    for forged in (
        {**cookies, "mx_rmq": "mine"},
        {**cookies, "mx_rmq_known": "made up"},
        {"mx_rmq_known": cookies["mx_rmq_known"]},
    ):
        async with Visitor(board, cookies=forged) as stranger:
            await stranger.get("/help", 429, headers=basic(*RIGHT))


async def test_a_form_that_is_too_long_is_refused(mq: MessageQueue, visitor: Visitor) -> None:
    await mq.produce(TOPIC, 1)
    token = await visitor.token()
    long = {"token": token, "x": "y" * 9_000_000}
    answer = await visitor.client.post("/topics/orders/pause", data=long, headers={"Origin": HERE})
    assert answer.status_code == 413
    many = {"token": token, **{str(number): "" for number in range(2000)}}
    answer = await visitor.client.post("/topics/orders/pause", data=many, headers={"Origin": HERE})
    assert answer.status_code == 400


# read-only


async def test_a_read_only_dashboard_offers_nothing_and_does_nothing(mq: MessageQueue) -> None:
    (id,) = await archived(mq.store, State.DEAD)
    board = Dashboard(mq, allow_all=True, read_only=True)
    async with Visitor(board) as visitor:
        for path in (
            f"/topics/{TOPIC}?state=dead",
            f"/topics/{TOPIC}/message?id={id}",
            f"/topics/{TOPIC}/edit?id={id}",
            f"/topics/{TOPIC}/discard?id={id}",
            f"/topics/{TOPIC}/bulk?act=discard&state=dead",
            f"/topics/{TOPIC}/limits",
            f"/topics/{TOPIC}/limits?key=a",
        ):
            page = await visitor.page(path)
            assert 'method="post"' not in page
            assert "read-only" in page
        assert len(POSTS) == 17
        for path in POSTS:
            answer = await visitor.client.post(
                f"{filled(path)}?id={id}", data={}, headers={"Origin": HERE}
            )
            assert answer.status_code == 403
            assert "read-only" in answer.text
    await board.close()
    stats = await mq.admin.stats(TOPIC)
    assert (stats.dead, stats.paused) == (1, False)


# who may


async def test_one_has_to_say_who_may(mq: MessageQueue) -> None:
    with pytest.raises(InvalidInput, match="pass either authorize="):
        Dashboard(mq)
    with pytest.raises(InvalidInput, match="pass either authorize="):
        Dashboard(mq, authorize=lambda request: "x", allow_all=True)


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def test_a_password_is_asked_for_on_every_path_but_one(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "WRONG", 0)
    board = Dashboard(mq, authorize=Password("anna", "correct horse"))
    async with Visitor(board) as visitor:
        paths = [filled(route.path) for route in _routes(None)]
        for path in [path for path in paths if path != "/healthz"]:
            for method in ("GET", "POST"):
                answer = await visitor.client.request(method, path)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"].startswith("Basic ")
        assert (await visitor.get("/healthz")).text == "ok\n"
        assert (await visitor.client.post("/healthz")).status_code == 401
        for wrong in (
            basic("anna", "wrong horse"),
            basic("bert", "correct horse"),
            basic("anna", ""),
            {"Authorization": "Basic ???"},
            {"Authorization": "Basic /w=="},
            {"Authorization": "Bearer correct horse"},
        ):
            await visitor.get("/workers", 401, headers=wrong)
        await visitor.get("/workers", 401, headers={"Authorization": b"Basic \xfc"})
        answer = await visitor.get("/workers", headers=basic("anna", "correct horse"))
        assert "signed in as <strong>anna</strong>" in answer.text
    await board.close()


@pytest.mark.parametrize(
    ("user", "password"), [("", "long enough"), ("a:b", "long enough"), ("anna", "short")]
)
def test_a_weak_password_or_a_broken_name_is_refused(user: str, password: str) -> None:
    with pytest.raises(InvalidInput):
        Password(user, password)


async def _later(request: Request) -> str:
    return request.headers.get("x-user", "")


@pytest.mark.parametrize(
    ("authorize", "headers", "code"),
    [
        (lambda request: "anna", {}, 200),
        (lambda request: True, {}, 200),
        (lambda request: None, {}, 403),
        (lambda request: False, {}, 403),
        (lambda request: "", {}, 403),
        (lambda request: RedirectResponse("/login"), {}, 307),
        (_later, {"X-User": "anna"}, 200),
        (_later, {}, 403),
    ],
)
async def test_an_application_decides_by_itself_who_may(
    mq: MessageQueue,
    authorize: Callable[[Request], Awaitable[Any]],
    headers: dict[str, str],
    code: int,
) -> None:
    async with Visitor(Dashboard(mq, authorize=authorize)) as visitor:
        page = (await visitor.get("/workers", code, headers=headers)).text
        assert code != 403 or 'aria-label="Main"' not in page


async def test_a_token_of_one_operator_is_none_of_another(mq: MessageQueue) -> None:
    await mq.produce(TOPIC, 1)
    async with Visitor(Dashboard(mq, authorize=_later), headers={"X-User": "anna"}) as visitor:
        token = await visitor.token()
        visitor.client.headers["X-User"] = "bert"
        await visitor.post(f"/topics/{TOPIC}/pause", 403, token=token)


# names


async def test_on_loopback_only_its_own_names_lead_to_it(mq: MessageQueue) -> None:
    board = Dashboard(mq, allow_all=True, hosts=LOOPBACK)
    async with Visitor(board) as visitor:
        for host in ("localhost", "LOCALHOST:8233", "127.0.0.1:8233", "[::1]:8233"):
            await visitor.get("/workers", headers={"Host": host})
        for host in ("evil.example", "127.0.0.1.evil.example:8233", "localhost.", "[::2]", ""):
            await visitor.get("/workers", 421, headers={"Host": host})
            await visitor.get("/healthz", 421, headers={"Host": host})


async def test_where_everybody_is_let_in_no_page_elsewhere_leads_to_it(mq: MessageQueue) -> None:
    """A name of its own may lead to this machine: then a browser takes it for the same origin."""
    boards: tuple[tuple[Dashboard, dict[str, int]], ...] = (
        (Dashboard(mq, allow_all=True), {"localhost": 200, "evil.example": 421}),
        (
            Dashboard(mq, allow_all=True, origins=["https://Queues.example:8443/"]),
            {"localhost": 200, "queues.example:8443": 200, "evil.example": 421},
        ),
        (
            Dashboard(mq, allow_all=True, hosts=["Queues.example"]),
            {"queues.example": 200, "localhost": 421},
        ),
        (Dashboard(mq, allow_all=True, hosts=["*"]), {"anything.example": 200}),
        (Dashboard(mq, authorize=lambda request: "anna"), {"anything.example": 200}),
    )
    for board, hosts in boards:
        async with Visitor(board) as visitor:
            for host, code in hosts.items():
                await visitor.get("/help", code, headers={"Host": host})


# mounted


async def test_it_can_be_mounted_below_another_application(mq: MessageQueue) -> None:
    (id,) = await archived(mq.store, State.DEAD)
    board = Dashboard(mq, allow_all=True)
    app = Starlette(routes=[Mount("/queues", app=board)])
    async with Visitor(app, root="/queues") as visitor:
        page = await visitor.page("/")
        assert 'href="/queues/topics/orders"' in page
        assert 'data-base="/queues"' in page
        style = page.split('rel="stylesheet" href="')[1].split('"')[0]
        assert (await visitor.client.get(style)).status_code == 200
        assert (await visitor.get("/healthz")).text == "ok\n"
        answer = await visitor.submit(f"/topics/{TOPIC}/message?id={id}", "Requeue")
        assert answer.url.path == f"/queues/topics/{TOPIC}/message"
        assert "Requeued." in answer.text


@pytest.mark.parametrize("taken_away", [True, False])
async def test_a_proxy_may_show_it_under_a_path(mq: MessageQueue, taken_away: bool) -> None:
    (id,) = await archived(mq.store, State.DEAD)
    board = Dashboard(mq, allow_all=True, root_path="/ops/queues/")

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith("/ops/queues")
        path = scope["path"].removeprefix("/ops/queues") if taken_away else scope["path"]
        await board({**scope, "path": path or "/"}, receive, send)

    async with Visitor(proxy, root="/ops/queues") as visitor:
        page = await visitor.page("/")
        assert page == await visitor.page("")
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page)
        assert len(links) > 10
        assert all(link.startswith("/ops/queues/") for link in links)
        assert 'data-base="/ops/queues"' in page  # for scripts: the stream, the charts, the keys
        style = page.split('rel="stylesheet" href="')[1].split('"')[0]
        assert (await visitor.client.get(style)).status_code == 200
        assert (await visitor.get("/healthz")).text == "ok\n"
        assert (await visitor.get("/workers/", 303)).headers["location"] == "/ops/queues/workers"
        answer = await visitor.submit(f"/topics/{TOPIC}/message?id={id}", "Requeue")
        assert answer.url.path == f"/ops/queues/topics/{TOPIC}/message"
        assert "Requeued." in answer.text
    await board.close()


@pytest.mark.parametrize("path", ["queues", "/a//b", "/a b", "/ü", "/<", "/topics", "/live/x"])
def test_a_root_path_that_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match=r"^root path "):
        Dashboard(MessageQueue("redis://localhost"), allow_all=True, root_path=path)


def test_no_page_of_the_dashboard_may_begin_a_root_path() -> None:
    firsts = {route.path.split("/")[1] for route in _routes(None)} - {"", "{path:path}"}
    assert len(firsts) == 13
    for first in firsts:
        with pytest.raises(InvalidInput, match=f": /{first} is a page of the dashboard$"):
            Dashboard(MessageQueue("redis://localhost"), allow_all=True, root_path=f"/{first}/x")


async def test_closing_the_queue_ends_what_a_mounted_dashboard_began(mq: MessageQueue) -> None:
    board = Dashboard(mq, allow_all=True)
    async with Visitor(board) as visitor:
        await visitor.page("/")
    assert board.parts.sampler._task is not None
    await mq.close()
    assert board.parts.sampler._task is None
    await mq.open()
