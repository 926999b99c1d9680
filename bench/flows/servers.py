"""A fresh Valkey or Postgres for one measurement."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.ports import free_port
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def valkey() -> Iterator[str]:
    """Yield the URL of a server without persistence, as in the rest of bench/."""
    with tempfile.TemporaryDirectory() as place:
        server = Server(Kind.VALKEY_9_1, Path(place), port=free_port()).start()
        try:
            yield f"redis://127.0.0.1:{server.port}/0"
        finally:
            server.kill()


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of a server with its defaults: each commit is on disk."""
    user = "postgres" if os.getuid() == 0 else None  # it refuses to run as root
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "data"
        if user:
            shutil.chown(directory, user)
        run = ["initdb", "--auth=trust", "--username=postgres", "--pgdata", str(place)]
        subprocess.run(run, user=user, check=True, stdout=subprocess.DEVNULL)
        port = free_port()
        options = f"-p {port} -c listen_addresses=127.0.0.1 -k {directory}"
        control = ["pg_ctl", "--pgdata", str(place), "--wait", "--silent"]
        log = Path(directory) / "log"
        begin = [*control, "--log", str(log), "--options", options, "start"]
        subprocess.run(begin, user=user, check=True, stdout=subprocess.DEVNULL)
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            end = [*control, "--mode", "immediate", "stop"]
            subprocess.run(end, user=user, check=True, stdout=subprocess.DEVNULL)
