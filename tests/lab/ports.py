"""Ports for servers: nobody uses them now, and nobody takes them before the server does."""

from __future__ import annotations

import os
import random
import socket
from itertools import cycle
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

BUS: Final = 10_000
"""How far a cluster's bus is from the port, where the server does not let us choose."""

_SHARES: Final = 10
"""Processes of a test run whose ports are apart; so are those of the bus."""


def free_ports(count: int) -> list[int]:
    """Return loopback ports that nobody uses now, and whose bus ports nobody uses either.

    Until somebody listens there, nobody else is given them: no other test, no other process of a
    test run, and by the system no outgoing connection. So a server that is killed finds its port
    free when it comes back, and no client that knocks meanwhile connects to itself.
    """
    return [free_port() for _ in range(count)]


def free_port() -> int:
    """Return one of them."""
    return next(port for port in _OURS if _is_free(port) and _is_free(port + BUS))


def _ours() -> Iterator[int]:
    """Yield every port of this process, each as seldom as can be; the system gives none of them."""
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SHARES
    ours = range(BUS + share, 2 * BUS, _SHARES)
    return cycle(random.sample(ours, len(ours)))


_OURS: Final = _ours()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
