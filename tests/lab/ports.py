"""Ports for servers: nobody uses them now, and nobody takes them before the server does."""

from __future__ import annotations

import random
import socket
from functools import cache
from itertools import cycle
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

BUS: Final = 10_000
"""How far a cluster's bus is from the port, where the server does not let us choose."""

SHARES: Final = 64
"""Processes of this machine's tests that never choose the same port, in whatever runs."""


def free_ports(count: int) -> list[int]:
    """Return loopback ports that nobody uses now, and whose bus ports nobody uses either.

    Until somebody listens there, nobody else is given them: no other test, no other process of
    tests, and by the system no outgoing connection. So a server that is killed finds its port
    free when it comes back, and no client that knocks meanwhile connects to itself.
    """
    return [free_port() for _ in range(count)]


def free_port() -> int:
    """Return one of them."""
    return next(port for port in _ours() if _is_free(port) and _is_free(port + BUS))


@cache
def _ours() -> Iterator[int]:
    """Every port of this process, each as seldom as can be; the system gives none of them away."""
    ours = range(BUS + _claim(), 2 * BUS, SHARES)
    return cycle(random.sample(ours, len(ours)))


def _claim() -> int:
    """Return a number that no other process has; it is free again when this one has ended.

    The name of a socket is claimed, among the processes that share the ports. It is in no
    directory: each process of tests may have a temporary one of its own.
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
    raise RuntimeError(f"{SHARES} processes of tests use all ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
