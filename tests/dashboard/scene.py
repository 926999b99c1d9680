"""A shop on a bad night: a queue with something of everything, for browsers and for pictures."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from playwright.async_api import async_playwright

from mx_rmq import MessageQueue, Reject, Worker
from mx_rmq.dashboard import Dashboard
from tests.lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from playwright.async_api import Browser
    from starlette.types import ASGIApp

    from mx_rmq.dashboard.auth import Authorize

Function = TypeVar("Function", bound="Callable[..., Any]")

CHROMIUM = "/usr/bin/chromium"

HEADERS = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}

HOSTILE = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"
"""Text that runs if it is ever taken for markup."""


@dataclass
class Payment:
    order: int
    card: str
    amount: float = 0.0


class BankAway(ConnectionError):
    """The bank does not answer."""


def _of(module: str) -> Callable[[Function], Function]:
    """Let a handler look like one of a real shop."""

    def named(function: Function) -> Function:
        function.__module__, function.__qualname__ = module, function.__name__
        return function

    return named


def shop(url: str, **settings: Any) -> MessageQueue:
    """Return a queue with its handlers, not open."""
    mq = MessageQueue(url, **{"lease": 5, **settings})

    @mq.handler("orders", concurrency=20)
    @_of("shop.orders")
    async def pack(order: dict[str, Any]) -> None:
        await asyncio.sleep(0.2)

    @mq.handler("mails", concurrency=10)
    @_of("shop.mails")
    async def send(mail: dict[str, Any]) -> None:
        await asyncio.sleep(0.4)

    @mq.handler("payments", max_attempts=3, retry=[0.01])
    @_of("shop.payments")
    async def charge(payment: Payment) -> None:
        if payment.card == "stolen":
            raise Reject("the card is stolen")
        if payment.card == HOSTILE:
            raise Reject(HOSTILE)
        await _ask_bank(payment)

    @mq.handler("reports")
    @_of("shop.reports")
    async def compile_report(report: dict[str, Any]) -> None:
        await asyncio.sleep(3600)

    @mq.handler("invoices")
    @_of("shop.invoices")
    async def write_invoice(invoice: dict[str, Any]) -> None:
        raise RuntimeError("invoices are paused, so nobody comes here")

    return mq


async def _ask_bank(payment: Payment) -> None:
    if payment.card == "void":
        raise BankAway(f"bank.example:443 did not answer within 5 s (order {payment.order})")


async def fill(mq: MessageQueue) -> dict[str, str]:
    """Bring messages into every state; return the ids of some. Takes a worker to finish."""
    ids = {
        "dead": await mq.produce(
            "payments", {"order": 1041, "card": "void", "amount": 59.9}, headers=HEADERS
        ),
        "rejected": await mq.produce("payments", {"order": 1042, "card": "stolen"}),
        "hostile": await mq.produce("payments", {"order": HOSTILE, "card": HOSTILE}),
        "quarantined": await mq.produce("payments", {"order": "10-43", "card": "visa"}),
        "pending": await mq.produce("invoices", {"order": 1044, "to": "anna@example.org"}),
        "delayed": await mq.produce("invoices", {"order": 1045}, delay=5400),
        "running": await mq.produce("reports", {"month": "2026-10"}, id="report-2026-10"),
    }
    for order in range(1046, 1060):
        await mq.produce(
            "payments", {"order": order, "card": "void", "amount": round(order / 7, 2)}
        )
    await mq.produce_many("invoices", [{"order": order} for order in range(1100, 1180)])
    await mq.produce("invoices", {"order": 1, "rush": True}, priority="high")
    for tenant, count in (("tenant-7", 24), ("tenant-12", 9), ("tenant-3", 2)):
        orders = [{"order": order} for order in range(1200, 1200 + count)]
        await mq.produce_many("invoices", orders, keys=[tenant] * count)
    await mq.admin.limit("invoices", running=20, rate="50/s")
    await mq.admin.limit("invoices", "tenant-7", rate="5/s", weight=2)
    await mq.admin.pause("invoices", "tenant-12", seconds=7200, reason="their bank is away")
    await mq.admin.pause("invoices")
    return ids


@dataclass(frozen=True)
class Scene:
    """A dashboard that can be looked at."""

    mq: MessageQueue
    board: Dashboard
    url: str
    ids: dict[str, str]


@asynccontextmanager
async def scene(
    server_url: str, authorize: Authorize | None = None, **settings: Any
) -> AsyncIterator[Scene]:
    """Run the shop, a worker and the dashboard, all in this process."""
    mq = shop(server_url, **settings)
    board = Dashboard(mq, authorize=authorize, allow_all=authorize is None)
    async with mq, serving(board) as url:
        ids = await fill(mq)
        async with Worker(mq, name="shop-7f3a", grace=0) as worker:
            while True:
                stats = await mq.admin.stats("payments")
                if stats.dead >= 16 and stats.quarantined >= 2:
                    break
                await asyncio.sleep(0.02)
            assert worker._engine is not None
            await worker._engine.beat()
            await board.parts.sampler.sample()
            yield Scene(mq, board, url, ids)


@asynccontextmanager
async def serving(board: Dashboard, app: ASGIApp | None = None) -> AsyncIterator[str]:
    """Serve a dashboard on this machine, or what it is mounted in; return the address."""
    port = free_port()
    config = uvicorn.Config(app or board, port=port, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await board.close()
        server.should_exit = True
        await task


@asynccontextmanager
async def chromium(fonts: Path | None = None) -> AsyncIterator[Browser]:
    """Run a real browser without a window; it also knows what is in `fonts` / "fonts"."""
    env: dict[str, str | float | bool] = {**os.environ}
    if fonts is not None:
        env["XDG_DATA_HOME"] = str(fonts)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], env=env
        )
        yield browser
        await browser.close()
