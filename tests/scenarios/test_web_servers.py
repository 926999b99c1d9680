"""Applications in real web servers: they fork after mq.sync was used, reload, and lose clients."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from mx_rmq import MessageQueue
from tests.cli.running import until
from tests.lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["mx_rmq.testing"]

PROGRAMS = Path(sys.executable).parent

WSGI = """
    import os, threading
    from mx_rmq import MessageQueue

    mq = MessageQueue()
    mq.sync.produce("booted", os.getpid())

    def app(environ, start_response):
        if environ["PATH_INFO"] == "/events":
            start_response("200 OK", list(mq.sse_headers.items()))
            return mq.sync.sse("asked", environ["QUERY_STRING"], heartbeat=0.1)
        id = mq.sync.produce("asked", os.getpid())
        ours = [one for one in threading.enumerate() if one.name == "mx-rmq-sync"]
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [f"{os.getpid()} {len(ours)} {id}".encode()]
"""

ASGI = """
    import asyncio
    from mx_rmq import MessageQueue, Worker
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    mq = MessageQueue()

    @mq.handler("said", result_ttl=60)
    async def answer(_: int) -> str:
        return "first"

    async def ask(request):
        id = await mq.produce("said", 1)
        return PlainTextResponse(await mq.result("said", id, timeout=10))

    @mq.handler("slow")
    async def wait(_: int) -> None:
        await asyncio.sleep(3600)

    async def wait_long(request):
        return PlainTextResponse(await mq.produce("slow", 1))

    routes = [Route("/", ask), Route("/slow", wait_long)]
    app = Starlette(routes=routes, lifespan=Worker(mq, grace=0.1).run_in_app)
"""


FLASK = """
    from flask import Flask
    from mx_rmq import MessageQueue

    mq = MessageQueue()
    app = Flask("app")

    @app.get("/")
    def ask():
        mq.sync.produce("said", 1)
        return "first"
"""

STARLETTE = """
    import asyncio
    from mx_rmq import MessageQueue
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    mq = MessageQueue()

    async def ask(request):
        return PlainTextResponse(await mq.produce("asked", 1))

    async def events(request):
        events = mq.sse("asked", request.path_params["id"])
        return StreamingResponse(events, headers=mq.sse_headers)

    async def readers(request):
        names = [task.get_name() for task in asyncio.all_tasks()]
        return PlainTextResponse(str(names.count("mx-rmq sse")))

    routes = [Route("/", ask), Route("/events/{id}", events), Route("/readers", readers)]
    app = Starlette(routes=routes, lifespan=mq.open_in_app)
"""

LITESTAR = """
    import asyncio
    from litestar import Litestar, get
    from litestar.params import FromPath
    from litestar.response import Stream
    from mx_rmq import MessageQueue

    mq = MessageQueue()

    @get("/")
    async def ask() -> str:
        return await mq.produce("asked", 1)

    @get("/events/{id:str}")
    async def events(id: FromPath[str]) -> Stream:
        return Stream(mq.sse("asked", id), headers=mq.sse_headers)

    @get("/readers")
    async def readers() -> str:
        names = [task.get_name() for task in asyncio.all_tasks()]
        return str(names.count("mx-rmq sse"))

    app = Litestar([ask, events, readers], lifespan=[mq])
"""


@contextmanager
def serving(
    directory: Path, url: str, code: str, *words: str, until_it_listens: bool = True
) -> Iterator[httpx.Client]:
    """Run a web server with a program, until the block ends; yield a client of it."""
    (directory / "app.py").write_text(textwrap.dedent(code))
    port = free_port()
    program, *rest = (word.replace("PORT", str(port)) for word in words)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAMS / program, *rest],
            cwd=directory,
            env={**os.environ, "MX_RMQ_URL": url, "HOME": str(directory)},  # gunicorn writes there
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        limits = httpx.Limits(max_keepalive_connections=0)  # or one process would answer all
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, limits=limits) as client:
            if until_it_listens:
                until(lambda: connects(port) or process.poll() is not None)
            yield client
            process.terminate()
            assert process.wait(30) in (0, -signal.SIGTERM)
    except BaseException as error:
        error.add_note((directory / "log").read_text())
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def connects(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def count(url: str, topic: str) -> int:
    mq = MessageQueue(url)
    try:
        return mq.sync.call(lambda mq: mq.admin.stats(topic)).pending
    finally:
        mq.sync.close()


GUNICORN = ("gunicorn", "app:app", "--bind=127.0.0.1:PORT", "--workers=2", "--threads=8")
UWSGI = ("uwsgi", "--http=127.0.0.1:PORT", "--module=app:app", "--master", "--processes=2")


@pytest.mark.parametrize(
    ("words", "booted"),
    [
        pytest.param((*GUNICORN, "--preload"), 1, id="gunicorn-preload"),
        pytest.param(GUNICORN, 2, id="gunicorn"),
        pytest.param((*UWSGI, "--threads=8", "--die-on-term"), 1, id="uwsgi"),
    ],
)
def test_processes_that_are_forked_after_a_first_use_have_a_connection_each(
    words: tuple[str, ...], booted: int, mx_rmq_url: str, short_path: Path
) -> None:
    with serving(short_path, mx_rmq_url, WSGI, *words) as client, ThreadPoolExecutor(16) as at:
        answers: list[list[str]] = []

        def both_have_answered() -> bool:
            texts = at.map(lambda _: client.get("/").raise_for_status().text, range(32))
            answers.extend(text.split() for text in texts)
            return len({process for process, _, _ in answers}) == 2

        until(both_have_answered)
    ids = [id for _, _, id in answers]
    assert len(set(ids)) == len(ids) == count(mx_rmq_url, "asked")
    assert count(mx_rmq_url, "booted") == booted
    if words[0] == "gunicorn":  # uWSGI does not tell Python that it has forked
        assert {number for _, number, _ in answers} == {"1"}


def test_a_reader_of_events_that_goes_away_frees_its_thread(
    mx_rmq_url: str, short_path: Path
) -> None:
    words = (
        "gunicorn",
        "app:app",
        "--bind=127.0.0.1:PORT",
        "--threads=1",
        "--worker-class=gthread",
    )
    with serving(short_path, mx_rmq_url, WSGI, *words) as client:
        _, _, id = client.get("/").text.split()
        with client.stream("GET", f"/events?{id}") as events:
            assert "pending" in next(events.iter_lines())
        assert client.get("/").status_code == 200  # by the only thread


UVICORN = ("uvicorn", "app:app", "--port=PORT")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        pytest.param(ASGI, (*UVICORN, "--reload"), id="uvicorn"),
        pytest.param(
            FLASK, ("gunicorn", "app:app", "--bind=127.0.0.1:PORT", "--reload"), id="gunicorn"
        ),
        pytest.param(FLASK, ("flask", "--app=app", "--debug", "run", "--port=PORT"), id="flask"),
    ],
)
def test_an_application_is_reloaded_and_goes_on(
    code: str, words: tuple[str, ...], mx_rmq_url: str, short_path: Path
) -> None:
    with serving(short_path, mx_rmq_url, code, *words) as client:

        def says(text: str) -> bool:
            try:
                return client.get("/").text == text
            except httpx.TransportError:  # between two processes
                return False

        until(lambda: says("first"))
        if code is ASGI:
            client.get("/slow")
        changed = textwrap.dedent(code).replace("first", "second")
        for _ in range(10):  # a reloader may not have looked at the first file yet
            (short_path / "app.py").write_text(changed)
            with suppress(AssertionError):
                until(lambda: says("second"), 5)
                break
        else:
            pytest.fail("it was not reloaded")


def test_uvicorns_processes_say_what_to_do_instead_of_mq_sync_at_import(
    mx_rmq_url: str, short_path: Path
) -> None:
    def told() -> bool:
        return "in the application's lifespan" in (short_path / "log").read_text()

    with serving(short_path, mx_rmq_url, WSGI, *UVICORN, "--workers=2", until_it_listens=False):
        until(told)


@pytest.mark.parametrize("code", [STARLETTE, LITESTAR], ids=["starlette", "litestar"])
def test_an_application_does_not_watch_for_a_reader_that_has_gone(
    code: str, mx_rmq_url: str, short_path: Path
) -> None:
    words = (*UVICORN, "--timeout-graceful-shutdown=1")
    with serving(short_path, mx_rmq_url, code, *words) as client:
        id = client.get("/").text
        for _ in range(3):
            with client.stream("GET", f"/events/{id}") as events:
                assert "pending" in next(events.iter_lines())
        until(lambda: client.get("/readers").text == "0")
        client.send(client.build_request("GET", f"/events/{id}"), stream=True)
        until(lambda: client.get("/readers").text == "1")  # and the server must stop all the same
