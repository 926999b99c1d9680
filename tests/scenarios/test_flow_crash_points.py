"""Crash points of flows and follow-ups: a process dies at each of its calls, and others go on.

What dies is cut off before the call reaches the server, or before its reply is read.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Raw
from msgspec.structs import replace

from mx_rmq import Delivery, MessageQueue, Worker, flow
from mx_rmq.core import codec, steps
from mx_rmq.core.codec import encode_payload
from mx_rmq.core.message import Message
from mx_rmq.core.outcome import Complete, Finish
from mx_rmq.runtime.follow_ups import FollowUps
from tests.runtime.stage import on_a_server, until, until_so

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from redis.asyncio import Redis

    from mx_rmq.store import Store
    from tests.lab.servers import Server

pytestmark = on_a_server


class Doom:
    """Cuts a process off from the server: at its call number `at`, `before` or after it is made."""

    def __init__(self, store: Store, at: int, *, before: bool) -> None:
        self.calls = 0
        self._at, self._before = at, before
        self._run = store.run
        store.run = self  # type: ignore[method-assign] # it is cut off

    async def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls > self._at or (self.calls == self._at and self._before):
            raise asyncio.CancelledError
        answer = await self._run(*args, **options)
        if self.calls == self._at:
            raise asyncio.CancelledError
        return answer


def points(calls: int) -> Iterator[tuple[int, bool]]:
    return ((at, before) for at in range(1, calls + 1) for before in (True, False))


async def test_a_flow_whose_sender_dies_at_any_call(
    server: Server, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "HEAD_START", 300)
    calls = await send(server.url, 99, before=True)
    assert calls > 4
    await asyncio.gather(*(send(server.url, at, before=before) for at, before in points(calls)))


async def send(url: str, at: int, *, before: bool) -> int:
    """Send a flow, die, and let a worker do the rest; return how many calls were made."""
    async with MessageQueue(url, prefix=f"s{at}{before}") as mq:
        started: list[int] = []

        async def handle(number: int, delivery: Delivery) -> int:
            started.append(number)
            assert delivery.results == ([number - 1] if number > 1 else [])
            return number

        for topic in ("page", "part"):
            mq.handler(topic)(handle)
        async with Worker(mq), MessageQueue(url, prefix=f"s{at}{before}") as sender:
            doom = Doom(sender.store, at, before=before)
            with suppress(asyncio.CancelledError):
                async with sender.flow() as messages:
                    messages.produce("page", 0)
                    first = messages.produce("page", 1)
                    second = messages.produce("part", 2, after=[first])
                    messages.produce("page", 3, after=[second], delay=0.01)
            if await left(mq) or started:  # else it was not sent at all
                await until(lambda: len(started) >= 4)
                await until_so(partial(nothing_left, mq))
                assert sorted(started) == [0, 1, 2, 3]
    return doom.calls


async def test_a_worker_that_dies_at_any_call_after_its_handler_has_returned(
    server: Server, raw: Redis
) -> None:
    calls = await finish(server.url, 99, before=True)
    assert calls > 4
    await asyncio.gather(*(finish(server.url, at, before=before) for at, before in points(calls)))


async def finish(url: str, at: int, *, before: bool) -> int:
    """Finish a message with follow-ups and a parent, die, and let a worker do the rest."""
    async with MessageQueue(url, prefix=f"f{at}{before}", lease=1) as mq:
        ran: list[str] = []

        @mq.handler("order")
        async def order(_: None, delivery: Delivery) -> int:
            ran.append("order")
            delivery.produce("mail", "one")
            delivery.produce("mail", "two", delay=0.01)
            return 7

        @mq.handler("mail")
        async def mail(text: str) -> None:
            ran.append(text)

        @mq.handler("parent")
        async def parent(_: None, delivery: Delivery) -> None:
            ran.append(f"parent {delivery.results}")

        async with mq.flow() as messages:
            child = messages.produce("order", None)
            messages.produce("parent", None, after=[child])
        async with MessageQueue(url, prefix=f"f{at}{before}") as dying:
            store = dying.store
            (leased,) = (await store.dispatch_message("order", "w", count=1, lease=100)).messages
            message = codec.decode(leased.record, "order", leased.id)
            mails = [
                Message.new(
                    encode_payload(text, 100),
                    topic="mail",
                    id=steps.follow_up_id("order", message, number),
                    delay=delay,
                )
                for number, (text, delay) in enumerate((("one", 0), ("two", 10)), 1)
            ]
            follow_ups = FollowUps(store, worker="w")
            planned = await follow_ups.plan(mails)
            noted = replace(steps.read(message), then=planned, result=Raw(b"7"))
            doom = Doom(store, at, before=before)
            with suppress(asyncio.CancelledError):
                done = Finish(steps.write(message, noted), Complete())
                await follow_ups.finish("order", [(leased, done)])
        async with Worker(mq):
            await until(lambda: {"one", "two", "parent [7]"} <= {*ran})
            await until_so(partial(nothing_left, mq))
    again = ["order"] if (at, before) == (1, True) else []
    assert sorted(ran) == sorted(["one", "two", "parent [7]", *again])
    return doom.calls


async def left(mq: MessageQueue) -> int:
    """Return how many messages there are."""
    return sum([(await mq.admin.stats(topic)).total for topic in await mq.admin.topics()])


async def nothing_left(mq: MessageQueue) -> bool:
    return not await left(mq)
