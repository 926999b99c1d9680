"""The doorbells of many topics, heard on a connection of their own.

Blocking is only ever on doorbells, never on data: what a broken connection can lose is a ring,
and a ring costs time, not a message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis import exceptions as redis_errors

from mx_rmq.core.errors import MxRmqError, OutcomeUnknown, ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from redis.asyncio.connection import AbstractConnection

    from mx_rmq.store.call import Caller
    from mx_rmq.store.keys import Keys
    from mx_rmq.store.link import Link

OVERDUE: Final = 2.0
"""Seconds after the agreed wait at which a silent connection counts as dead."""


class Ring(NamedTuple):
    """Something happened in a topic: a message is pending or, if `delay`, due earlier."""

    topic: str
    delay: bool


class Doorbell:
    """One blocking connection."""

    def __init__(
        self, connect: Callable[[], AbstractConnection], caller: Caller, keys: Keys, link: Link
    ) -> None:
        self._connect = connect
        self._caller = caller
        self._keys = keys
        self._link = link
        self._connection: AbstractConnection | None = None
        self._number = 0
        self._waiting = False

    async def wait(
        self, topics: Collection[str], delays: Collection[str], seconds: float
    ) -> Ring | None:
        """Wait for a ring of any of these; None: none came, or `unblock` was called."""
        rings = {self._keys.of(topic).doorbell.encode(): Ring(topic, False) for topic in topics}
        rings |= {
            self._keys.of(topic).doorbell_delay.encode(): Ring(topic, True) for topic in delays
        }
        try:
            async with asyncio.timeout(OVERDUE + seconds):
                connection = await self._connected()
                self._waiting = True
                reply = await self._ask(connection, "BLPOP", *rings, f"{seconds:.3f}")
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            await self.close()
            self._link.failed(error)
            raise ServerUnavailable(f"the doorbells cannot be heard: {error}") from error
        except BaseException:
            await self.close()  # a reply may still come
            raise
        finally:
            self._waiting = False
        self._link.answered()
        return rings.get(reply[0]) if reply else None

    async def unblock(self) -> None:
        """End a wait that is under way, so that the next one can listen to other doorbells."""
        waiting_on = self._connection
        while self._waiting and self._connection is waiting_on:
            try:
                if await self._caller.command("CLIENT UNBLOCK", self._number):
                    return
            except (ServerUnavailable, OutcomeUnknown):
                return  # then the wait has ended, too
            except MxRmqError:  # the user may not: then the connection is given up
                await self.close()
                return
            await asyncio.sleep(0.001)  # the wait had not reached the server yet

    async def close(self) -> None:
        """Close the connection; the next wait opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _connected(self) -> AbstractConnection:
        if self._connection is None:
            connection = self._connect()
            await connection.connect()  # type: ignore[no-untyped-call] # the client's own gap
            self._connection = connection
            try:
                self._number = await self._ask(connection, "CLIENT", "ID")
            except redis_errors.ResponseError:
                self._number = 0
        return self._connection

    async def _ask(self, connection: AbstractConnection, *words: bytes | str) -> Any:
        await connection.send_command(*words)
        return await connection.read_response()
