"""The commands, run as a user runs them."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.calls import MX_RMQ
from tests.lab.messages import TOPIC, pending
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.servers import Server


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MX_RMQ, *words], capture_output=True, text=True, timeout=60, check=False)


def test_help_names_every_command() -> None:
    helped = run("--help")
    assert helped.returncode == 0
    for command in (
        *("audit", "cancel", "completion", "demo", "discard", "doctor", "edit", "grow", "list"),
        "load-scripts",
        *("pause", "requeue", "resume", "server", "show", "stats", "workers"),
    ):
        assert f"\n  {command} " in helped.stdout
    assert "\n    130  interrupted" in helped.stdout


@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
async def test_the_audit_of_a_clean_server_says_so(store: Store, server: Server) -> None:
    await pending(store, 3)
    audited = run("audit", "--url", server.url)
    assert (audited.returncode, audited.stdout) == (0, "1 topic, 3 messages, 0 violations\n")


@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
async def test_a_command_whose_output_nobody_reads_ends_quietly(
    store: Store, server: Server
) -> None:
    await pending(store, 3)
    for words in (
        "stats --json",
        "stats",
        "list orders --state pending",
        "tail --since 1970-01-01",
    ):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [MX_RMQ, *words.split(), "--url", server.url],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        os.close(write)
        assert (done.returncode, done.stderr) == (141, b""), words


@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
async def test_a_command_whose_output_finds_no_place_says_so_in_a_line(
    store: Store, server: Server
) -> None:
    await pending(store, 3)
    for words in ("stats --json", "stats", "doctor", "audit", "list orders --state pending"):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [MX_RMQ, *words.split(), "--url", server.url],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
        expected = "Error: cannot write the output: No space left on device\n"
        assert (done.returncode, done.stderr) == (2, expected), words


@pytest.mark.corrupts
@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
async def test_the_audit_names_what_is_wrong_and_fails(
    store: Store, raw: Redis, server: Server
) -> None:
    (id,) = await pending(store, 1)
    await raw.delete(store.keys.of(TOPIC).pending)
    audited = run("audit", TOPIC, "--url", server.url)
    assert audited.returncode == 1
    assert f"{TOPIC}: {id}: a record without a state\n" in audited.stdout


@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
async def test_an_unknown_topic_is_no_clean_topic(store: Store, server: Server) -> None:
    await pending(store)
    audited = run("audit", "orderz", "--url", server.url)
    assert audited.returncode == 2
    assert "no topic 'orderz' under the prefix 'mx-rmq'; known topics (1): orders" in audited.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--url", "http://localhost"], "must start with one of redis://"),
        (["--url", "redis://user:secret@127.0.0.1:1"], "cannot use redis://***@127.0.0.1:1"),
        (["--url", "embedded://no/such/directory"], "no such directory: no/such/directory"),
    ],
)
def test_a_wrong_call_gets_one_clear_line_and_no_traceback(words: list[str], expected: str) -> None:
    failed = run("audit", "--patience", "0.1", *words)
    assert failed.returncode == 2
    assert expected in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert "secret" not in failed.stderr


def test_a_server_that_cannot_be_started_gives_exit_code_2(short_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        failed = run("server", str(short_path), "--port", str(taken.getsockname()[1]))
    assert failed.returncode == 2, failed
    assert failed.stderr.startswith("Error: ")


def test_a_misspelt_command_gets_suggestions() -> None:
    failed = run("dscard")
    assert failed.returncode == 2
    line = failed.stderr.splitlines()[-1]
    assert line.startswith("Error: No such command 'dscard'.")
    assert "'discard'" in line
    assert run("xyz").stderr.endswith("Error: No such command 'xyz'.\n")


def test_a_misspelt_option_gets_suggestions_but_no_hidden_ones() -> None:
    assert "'--patience'" in run("stats", "--patienc", "1").stderr.splitlines()[-1]
    output = run("worker", "app", "--patience", "1").stderr
    assert "No such option '--patience'" in output
    assert "lifeline" not in output


@pytest.mark.parametrize(
    ("name", "instead"), [("bench", "bench.own"), ("capacity", "bench.capacity")]
)
def test_a_command_that_left_the_package_says_where_it_went(name: str, instead: str) -> None:
    failed = run(name, "--quick")
    assert failed.returncode == 2
    assert f"`python -m {instead}` in a clone" in failed.stderr
