"""How to wait for PostgreSQL's notifications with each driver."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def until_lost(driver: Any, channel: str, wake: Callable[[], None]) -> None:
    """Call `wake` for each notification, until the connection is lost. For asyncpg."""
    lost = asyncio.Event()
    driver.add_termination_listener(lambda _: lost.set())
    await driver.add_listener(channel, lambda *_: wake())
    wake()  # for what was committed before
    await lost.wait()
    raise ConnectionError("the connection that listens was lost")


async def wait_and_read(
    driver: Any, wake: Callable[[], None], read: Callable[[], Awaitable[object]]
) -> None:
    """Call `wake` whenever something has arrived and was read. For psycopg, which listens already.

    `read` executes a statement, which reads what has arrived; if the connection is lost, it raises.
    """
    loop = asyncio.get_running_loop()
    if hasattr(driver, "add_notify_handler"):  # psycopg 3: do not keep them
        driver.add_notify_handler(lambda _: None)
    while True:
        await read()
        wake()
        if hasattr(driver, "notifies") and isinstance(driver.notifies, list):  # psycopg2
            driver.notifies.clear()
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(driver.fileno(), _set, readable)
        try:
            await readable
        finally:
            loop.remove_reader(driver.fileno())


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
