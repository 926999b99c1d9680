"""`mx-rmq dashboard`, run as a user runs it."""

from __future__ import annotations

import json
import logging
import signal
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from mx_rmq.cli import main
from mx_rmq.cli.dashboard import host_of
from mx_rmq.core.text import how_to_install
from mx_rmq.dashboard import audit_log
from mx_rmq.dashboard.audit_log import REFUSED, Throttle
from tests.lab.messages import TOPIC, pending

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mx_rmq.store.store import Store
    from tests.lab.servers import Server

COMMAND = (sys.executable, "-m", "mx_rmq.cli", "dashboard", "--port", "0")


class Running:
    def __init__(self, words: tuple[str, ...], command: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout.readline()
        self.url = self.output.split()[1]

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def running(*words: str, command: tuple[str, ...] = COMMAND) -> Iterator[Running]:
    one = Running(words, command)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        for pipe in (one.process.stdout, one.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_serves_on_this_machine_until_it_is_told_to_stop(
    store: Store, server: Server, number: int, tmp_path: Path
) -> None:
    await pending(store)
    log = tmp_path / "audit.log"
    words = ("--url", server.url, "--audit-log", str(log))
    with running(*words) as one, httpx.Client(base_url=one.url, timeout=30) as client:
        page = client.get(f"/topics/{TOPIC}").text
        token = page.split('name="token" value="')[1].split('"')[0]
        data, headers = {"token": token}, {"Origin": one.url.rstrip("/")}
        paused = client.post(f"/topics/{TOPIC}/pause", data=data, headers=headers)
        assert paused.status_code == 303
        metrics = text_string_to_metric_families(client.get("/metrics").text)
        assert {"mx_rmq_depth", "mx_rmq_paused"} <= {one.name for one in metrics}
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
        with client.stream("GET", "/live") as stream:
            assert next(stream.iter_lines()) == "retry: 3000"
            assert one.end(number) == 0  # also while somebody listens
    assert json.loads(log.read_text())["did"] == "pause"


async def test_others_reach_it_with_a_password_alone(
    store: Store, server: Server, tmp_path: Path
) -> None:
    words = ("--url", server.url, "--host", "0.0.0.0")
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    with running(*words, "--password-file", str(password), "--user", "anna") as one:
        url = one.url.replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(timeout=30) as client:
            assert client.get(f"{url}healthz").text == "ok\n"
            assert client.get(url).status_code == 401
            assert client.get(url, auth=("anna", "correct horse")).status_code == 200
        assert "correct" not in one.output
        assert one.end() == 0


async def test_connections_that_ask_for_nothing_do_not_keep_others_out(
    store: Store, server: Server
) -> None:
    few = ("prlimit", "--nofile=256", *COMMAND)
    with running("--url", server.url, "--log-level", "info", command=few) as one:
        port = int(one.url.rstrip("/").rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
        try:
            for part in idle:
                with suppress(OSError):
                    part.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
            assert httpx.get(f"{one.url}healthz", timeout=60).text == "ok\n"
            idle[-1].settimeout(60)
            with suppress(ConnectionResetError):
                assert idle[-1].recv(1) == b""  # it was given five seconds
        finally:
            for part in idle:
                part.close()
        assert one.end() == 0
        assert one.process.stderr is not None
        assert "Traceback" not in one.process.stderr.read()


async def test_connections_that_take_no_answer_do_not_keep_others_out(
    store: Store, server: Server
) -> None:
    few = ("prlimit", "--nofile=64", *COMMAND)
    with running("--url", server.url, command=few) as one, ExitStack() as stack:
        port = int(one.url.rstrip("/").rpartition(":")[2])
        page = httpx.get(f"{one.url}help", timeout=60).text
        style = page.split('rel="stylesheet" href="')[1].split('"')[0]
        ask = f"GET {style} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        for _ in range(30):  # of which 21 are let in
            part = stack.enter_context(socket.socket())
            part.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            part.connect(("127.0.0.1", port))
            part.setblocking(False)
            with suppress(OSError):
                part.send(ask * 1000)
        answer = ""
        while not answer:
            with suppress(httpx.TransportError):  # until they have been stuck for long enough
                answer = httpx.get(f"{one.url}healthz", timeout=60).text
        assert answer == "ok\n"


async def test_strangers_cannot_fill_the_log(store: Store, server: Server, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    words = ("--url", server.url, "--password-file", str(password))
    with running(*words) as one:
        port = int(one.url.rstrip("/").rpartition(":")[2])
        ask = b"GET /help HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), 60) as part:
            part.sendall(ask * 300)
            answers = b""
            while answers.count(b"HTTP/1.1 401") < 300:
                more = part.recv(65536)
                assert more, answers[-1000:]
                answers += more
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", port), 60) as part:
                part.sendall(b"\x00\r\n\r\n")
                while part.recv(65536):
                    pass
        assert one.end() == 0
        assert one.process.stderr is not None
        output = one.process.stderr.read()
    assert output.count("Invalid HTTP request received.") == REFUSED
    assert output.count("Unsupported upgrade request.") == REFUSED
    assert output.count("\n") < 4 * REFUSED


def test_of_lines_that_were_left_out_it_is_said_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = Throttle()

    def logged(number: int, name: str = "x", line: int = 1) -> str | None:
        record = logging.LogRecord(name, logging.WARNING, "f.py", line, "line %d", (number,), None)
        return record.getMessage() if throttle.filter(record) else None

    assert [logged(number) for number in range(REFUSED + 40)][-41:] == [
        f"line {REFUSED - 1}",
        *[None] * 40,
    ]
    assert logged(1, line=2) == "line 1"
    assert logged(1, "mx_rmq.dashboard.audit") == "line 1"
    monkeypatch.setattr(audit_log, "SPAN", -1)
    assert logged(7) == "line 7 (40 more lines like this were left out)"
    assert logged(8) == "line 8"


async def test_only_its_user_can_read_the_audit_log(
    store: Store, server: Server, tmp_path: Path
) -> None:
    log = tmp_path / "audit.log"
    words = ("--url", server.url, "--root-path", "/queues", "--no-password")
    for _ in range(2):  # a new file, then one that was there
        with running(*words, "--audit-log", str(log)) as one:
            assert stat.S_IMODE(log.stat().st_mode) == 0o600
            assert 'href="/queues/workers"' in httpx.get(f"{one.url}queues/help", timeout=60).text
            assert one.end() == 0
            assert one.process.stderr is not None
            output = one.process.stderr.read()
            assert ("had mode" in output) is (log.read_text() == "before\n")
        log.write_text("before\n")
        log.chmod(0o644)
    assert "audit.log had mode 0644; it is 0600 now" in output


def test_a_wrong_call_gets_one_clear_line(server: Server, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("x\n")
    bytes_ = tmp_path / "bytes"
    bytes_.write_bytes(b"\xff" * 20)
    for words, expected in (
        (["--host", "0.0.0.0"], "a password is required: --password-file FILE"),
        (["--host", "0.0.0.0", "--no-password"], "a password is required: --password-file FILE"),
        (
            ["--origin", "https://queues.example.org"],
            "or --no-password, if the proxy authenticates",
        ),
        (["--origin", "https://queues.example.org", "--read-only"], "a password is required"),
        (["--origin", "http://localhost:1", "--origin", "http://[2001:db8::1]"], "//[2001:db8::1]"),
        (["--no-password", "--password-file", str(short)], "pass either --password-file or"),
        (["--password-file", str(tmp_path / "none")], "No such file"),
        (["--password-file", str(short)], "must have at least 8"),
        (["--password-file", str(bytes_)], "is not UTF-8"),
        (["--origin", "queues.example.org"], "must have the form https://"),
        (["--origin", "https://["], "must have the form https://"),
        (["--tls-cert", str(short)], "pass both --tls-cert and"),
        (["--root-path", "queues", "--no-password"], "must have the form /queues"),
        (["--root-path", "/queues"], "so a password is required"),
        (["--audit-log", str(tmp_path)], "Is a directory"),
        (["--url", "embedded://no/such/directory"], "no such directory"),
    ):
        failed = CliRunner().invoke(main, ["dashboard", "--url", server.url, *words])
        assert failed.exit_code == 2
        assert expected in failed.stderr
        assert failed.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--origin", "https://queues.example.org", "--no-password"),
        ("--origin", "http://localhost:8080", "--origin", "http://[::1]:8080"),
        ("--no-password",),
    ],
)
async def test_without_a_password_it_serves_this_machine_or_a_proxy_that_asks(
    store: Store, server: Server, words: tuple[str, ...]
) -> None:
    with running("--url", server.url, *words) as one:
        assert httpx.get(f"{one.url}help", timeout=30).status_code == 200
        public = httpx.get(f"{one.url}help", headers={"Host": "queues.example.org"}, timeout=30)
        assert public.status_code == (200 if "https://queues.example.org" in words else 421)


def test_a_proxy_may_have_an_address_for_a_name() -> None:
    assert host_of("http://[2001:DB8::1]:8080/") == "[2001:db8::1]"
    assert host_of("https://Queues.example") == "queues.example"


def test_a_port_that_is_taken_is_said(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        failed = subprocess.run(
            [*COMMAND, "--url", server.url, "--port", port],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert failed.returncode == 2
    line = failed.stderr.splitlines()[-1]
    assert line.startswith(f"Error: cannot listen on 127.0.0.1, port {port}: ")
    assert "address already in use" in line
    assert "uvicorn" not in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize("package", ["jinja2", "starlette", "uvicorn"])
def test_a_package_that_is_missing_is_named_in_one_line(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from mx_rmq.cli import main; main(['dashboard', '--url', 'redis://127.0.0.1:1'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert f"needs {package}: {how_to_install('dashboard')}" in found.stderr
    assert found.stderr.count("\n") == 1
