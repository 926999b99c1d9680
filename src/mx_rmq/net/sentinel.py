"""The current primary, as Sentinel names it.

redis-py asks the Sentinels for every new connection. This module does what redis-py does not: it
closes connections to a primary that has been replaced and does not know it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from redis import exceptions as redis_errors
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel

from mx_rmq.net.connection import LATE
from mx_rmq.net.topology import Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio.client import Redis as RedisClient


_AWAY: Final = (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError)


class Sentinels(Sentinel):
    """The Sentinels. One that does not answer is skipped."""

    def __init__(self, clients: list[RedisClient]) -> None:
        super().__init__([])  # type: ignore[no-untyped-call] # redis-py leaves it untyped
        self.sentinels = clients
        self.is_connected: Callable[[], bool] = lambda: False  # to the primary
        self._last: tuple[str, int] | None = None

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the address of a primary. The Sentinel that answers is asked first next time.

        If no Sentinel can be reached, but we are connected to the primary, it is still that one.
        """
        answers: list[str] = []
        refusal: Exception | None = None
        heard = False
        for sentinel in list(self.sentinels):
            options = sentinel.connection_pool.connection_kwargs
            try:
                known = cast("dict[str, Any]", await sentinel.sentinel_masters())
            except (redis_errors.RedisError, OSError) as error:
                answers.append(f"{options['host']}:{options['port']}: {error}")
                if refusal is None or isinstance(error, redis_errors.AuthenticationError):
                    refusal = error
                heard |= isinstance(error, redis_errors.AuthenticationError) or not isinstance(
                    error, _AWAY
                )
                continue
            heard = True
            state = known.get(service_name)
            if state and self.check_master_state(state, service_name):
                self.sentinels.sort(key=lambda one: one is not sentinel)
                self._last = state["ip"], state["port"]
                return self._last
            answers.append(f"{options['host']}:{options['port']} knows no primary with this name")
        if self._last is not None and not heard and self.is_connected():
            return self._last
        raise MasterNotFoundError(
            f"no Sentinel knows a primary named {service_name!r}: {'; '.join(answers)}"
        ) from refusal


class PrimaryNode(Node):
    """The current primary, as Sentinel names it."""

    def __init__(self, client: RedisClient, sentinels: Sentinels, name: str) -> None:
        super().__init__(client)
        self.wires.on_late = self._check_primary
        self._sentinels = sentinels
        sentinels.is_connected = self.wires.is_connected
        self._name = name
        self._checking: asyncio.Task[None] | None = None
        self.still_primary = self._is_primary

    @property
    def name(self) -> str:
        return self._name

    async def _is_primary(self) -> bool:
        """Close the wires to a primary that was replaced, so that new ones go to the new one."""
        await asyncio.wait([self._check_primary()], timeout=LATE)
        return True

    def _check_primary(self) -> asyncio.Task[None]:
        """Ask the Sentinels; if the primary has changed, close the wires to the old one."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._ask_sentinels(), name="mx-rmq sentinel")
        return self._checking

    async def _ask_sentinels(self) -> None:
        with suppress(redis_errors.RedisError):
            address = await self._sentinels.discover_master(self._name)
            if self.wires.goes_elsewhere(address):
                self.hang_up()

    async def close(self) -> None:
        """Close all connections, also those to the Sentinels."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait([self._checking])
        await super().close()
        for sentinel in self._sentinels.sentinels:
            await sentinel.aclose()
