"""Libraries between a program and the system: a clock that can be set, a log of what was fsynced.

They are written in C (preload/*.c), compiled when needed, and preloaded.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

from tests.lab.appended import whole_lines

_SOURCES: Final = Path(__file__).parent / "preload"


def compiled(name: str, directory: Path) -> Path:
    """Return a shim as a library in a directory; no compiler is an error, never a skip."""
    library = directory / f"{name}.so"
    if not library.exists():
        compiler = shutil.which("cc")
        if compiler is None:
            raise RuntimeError("there is no C compiler: sh scripts/setup tools")
        directory.mkdir(parents=True, exist_ok=True)
        flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        source = _SOURCES / f"{name}.c"
        subprocess.run([compiler, *flags, "-o", library, source, "-ldl"], check=True)
    return library


class SetClock:
    """The wall clock of the programs that run with its `environment`, off by some seconds."""

    def __init__(self, directory: Path, name: str = "clock", seconds: float = 0) -> None:
        library = compiled("clock", directory)
        self._file = directory / f"{name}.us"
        self.set(seconds)
        self.environment = {"LD_PRELOAD": str(library), "MX_RMQ_CLOCK": str(self._file)}

    def set(self, seconds: float) -> None:
        """Set how far it is off from now on."""
        self.seconds = seconds
        offset = struct.pack("=q", round(seconds * 1_000_000))
        with self._file.open("r+b" if self._file.exists() else "wb", buffering=0) as file:
            file.write(offset)


class FsyncLog:
    """How much of each AOF a server with its `environment` has written to disk.

    `delay`: how many seconds longer that takes each time.
    """

    def __init__(self, directory: Path, *, delay: float = 0) -> None:
        library = compiled("fsynclog", directory)
        self._log = directory / "fsync.log"
        self.environment = {
            "LD_PRELOAD": str(library),
            "MX_RMQ_FSYNC_LOG": str(self._log),
            "MX_RMQ_FSYNC_DELAY": str(round(delay * 1_000_000)),
        }

    def synced(self, path: Path) -> int | None:
        """Return how many bytes of a file are safe; None: it was never fsynced."""
        if not self._log.exists():
            return None
        found = None
        for line in whole_lines(self._log):
            size, _, name = line.decode().partition(" ")
            if name == str(path):
                found = int(size)
        return found

    def forget(self) -> None:
        """Start over, before the server starts again."""
        self._log.unlink(missing_ok=True)
