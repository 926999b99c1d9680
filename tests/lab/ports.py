"""Ports for servers: nobody uses them now, and nobody takes them before the server does."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from typing import Final

BUS: Final = 10_000
"""How far a cluster's bus is from the port, where the server does not let us choose."""

SHARES: Final = 8
"""Processes of a test run whose ports are apart."""

_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")

_given: Final[set[int]] = set()


def free_port() -> int:
    """Return one of them."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Return loopback ports that nobody uses now, and whose bus ports nobody uses either.

    The system gives them to nobody's outgoing connection: a server that is killed finds its port
    free when it comes back, and no client that knocks meanwhile connects to itself. Nor are they
    given to another test, in this process or in the next: a server is there only a while later.
    """
    first = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    share = (min(first, 3 * BUS) - 2 * BUS) // SHARES
    low = BUS + share * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % SHARES)
    if len(_given) > share // 2:
        _given.clear()  # those of long ago are free again
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(low, low + share)
        if port not in _given and _is_free(port) and _is_free(port + BUS):
            _given.add(port)
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
