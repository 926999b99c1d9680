"""The demo, run as a user runs it: what it says, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq_demo.tally import Tally
from tests.cli.calls import MX_RMQ
from tests.cli.running import running, until

if TYPE_CHECKING:
    from pathlib import Path


def test_the_demo_kills_a_worker_loses_nothing_leaves_nothing_and_names_what_works(
    short_path: Path,
) -> None:
    (short_path / "mx-rmq.toml").write_text('prefix = "other"\nmax_pending = 1\n')
    with running(short_path, "demo", FORCE_COLOR="1", MX_RMQ_LEASE="nonsense") as demo:
        started = time.monotonic()
        code, out, err = demo.end(within=60)
        assert (code, err) == (0, "")
        assert time.monotonic() - started < 60
        held = re.search(r"^2 kill -9 worker-1 \(pid \d+\) with (\d+) messages", out, re.MULTILINE)
        assert held is not None
        assert int(held[1]) > 0
        assert f"worker-2 has taken over {held[1]} of {held[1]}, " in out
        numbers = re.search(
            r"^(\d+) produced = (\d+) completed \+ 3 dead \+ 1 q", out, re.MULTILINE
        )
        assert numbers is not None
        assert int(numbers[1]) == int(numbers[2]) + 4
        assert "report-1: completed, its result: 10 pages about teapots\n" in out
        assert "report-2: ended as dead, aborted: it takes too long\n" in out
        assert "payment-void: exhausted: failed 3 times, last by " in out
        assert "payment-stolen: rejected: the card is stolen\n" in out
        assert "order-broken: payload does not fit" in out
        assert "Nothing was lost" in out
        assert all(line.isprintable() for line in out.split("\n"))
        assert demo.processes() == {}
        assert [path.name for path in short_path.iterdir()] == ["mx-rmq.toml"]
    (short_path / "mx-rmq.toml").unlink()
    the_three_commands_work(out, short_path)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("mx-rmq:", signal.SIGINT),
        ("1 two workers", signal.SIGINT),
        ("1 two workers", signal.SIGTERM),
        ("1 two workers", signal.SIGHUP),
        ("2 kill -9", signal.SIGINT),
    ],
)
def test_a_signal_ends_the_demo_at_once_with_all_that_it_started(
    short_path: Path, moment: str, number: signal.Signals
) -> None:
    with running(short_path, "demo") as demo:
        demo.until_said(moment)
        told_at = time.monotonic()
        demo.process.send_signal(number)
        demo.process.send_signal(number)
        code, out, err = demo.end(within=60)
        assert (code, err) == (130, "")
        assert out.endswith("\nstopped; nothing is left behind\n")
        assert time.monotonic() - told_at < 30
        assert demo.processes() == {}
        assert list(short_path.iterdir()) == []


def test_no_process_outlives_a_demo_that_was_killed(short_path: Path) -> None:
    with running(short_path, "demo") as demo:
        demo.until_said("1 two workers")
        assert sum("mx_rmq_demo.workers" in command for command in demo.processes().values()) == 2
        demo.process.kill()
        until(lambda: demo.processes() == {})


def test_a_worker_that_ends_against_the_plan_is_reported(short_path: Path) -> None:
    with running(short_path, "demo") as demo:
        demo.until_said("1 two workers")
        (pid,) = [pid for pid, command in demo.processes().items() if command.endswith("worker-2")]
        os.kill(pid, signal.SIGKILL)
        code, _, err = demo.end(within=60)
        assert code == 1
        assert err.startswith("Error: worker-2 ended with exit code -9: ")
        assert err.count("\n") == 1
        assert demo.processes() == {}
        assert list(short_path.iterdir()) == []


def test_without_a_server_to_embed_it_says_so_in_one_line(short_path: Path) -> None:
    with running(short_path, "demo", MX_RMQ_SERVER_BINARY="/no/such/server") as demo:
        code, _, err = demo.end(within=60)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("Error: the server binary /no/such/server is not an executable file")
    assert list(short_path.iterdir()) == []


def the_three_commands_work(out: str, short_path: Path) -> None:
    """Do what the demo proposes at its end: start a server and a worker, and produce."""
    server, worker, produce = [line for line in out.splitlines() if line.startswith(f"  {MX_RMQ} ")]
    log = short_path / "log"

    def printed(words: str) -> bool:
        return words in log.read_text()

    with log.open("w") as output:
        background = []
        try:
            for command, sign in ((server, "Ctrl-C stops it"), (worker, "topics: orders")):
                background.append(
                    subprocess.Popen(
                        shlex.split(command), cwd=short_path, stdout=output, stderr=output
                    )
                )
                until(partial(printed, sign))
            subprocess.run(shlex.split(produce), cwd=short_path, check=True, timeout=30)
            until(partial(printed, "done mails mail-1\n"))
        finally:
            for process in reversed(background):
                process.send_signal(signal.SIGINT)
                assert process.wait(30) == 0


def tally(**changes: Any) -> Tally:
    usual: dict[str, Any] = {
        "produced": frozenset(("good", "bad", "broken")),
        "doomed": frozenset(("bad", "broken")),
        "done": {"good": 1},
        "dead": {"bad": "why"},
        "quarantined": {"broken": "why"},
    }
    return Tally(**(usual | changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"done": {"good": 2}}, []),
        ({"done": {}}, ["1 lost: good"]),
        ({"dead": {}}, ["1 lost: bad"]),
        ({"unsettled": 2}, ["2 not settled"]),
        ({"violations": ("it is bad",)}, ["audit: it is bad"]),
        ({"done": {"good": 1, "odd": 1}}, ["1 found, but never produced: odd"]),
        (
            {"done": {"good": 1, "bad": 1}},
            [
                "1 in two final states at once: bad",
                "1 unexpectedly completed: bad",
            ],
        ),
        (
            {"done": {}, "dead": {"good": "why", "bad": "why"}},
            ["1 unexpectedly dead or quarantined: good"],
        ),
        (
            {"produced": frozenset("abcd"), "done": {}, "dead": {}, "quarantined": {}},
            ["4 lost: a, b, c ..."],
        ),
    ],
)
def test_the_tally_goes_by_ids_and_not_by_numbers(
    changes: dict[str, Any], expected: list[str]
) -> None:
    assert tally(**changes).problems() == expected
    assert ("Nothing was lost" in tally(**changes).lines()[-1]) == (not expected)
