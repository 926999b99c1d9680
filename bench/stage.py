"""A fresh server for one measurement, and one queue on it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis import Redis

from bench import handler
from bench.environments import ROOT, Environments
from bench.processes import started
from bench.record import Record
from tests.lab.ports import free_port
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.systems import System

ROLE_SECONDS = 300
LEFT_SECONDS = 30


class Stage:
    """One queue on one server, empty at first."""

    def __init__(
        self,
        system: System,
        environments: Environments,
        server: Server,
        messages: int,
        *,
        results: bool,
        limit: str,
    ) -> None:
        self.system = system
        self.limit = limit
        self.messages = messages
        self.results = results
        self._environments = environments
        self._port = server.port
        self._directory = server.directory
        self._redis = Redis(port=server.port)
        self.record = Record.create(self._directory / "record", messages)

    def play(self, role: str, *arguments: object) -> dict[str, Any]:
        """Run a role to its end; return what it prints."""
        command = self._environments.command(self.system, role, *arguments)
        done = subprocess.run(
            command,
            env=self._environment(0),
            check=False,
            capture_output=True,
            text=True,
            timeout=ROLE_SECONDS,
        )
        if done.returncode or not done.stdout.strip():
            raise RuntimeError(f"{role} failed: {done.stderr[-1500:]}")
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return report

    def workers(
        self, count: int = 1, *, concurrency: int = 0, sleep: float = 0
    ) -> AbstractContextManager[list[int]]:
        """Run workers meanwhile. With a concurrency of 0, the adapter chooses."""
        command = self._environments.command(self.system, "work", concurrency)
        return started([command] * count, self._environment(sleep), self._errors)

    def complaints(self) -> str:
        """Return the end of what the workers wrote to stderr."""
        return self._errors.read_text()[-1500:] if self._errors.exists() else ""

    def server_version(self) -> str:
        """Return the server's version."""
        info = self._redis.info("server")
        return str(info.get("valkey_version") or info["redis_version"])

    def server_cpu(self) -> float:
        """Return the server's CPU time in seconds."""
        info = self._redis.info("cpu")
        return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])

    def server_reads(self) -> int:
        """Return how often the server has read from a socket: about the round trips."""
        return int(self._redis.info("stats")["total_reads_processed"])

    def server_memory(self) -> int:
        """Return the bytes that the server uses once all other clients have left."""
        deadline = time.monotonic() + LEFT_SECONDS
        while (info := self._redis.info())["connected_clients"] > 1:
            if time.monotonic() > deadline:
                raise RuntimeError("a client is still connected")
            time.sleep(0.01)
        return int(info["used_memory"])

    def close(self) -> None:
        self._redis.close()

    @property
    def _errors(self) -> Path:
        return self._directory / "errors"

    def _environment(self, sleep: float) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BENCH_NODE": str(self._environments.node_packages),
            handler.PORT: str(self._port),
            handler.RECORD: str(self._directory / "record"),
            handler.MESSAGES: str(self.messages),
            handler.SLEEP: str(sleep),
            handler.RESULTS: str(int(self.results)),
            handler.LIMIT: self.limit,
        }


@contextmanager
def stage(
    system: System,
    environments: Environments,
    kind: Kind,
    messages: int,
    *,
    results: bool = False,
    limit: str = "",
) -> Iterator[Stage]:
    """Start a server with an empty queue on it."""
    with (
        tempfile.TemporaryDirectory(prefix="mx-rmq-bench-") as directory,
        Server(kind, Path(directory), port=free_port()) as server,
    ):
        set_up = Stage(system, environments, server, messages, results=results, limit=limit)
        try:
            yield set_up
        finally:
            set_up.close()
