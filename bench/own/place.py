"""The place of a measurement: a server, and our own prefix, which is cleaned up."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.own.gauge import Gauge
from bench.own.load import Trouble
from mx_rmq.core.names import check_prefix
from mx_rmq.embedded import EmbeddedServer
from mx_rmq.queue import MessageQueue
from mx_rmq.store import Store
from mx_rmq.store.delete_keys import wipe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.own.gauge import Nature

PREFIX: Final = "mx-rmq-bench"


class OwnServer(EmbeddedServer):
    """An embedded server that keeps nothing on disk, so no fsync or rewrite disturbs."""

    def _options(self, port: int | None) -> list[str]:
        return [*super()._options(port), "--appendonly", "no"]


@dataclass(frozen=True, slots=True)
class Place:
    """A server to measure, and the prefix of everything that we write."""

    url: str
    prefix: str
    patience: float
    own: bool
    """Whether no other client uses the server."""
    gauge: Gauge
    nature: Nature

    @asynccontextmanager
    async def queue(self, **settings: Any) -> AsyncIterator[MessageQueue]:
        """Open an empty queue; afterwards nothing is left of it."""
        prefix = self._another_prefix()
        mq = MessageQueue(self.url, prefix=prefix, patience=self.patience, **settings)
        try:
            async with mq:
                yield mq
        finally:
            await _tidy(self.url, prefix)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """Open an empty store; afterwards nothing is left of it."""
        prefix = self._another_prefix()
        try:
            opening = Store.open(self.url, prefix=prefix, patience=self.patience)
            async with await opening as store:
                yield store
        finally:
            await _tidy(self.url, prefix)

    async def memory(self) -> int:
        """Return the bytes in use, once the memory of deleted keys is freed."""
        while True:
            reading = await self.gauge.read()
            if not reading.freeing:
                return reading.memory
            await asyncio.sleep(0.01)

    def _another_prefix(self) -> str:
        return f"{self.prefix}:{secrets.token_hex(4)}"


async def look(url: str, *, patience: float) -> tuple[Nature, float]:
    """Return the kind of server, and how many commands per second it gets. Changes nothing."""
    async with await Gauge.open(url, patience=patience) as gauge:
        nature = await gauge.nature()
        before = (await gauge.read()).calls
        await asyncio.sleep(1)
        return nature, float((await gauge.read()).calls - before)


def prefix_of_its_own(prefix: str) -> str:
    """Return a prefix that no other client has."""
    return check_prefix(f"{prefix}-{secrets.token_hex(4)}")


@asynccontextmanager
async def place(url: str | None, *, prefix: str, patience: float) -> AsyncIterator[Place]:
    """Connect to a server, or start one; afterwards nothing is left under the prefix."""
    async with AsyncExitStack() as stack:
        own = url is None
        if url is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="mx-rmq-bench-"))
            url = stack.enter_context(OwnServer.start(directory)).url
        gauge = await stack.enter_async_context(await Gauge.open(url, patience=patience))
        nature = await gauge.nature()
        try:
            yield Place(url, prefix, patience, own, gauge, nature)
        finally:
            await _tidy(url, prefix)


async def _tidy(url: str, prefix: str) -> None:
    """Delete what was written. If that fails, say where it is."""
    try:
        await wipe(url, prefix)
    except Exception as error:
        raise Trouble(f"keys under {prefix}: could not be deleted: {error}") from error
