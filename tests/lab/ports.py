"""Free ports for servers, reserved until the server takes them."""

from __future__ import annotations

import random
import socket
from functools import cache
from itertools import cycle
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

BUS: Final = 10_000
"""The distance from the port to a cluster's bus port, if the server does not let us choose."""

SHARES: Final = 64
"""How many test processes of this machine can share the ports without ever choosing the same."""


def free_ports(count: int) -> list[int]:
    """Return free loopback ports whose bus ports are free, too.

    Until a server listens there, no one else gets them: no other test, no other test process, and
    no outgoing connection. So a killed server finds its port free when it restarts, and no client
    that tries to connect meanwhile connects to itself.
    """
    return [free_port() for _ in range(count)]


def free_port() -> int:
    """Return one such port."""
    return next(port for port in _ours() if _is_free(port) and _is_free(port + BUS))


@cache
def _ours() -> Iterator[int]:
    """Every port of this process, in rotation; the system gives none of them to others."""
    ours = range(BUS + _claim(), 2 * BUS, SHARES)
    return cycle(random.sample(ours, len(ours)))


def _claim() -> int:
    """Return a number that no other process has, until this process ends.

    It claims a socket name. The name is in no directory, because each test process may have its
    own temporary one.
    """
    for number in range(SHARES):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0mx-rmq-ports-{number}")
        except OSError:
            claim.close()
        else:
            claim.detach()  # never closed
            return number
    raise RuntimeError(f"{SHARES} test processes use all ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
