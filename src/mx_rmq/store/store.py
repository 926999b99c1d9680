"""The store: the servers of one URL, all transitions, the reads and the audit."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from redis.exceptions import RedisError

from mx_rmq.core.errors import InvalidInput, OutcomeUnknown, ServerUnavailable
from mx_rmq.safe_log import get_logger
from mx_rmq.store.audit import Audit
from mx_rmq.store.call import REPLY_WITHIN, Caller
from mx_rmq.store.connect import connect
from mx_rmq.store.doorbell import Doorbell
from mx_rmq.store.keys import DEFAULT_PREFIX, Keys
from mx_rmq.store.preflight import Preflight, preflight
from mx_rmq.store.transitions import Transitions
from mx_rmq.store.trouble import cannot_use
from mx_rmq.store.views import Views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mx_rmq.core.config import Limits
    from mx_rmq.store.link import Link
    from mx_rmq.store.servers import Node

logger = get_logger(__name__)

MAX_PATIENCE: Final = 300
"""A call may be sent again for so long; the server remembers the first one for ten minutes."""

PATIENCE: Final = 10.0
"""Seconds that a call waits for a server that is away, before it gives up."""


class Store(Transitions):
    """An open store. `async with await Store.open(url) as store: …`"""

    def __init__(
        self,
        caller: Caller,
        keys: Keys,
        found: Preflight,
        *,
        limits: Limits | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(caller, keys, limits=limits, hexpire=found.hexpire, clock=clock)
        self._servers = caller.servers
        self._found = found
        self.links = caller.links
        """Whether the servers are there."""
        self.warnings = found.warnings
        self.views = Views(caller, keys, clock=clock)
        self.audit = Audit(caller, keys, self.limits, hexpire=found.hexpire, clock=clock)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        limits: Limits | None = None,
        patience: float = PATIENCE,
        load_scripts: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> Self:
        """Connect and look the server over."""
        keys = Keys(prefix)
        if not 0 <= patience <= MAX_PATIENCE:
            raise InvalidInput(f"patience={patience!r} is not from 0 to {MAX_PATIENCE} seconds")
        servers = await connect(url)
        try:
            reply_within = min(REPLY_WITHIN, max(1.0, patience))
            caller = Caller(
                servers, patience=patience, reply_within=reply_within, load_scripts=load_scripts
            )
            found = await preflight(caller, keys)
        except (OutcomeUnknown, ServerUnavailable) as error:
            await servers.close()
            raise cannot_use(url, error, patience) from error
        except BaseException:
            await servers.close()
            raise
        for warning in found.warnings:
            logger.warning("%s", warning)
        return cls(caller, keys, found, limits=limits, clock=clock)

    def site_of(self, topic: str) -> int:
        """Return where a topic lives: topics of one site may share a call."""
        return self._servers.site_of(self.keys.of(topic).payload)

    def by_server(self, topics: Iterable[str]) -> list[dict[int, list[str]]]:
        """Return topics by the server where they are, and there by site."""
        found: defaultdict[Node | None, defaultdict[int, list[str]]]
        found = defaultdict(lambda: defaultdict(list))
        for topic in topics:
            site, node = self.site_of(topic), None
            with suppress(RedisError):  # no server is known to have it: the call tells why
                node = self._servers.node_at(site)
            found[node][site].append(topic)
        return [dict(sites) for sites in found.values()]

    def link_of(self, site: int) -> Link:
        """Return whether the server of a site is there."""
        return self.links[site]

    def doorbell(self, site: int = 0) -> Doorbell:
        """Return a way to hear the doorbells of a site."""
        return Doorbell(self._caller, self.keys, site)

    def twin(self, *, patience: float = PATIENCE, reply_within: float = REPLY_WITHIN) -> Self:
        """Return a store of the same servers with connections of its own, for another event loop.

        Close it before this one: if the server is embedded, it stops with this one.
        """
        caller = Caller(
            self._servers.another(),
            patience=patience,
            reply_within=reply_within,
            load_scripts=self._caller.load_scripts,
        )
        return type(self)(caller, self.keys, self._found, limits=self.limits, clock=self._clock)

    async def close(self) -> None:
        """Close what was opened. No call gets through any more."""
        self._caller.closed = True
        await self._servers.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
