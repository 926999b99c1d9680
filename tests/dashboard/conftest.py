"""A queue, its dashboard, and somebody who looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mx_rmq import MessageQueue
from mx_rmq.dashboard import Dashboard, bulk_actions, queries, sampler
from tests.dashboard.visitor import Visitor
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from redis.asyncio import Redis

    from tests.lab.servers import Server


@pytest.fixture(params=[Kind.VALKEY_9_1])
def kind(request: pytest.FixtureRequest) -> Kind:
    """What the dashboard shows, Python decides: one kind of server is enough."""
    one: Kind = request.param
    return one


@pytest.fixture(scope="module", autouse=True)
def _patient() -> Iterator[None]:
    """Let messages be counted to the end, and the server answer, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_actions, "COUNT_WITHIN", 30)
        patch.setattr(queries, "ANSWERS_WITHIN", 30)
        yield


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with MessageQueue(server.url, patience=1) as mq:
        yield mq


@pytest.fixture
async def board(mq: MessageQueue) -> AsyncIterator[Dashboard]:
    board = Dashboard(mq, allow_all=True)
    yield board
    await board.close()


@pytest.fixture
async def visitor(board: Dashboard) -> AsyncIterator[Visitor]:
    async with Visitor(board) as visitor:
        yield visitor


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the dashboard look at the topics without pause."""
    monkeypatch.setattr(sampler, "EVERY", 0.05)
    monkeypatch.setattr(sampler, "SHARE", 0)
