"""A queue and a database for each test of the outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq import MessageQueue
from tests.lab.servers import Kind, chosen
from tests.outbox.databases import ASYNC, SYNC, new_async_engine, new_engine, url_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from redis.asyncio import Redis
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from tests.lab.postgres import Postgres
    from tests.lab.servers import Server


@pytest.fixture(params=chosen(Kind.VALKEY_9_1))
def kind(request: pytest.FixtureRequest) -> Kind:
    one: Kind = request.param
    return one


@pytest.fixture
async def mq(server: Server, raw: Redis) -> AsyncIterator[MessageQueue]:
    async with MessageQueue(server.url) as mq:
        yield mq


@pytest.fixture(params=SYNC)
def engine(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> Iterator[Engine]:
    engine = new_engine(url_of(request.param, postgres, tmp_path))
    yield engine
    engine.dispose()


@pytest.fixture(params=ASYNC)
async def async_engine(
    request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path
) -> AsyncIterator[AsyncEngine]:
    async with new_async_engine(url_of(request.param, postgres, tmp_path)) as engine:
        yield engine
