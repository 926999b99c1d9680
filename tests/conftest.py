"""Servers for every test, and an audit after it."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
from functools import cache
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from redis.asyncio import Redis
from redis.utils import get_lib_version

from mx_rmq.admin import Admin
from mx_rmq.store.store import Store
from tests.lab.clock import Clock
from tests.lab.postgres import Postgres
from tests.lab.servers import USUAL, Kind, Server, chosen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

settings.register_profile(
    "by no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("by no clock")  # which other work on the machine delays

pytest.register_assert_rewrite("tests.store.contracts", "tests.lab.broken", "tests.lab.calls")


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell lets what it runs in the background ignore Ctrl-C, and all its children inherit
        # that: then nobody could interrupt the commands that are tested.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # redis-py reads its own version from the disk for every connection: a tenth of a store test.
    patch("redis.utils.get_lib_version", cache(get_lib_version)).start()


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking over every module and test, thousands of times."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def _known_variables_only() -> Iterator[None]:
    """Remove the variable that chose the servers: a program would warn that it does not know it."""
    with patch.dict(os.environ):
        os.environ.pop("MX_RMQ_SERVERS", None)
        yield


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that is run in this process sets the log level and filters for the rest of it.

    `mx-rmq dashboard` limits the lines of all handlers, pytest's own included.
    """
    log = logging.getLogger("mx_rmq")
    level = log.level
    filters = [(handler, list(handler.filters)) for handler in logging.getLogger().handlers]
    yield
    log.setLevel(level)
    for handler, before in filters:
        handler.filters = before


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], Server]]:
    """Return a server of a kind, started once a session."""
    started: dict[Kind, Server] = {}

    def get(kind: Kind) -> Server:
        if kind not in started:
            started[kind] = Server(kind, tmp_path_factory.mktemp("server")).start()
        return started[kind]

    yield get
    for server in started.values():
        server.kill()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server. A test makes its own database in it: `postgres.new_database()`."""
    with Postgres("-c", "fsync=off") as server:
        yield server


@pytest.fixture(params=chosen(*USUAL))
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of server, one after the other. Parametrize `kind` to choose fewer."""
    one: Kind = request.param
    return one


@pytest.fixture
def server(kind: Kind, running: Callable[[Kind], Server]) -> Server:
    return running(kind)


@pytest.fixture
async def raw(server: Server) -> AsyncIterator[Redis]:
    """A plain client of an empty server, to look and to break with."""
    client = Redis.from_url(server.url)
    await client.flushall()
    await client.script_flush()
    yield client
    await client.aclose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(
    raw: Redis, server: Server, clock: Clock, request: pytest.FixtureRequest
) -> AsyncIterator[Store]:
    """An open store on an empty server; afterwards the audit must be clean."""
    async with await Store.open(server.url, clock=clock) as store:
        yield store
        if request.node.get_closest_marker("corrupts") is None:
            await assert_clean(store, raw)


KNOWN_KEY = re.compile(
    rb"mx-rmq:(topics|workers|layout|schedule_topics|caretaker:\{mx-rmq:topics\})|"
    rb"mx-rmq:\{[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[1-9][0-9]{0,3})?\}"
    rb"(@[A-Za-z0-9][A-Za-z0-9._-]{0,63})?:"
    rb"(payload|(pending|delay_tasks)(:high|:low)?|processing|expire_monitor|dlq(:payload)?|"
    rb"error:parse:(queue|payload)|results(:payload)?|progress:[^ ]+|archive_bytes|"
    rb"doorbell(:delay)?|meta|totals|history|expiry|"
    rb"waiting|awaited|signals|cancelled|recent|lines|ring|blocked|keyed|running|limits|buckets|"
    rb"schedules|"
    rb"receipt:[0-9a-z]{13})"
)


async def assert_clean(store: Store, raw: Redis) -> None:
    """Every message of every topic is in exactly one state, and no unknown key exists."""
    admin = Admin(store)
    for topic in await admin.topics():
        assert await admin.audit(topic) == []
    unknown = [key async for key in raw.scan_iter() if not KNOWN_KEY.fullmatch(key)]
    assert unknown == []


@pytest.fixture
def short_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose name leaves room for a socket's."""
    return tmp_path_factory.mktemp("d")
