"""A command that runs for a while, as a user runs it, and what it has started."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.calls import MX_RMQ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Running:
    """A running command, whose temporary directory is ours to look into."""

    def __init__(
        self, directory: Path, *words: str, program: Sequence[str], **environment: str
    ) -> None:
        self.directory = directory
        self.process = subprocess.Popen(
            [*program, *words],
            cwd=directory,
            env={**os.environ, "TMPDIR": str(directory), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until_said(self, words: str) -> None:
        """Read on until it says something."""
        _read_until(words, self.process.stdout)

    def until_told(self, words: str) -> None:
        """Read on until it tells something of its way, on stderr."""
        _read_until(words, self.process.stderr)

    def end(self, within: float = 300) -> tuple[int, str, str]:
        """Wait for its end; return the exit code, and what it wrote."""
        out, err = self.process.communicate(timeout=within)
        return self.process.returncode, out, err

    def processes(self) -> dict[int, str]:
        """Return what it has started and what still lives: process id -> command line."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environment = (path / "environ").read_bytes()
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue  # gone meanwhile
            mine = f"TMPDIR={self.directory}\0".encode() in environment
            if mine and command and path.name != str(self.process.pid):
                found[int(path.name)] = command
        return found


@contextmanager
def running(
    directory: Path, *words: str, program: Sequence[str] = (MX_RMQ,), **environment: str
) -> Iterator[Running]:
    """Run a command; end it, if it has not ended by itself."""
    command = Running(directory, *words, program=program, **environment)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.communicate()


def until(fact: Callable[[], object], seconds: float = 60) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def _read_until(words: str, stream: Iterator[str] | None) -> None:
    assert stream is not None
    assert any(words in line for line in stream), words
