"""A real PostgreSQL server with its own directory, on a socket and a free port.

PostgreSQL refuses to run as root, so root runs it as an unprivileged user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Self

from tests.lab.ports import free_port
from tests.lab.servers import die_with_parent

USER: Final = "mx"


def programs() -> Path:
    """Return the folder of the newest PostgreSQL; a missing one is an error, never a skip."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parts[4]))
    if not found:
        raise RuntimeError("PostgreSQL is not covered: it is missing. Run `make tools`")
    return found[-1]


class Postgres:
    """A PostgreSQL server. `with Postgres() as postgres: … postgres.new_database() …`"""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="mxpg-"))
        self._options = options
        self._databases = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = {}
        if os.getuid() == 0:
            user = pwd.getpwnam("nobody")
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.directory, user.pw_uid, user.pw_gid)

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database for libpq, psycopg and asyncpg."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Make an empty database, and return its URL."""
        self._databases += 1
        name = f"test{self._databases}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, name)
        return self.url(name)

    def start(self) -> Self:
        data = self.directory / "data"
        if not data.exists():
            words = ["-D", str(data), "-U", USER, "--auth=trust", "--encoding=UTF8", "--locale=C"]
            self._run("initdb", "--no-sync", *words)
        options = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.directory)]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [programs() / "postgres", "-D", str(data), *options, *self._options],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_crash_with_parent,  # noqa: PLW1509 - before any thread of ours
                **self._as_user,
            )
        deadline = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                said = (self.directory / "log").read_text()[-2000:]
                raise RuntimeError(f"PostgreSQL did not start:\n{said}")
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """Stop it cleanly; open connections are closed."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill it: no clean-up, the next start recovers from the log."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [programs() / program, *words],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            **self._as_user,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")

    def _answers(self) -> bool:
        """Whether it takes queries, not only connections."""
        words = ["-q", "-h", "127.0.0.1", "-p", str(self.port)]
        done = subprocess.run([programs() / "pg_isready", *words], check=False)
        return done.returncode == 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def _crash_with_parent() -> None:
    die_with_parent(signal.SIGQUIT)
