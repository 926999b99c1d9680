"""Listen to the doorbells of one site's topics, on a separate connection.

We block only on doorbells, never on data. A broken connection can lose a ring, and a lost ring
costs time, not a message.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from redis import exceptions as redis_errors

from mx_rmq.core.errors import ScriptFailed, ServerUnavailable
from mx_rmq.net.connection import LATE, pack
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mx_rmq.net.caller import Caller
    from mx_rmq.net.connection import Wire
    from mx_rmq.net.topology import Node

logger = get_logger(__name__)

OVERDUE: Final = 2.0  # seconds after the requested wait at which a silent connection counts as dead
LEAVE_OUT: Final = 60.0  # seconds for which a key of a wrong type is not listened to
NAMELESS: Final = -1  # stands for the connection's id if the user may not run CLIENT ID


class Ring(NamedTuple):
    """Something happened in a topic: a message is pending or, if `delay`, due earlier."""

    topic: str
    delay: bool


class Doorbell:
    """One blocking connection."""

    def __init__(
        self, caller: Caller, site: int, keys_of: Callable[[str], tuple[str, str]]
    ) -> None:
        self._caller = caller
        self._servers = caller.servers
        self._keys_of = keys_of  # a topic's doorbells: for pending messages and for due times
        self._site = site
        self._link = caller.links[site]
        self._wire: Wire | None = None
        self._node: Node | None = None  # the server at the other end of the wire
        self._number: int | None = None  # the connection's id on the server; None: not known yet
        self._waiting = False
        self._broken: dict[str, float] = {}  # keys of a wrong type: until when to leave them out
        self._rings: dict[str, Ring] = {}  # by key; the one that rang last is at the end
        self._known: set[str] = set()  # the topics of these keys

    async def wait(
        self, topics: Collection[str], delays: Collection[str], seconds: float
    ) -> Ring | None:
        """Wait for any of these doorbells to ring; None: none did, or `unblock` was called."""
        keys = self._choose(topics, delays)
        self._waiting = True
        try:
            within = OVERDUE + seconds
            wire = self._wire or await self._open(within)
            call = pack(("BLPOP", *keys, f"{seconds:.3f}"))
            reply = await wire.ask(call, within, late=LATE + seconds)
        except redis_errors.ResponseError as error:
            if _is_elsewhere(error):
                await self.close()
                if isinstance(error, redis_errors.MovedError):
                    self._servers.redirected(error)
                raise ServerUnavailable(f"the doorbells have moved: {error}") from error
            await self._find_broken(keys, error)
            return await self.wait(topics, delays, seconds)
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            await self.close()
            self._link.failed(error)
            await self._servers.find_servers()
            raise ServerUnavailable(f"cannot listen to the doorbells: {error}") from error
        except BaseException:
            await self.close()  # a reply may still come
            raise
        finally:
            self._waiting = False
        self._link.answered()
        if not reply:
            return None
        key = reply[0].decode()
        # The server pops the first key that rings. Move this one to the end, or busy topics would
        # drown out the others.
        ring = self._rings[key] = self._rings.pop(key)
        return ring

    def _choose(self, topics: Collection[str], delays: Collection[str]) -> list[str]:
        """Return the keys to listen to."""
        pending, due = frozenset(topics), frozenset(delays)
        for topic in (pending | due) - self._known:
            pending_key, delay_key = self._keys_of(topic)
            self._rings[pending_key] = Ring(topic, delay=False)
            self._rings[delay_key] = Ring(topic, delay=True)
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
        """End the current wait, so that the next one can listen to other doorbells."""
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
            except redis_errors.RedisError:  # away, or not permitted: drop the connection
                await self.close()
                return
            await asyncio.sleep(0.001)  # the wait has not reached the server yet

    async def _find_broken(self, keys: list[str], error: Exception) -> None:
        """Leave out keys of a wrong type: a single one makes the whole wait fail."""
        broken = [
            key for key in keys if await self._caller.command("TYPE", key) not in (b"none", b"list")
        ]
        if not broken:
            raise ScriptFailed(f"cannot listen to the doorbells: {error}") from error
        self._broken.update(dict.fromkeys(broken, time.monotonic() + LEAVE_OUT))
        logger.error(
            "cannot listen to %s: the key does not hold a list; its messages are found by polling, "
            "every ten seconds",
            ", ".join(broken),
        )

    async def close(self) -> None:
        """Close the connection; the next wait reconnects."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
            await wire.gone

    async def _open(self, within: float) -> Wire:
        self._number = None
        self._node = self._servers.node_at(self._site)
        wire = self._wire = await self._node.wires.open_separate(within)
        try:
            self._number = await wire.ask(pack(("CLIENT", "ID")), within)
        except redis_errors.ResponseError:  # the user may not run it
            self._number = NAMELESS
        return wire


def _is_elsewhere(error: Exception) -> bool:
    """Return whether this is not the server to ask, or not at the moment."""
    moving = redis_errors.AskError | redis_errors.TryAgainError | redis_errors.ClusterDownError
    if isinstance(error, moving | redis_errors.ReadOnlyError):
        return True
    return "UNBLOCKED" in str(error)  # it became a replica while we waited
