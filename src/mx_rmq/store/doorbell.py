"""The doorbells of the topics of one site, heard on a connection of their own.

Blocking is only ever on doorbells, never on data: what a broken connection can lose is a ring,
and a ring costs time, not a message.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from redis import exceptions as redis_errors

from mx_rmq.core.errors import ScriptFailed, ServerUnavailable
from mx_rmq.safe_log import get_logger
from mx_rmq.store.wire import LATE, pack

if TYPE_CHECKING:
    from collections.abc import Collection

    from mx_rmq.store.call import Caller
    from mx_rmq.store.keys import Keys
    from mx_rmq.store.servers import Node
    from mx_rmq.store.wire import Wire

logger = get_logger(__name__)

OVERDUE: Final = 2.0
"""Seconds after the agreed wait at which a silent connection counts as dead."""


LEAVE_OUT: Final = 60.0
"""Seconds for which a key of a wrong type is not listened to."""

NAMELESS: Final = -1
"""Instead of a connection's number, if the user may not ask for it."""


class Ring(NamedTuple):
    """Something happened in a topic: a message is pending or, if `delay`, due earlier."""

    topic: str
    delay: bool


class Doorbell:
    """One blocking connection."""

    def __init__(self, caller: Caller, keys: Keys, site: int) -> None:
        self._caller = caller
        self._servers = caller.servers
        self._keys = keys
        self._site = site
        self._link = caller.links[site]
        self._wire: Wire | None = None
        self._node: Node | None = None
        """The server at the other end of the wire."""
        self._number: int | None = None
        """The server's number of this connection; None: not known yet."""
        self._waiting = False
        self._broken: dict[str, float] = {}
        """Keys of a wrong type, and until when nobody asks for them, on the monotonic clock."""
        self._rings: dict[str, Ring] = {}
        """What each key tells. The one that was heard last comes last."""
        self._known: set[str] = set()
        """The topics of these keys."""

    async def wait(
        self, topics: Collection[str], delays: Collection[str], seconds: float
    ) -> Ring | None:
        """Wait for a ring of any of these; None: none came, or `unblock` was called."""
        heard = self._choose(topics, delays)
        self._waiting = True
        try:
            within = OVERDUE + seconds
            wire = self._wire or await self._open(within)
            call = pack(("BLPOP", *heard, f"{seconds:.3f}"))
            reply = await wire.ask(call, within, late=LATE + seconds)
        except redis_errors.ResponseError as error:
            if _is_elsewhere(error):
                await self.close()
                if isinstance(error, redis_errors.MovedError):
                    self._servers.redirected(error)
                raise ServerUnavailable(f"the doorbells are elsewhere: {error}") from error
            await self._find_broken(heard, error)
            return await self.wait(topics, delays, seconds)
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            await self.close()
            self._link.failed(error)
            await self._servers.look_again()
            raise ServerUnavailable(f"the doorbells cannot be heard: {error}") from error
        except BaseException:
            await self.close()  # a reply may still come
            raise
        finally:
            self._waiting = False
        self._link.answered()
        if not reply:
            return None
        key = reply[0].decode()
        # The server takes the first that rings: the one that was heard last comes last, or busy
        # topics would drown the others.
        ring = self._rings[key] = self._rings.pop(key)
        return ring

    def _choose(self, topics: Collection[str], delays: Collection[str]) -> list[str]:
        """Return the keys to listen to."""
        pending, due = frozenset(topics), frozenset(delays)
        for topic in (pending | due) - self._known:
            keys = self._keys.of(topic)
            self._rings[keys.doorbell] = Ring(topic, delay=False)
            self._rings[keys.doorbell_delay] = Ring(topic, delay=True)
            self._known.add(topic)
        if len(self._rings) == len(pending) + len(due) and not self._broken:
            return [*self._rings]
        now = time.monotonic()
        return [
            key
            for key, (topic, delay) in self._rings.items()
            if topic in (due if delay else pending) and self._broken.get(key, 0) < now
        ]

    async def unblock(self) -> None:
        """End a wait that is under way, so that the next one can listen to other doorbells."""
        before = self._wire
        while self._waiting and (before is None or self._wire is before):
            before = self._wire
            try:
                if self._number == NAMELESS:
                    await self.close()
                    return
                if self._node is not None and self._number is not None:
                    words = ("CLIENT UNBLOCK", self._number)
                    if await self._node.execute(words, OVERDUE):
                        return
            except redis_errors.RedisError:  # it is away, or we may not: we give the wait up
                await self.close()
                return
            await asyncio.sleep(0.001)  # the wait has not reached the server yet

    async def _find_broken(self, keys: list[str], error: Exception) -> None:
        """Leave out keys of a wrong type from now on: one of them would deafen us for all."""
        broken = [
            key for key in keys if await self._caller.command("TYPE", key) not in (b"none", b"list")
        ]
        if not broken:
            raise ScriptFailed(f"the doorbells cannot be heard: {error}") from error
        self._broken.update(dict.fromkeys(broken, time.monotonic() + LEAVE_OUT))
        logger.error(
            "no ring can be heard from %s, for what is there is not a list; its messages are "
            "found by looking around, every ten seconds",
            ", ".join(broken),
        )

    async def close(self) -> None:
        """Hang up; the next wait connects anew."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
            await wire.gone

    async def _open(self, within: float) -> Wire:
        self._number = None
        self._node = self._servers.node_at(self._site)
        wire = self._wire = await self._node.open_apart(within)
        try:
            self._number = await wire.ask(pack(("CLIENT", "ID")), within)
        except redis_errors.ResponseError:  # the user may not
            self._number = NAMELESS
        return wire


def _is_elsewhere(error: Exception) -> bool:
    """Say whether the server is not, or not for now, the one to ask."""
    moving = redis_errors.AskError | redis_errors.TryAgainError | redis_errors.ClusterDownError
    if isinstance(error, moving | redis_errors.ReadOnlyError):
        return True
    return "UNBLOCKED" in str(error)  # while we waited: it has become a replica
