"""The benchmark, run as a user runs it: what it tells, and that it leaves a server as it was."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from bench.environments import ROOT
from bench.own.figure import Figure, at_least, at_most, growth, share
from bench.own.load import PAYLOAD_BYTES, payload
from bench.own.parts import PARTS
from bench.own.size import QUICK
from bench.own.tenants import jain, most_in, while_all_wait
from tests.cli import running as commands
from tests.cli.running import until
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

FOREIGN = {b"mx-rmq:{orders}:payload": b"somebody else's", b"mx-rmq-bench": b"1", b"other": b"2"}

BENCH = (sys.executable, "-m", "bench.own")

one_kind = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)


def running(
    directory: Path, *words: str, **environment: str
) -> AbstractContextManager[commands.Running]:
    found = {"PYTHONPATH": str(ROOT), **environment}
    return commands.running(directory, *words, program=BENCH, **found)


def run(directory: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    with running(directory, *words, **environment) as bench:
        return bench.end()


@pytest.fixture
def theirs(server: Server) -> Iterator[Redis]:
    """A client of somebody's server, on which somebody's keys are."""
    with Redis.from_url(server.url) as client:
        client.flushall()
        client.mset(FOREIGN)
        client.config_resetstat()
        for _ in range(7):
            client.get("other")
        yield client
        client.flushall()


def there(client: Redis) -> dict[Any, Any]:
    """Return all that is on a server; it must all be strings."""
    return {key: client.get(key) for key in client.keys()}  # noqa: SIM118 - the command


# on somebody's server


@pytest.mark.measures
@one_kind
@pytest.mark.timeout(400)
def test_a_quick_run_measures_everything_and_leaves_the_server_as_it_was(
    theirs: Redis, server: Server, short_path: Path
) -> None:
    settings = theirs.config_get()
    code, out, err = run(short_path, "--url", server.url, "--quick", "--json", "--yes")
    assert code == 0, err
    document = json.loads(out)
    figures = document["figures"]
    assert {one["name"].partition(".")[0] for one in figures} == set(PARTS)
    assert len({one["name"] for one in figures}) == len(figures)
    for one in figures:
        assert set(one) == {
            *("name", "what", "value", "unit", "goal", "beside", "met", "excuse", "note"),
            "counts_others",
        }
        assert one["goal"] or one["beside"]
        assert one["name"].startswith("large.") or one["value"] >= 0
    assert document["server"]["own"] is False
    assert document["server"]["name"] == "Valkey"
    assert document["seconds"] > 0
    judged = [one for one in figures if one["counts_others"]]
    assert {"drain.server", "memory.pending"} <= {one["name"] for one in judged}
    assert there(theirs) == FOREIGN
    assert theirs.config_get() == settings
    statistics: dict[str, Any] = theirs.info("commandstats")
    assert statistics["cmdstat_get"]["calls"] >= 7
    assert "cmdstat_flushall" not in statistics
    assert list(short_path.iterdir()) == []


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", [Kind.REDIS_7_0, Kind.REDIS_6_2], indirect=True)
def test_it_runs_on_the_other_kinds_of_server_and_says_first_what_it_will_do(
    theirs: Redis, server: Server, short_path: Path
) -> None:
    words = ("--only", "drain, memory", "--only=in-flight", "--quick", "--yes")
    code, out, err = run(short_path, "--url", server.url, *words, MX_RMQ_LEASE="nonsense")
    assert code == 0, err
    assert "this writes keys under mx-rmq-bench-" in err
    assert "It changes no setting, and resets no statistic." in err
    assert "Other clients send 0 commands per second there now." in err
    assert err.index("this writes") < err.index("1 of 3: drain")
    assert out.count("\n") == 10
    assert "drain, async handlers that do nothing" in out
    assert "* includes the traffic of other clients" in out
    assert there(theirs) == FOREIGN


@one_kind
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("part", ["pending", "drain", "idle"])
def test_a_signal_ends_it_and_nothing_is_left(
    theirs: Redis, server: Server, short_path: Path, part: str, number: signal.Signals
) -> None:
    with running(short_path, "--url", server.url, "--only", part, "--yes") as bench:
        bench.until_told(f"1 of 1: {part}")
        until(lambda: len(theirs.keys("mx-rmq-bench-*")) > 0)
        bench.process.send_signal(number)
        bench.process.send_signal(number)
        code, out, err = bench.end()
        assert (code, out, err) == (130, "", "stopped; nothing is left behind\n")
        assert there(theirs) == FOREIGN
        assert bench.processes() == {}


@one_kind
def test_no_process_outlives_a_benchmark_that_was_killed(
    theirs: Redis, server: Server, short_path: Path
) -> None:
    with running(short_path, "--url", server.url, "--only", "idle", "--yes") as bench:
        until(bench.processes)
        bench.process.kill()
        until(lambda: not bench.processes())


@one_kind
def test_a_worker_that_ends_against_the_plan_is_reported(
    theirs: Redis, server: Server, short_path: Path
) -> None:
    with running(short_path, "--url", server.url, "--only", "idle", "--quick", "--yes") as bench:
        bench.until_told("1 of 1: idle")
        until(bench.processes)
        for pid in bench.processes():
            os.kill(pid, signal.SIGKILL)
        code, _, err = bench.end()
    assert (code, err) == (1, "Error: a process ended: it said nothing\n")
    assert there(theirs) == FOREIGN


def test_a_server_that_goes_away_is_one_line(short_path: Path) -> None:
    (short_path / "server").mkdir()
    with (
        Server(Kind.VALKEY_9_1, short_path / "server") as own,
        running(
            short_path,
            *("--url", own.url, "--only", "produce", "--yes", "--patience", "3"),
        ) as bench,
    ):
        bench.until_told("1 of 1: produce")
        own.kill()
        code, _, err = bench.end()
    assert code in (1, 2)
    assert err.startswith("Error: ")
    assert err.count("\n") == 1


# on its own server


@pytest.mark.timeout(200)
def test_without_a_url_it_has_its_own_server_whatever_the_settings_say(
    short_path: Path,
) -> None:
    (short_path / "mx-rmq.toml").write_text('url = "redis://127.0.0.1:1"\nmax_pending = 1\n')
    environment = {"MX_RMQ_URL": "redis://127.0.0.1:1", "MX_RMQ_CONCURRENCY": "nonsense"}
    with running(short_path, "--only", "produce", "--quick", **environment) as bench:
        code, out, err = bench.end()
        assert bench.processes() == {}
    assert code == 0, err
    assert err.startswith("its own server: ")
    assert "without append-only file" in err
    assert "goals met; measured in " in out
    assert "other clients" not in out
    assert [path.name for path in short_path.iterdir()] == ["mx-rmq.toml"]


# refusals


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--only", "speed"), "--only speed: there is only produce, drain, "),
        (("--quick", "--long"), "One of --quick, --long and --pending."),
        (("--quick", "--pending", "5000"), "One of --quick, --long and --pending."),
        (("--pending", "10"), "2000<=x<=100000000"),
        (("--patience", "-1"), "0<=x<=300"),
        (("--prefix", "a b"), "prefix 'a b-"),
        (("--url", "http://127.0.0.1"), "must start with one of redis://"),
        (("--url", "redis://127.0.0.1:1", "--patience", "0"), "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_done_is_refused(
    short_path: Path, words: tuple[str, ...], expected: str
) -> None:
    code, out, err = run(short_path, *words)
    assert (code, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err
    assert list(short_path.iterdir()) == []


@one_kind
def test_nobody_to_ask_is_a_no(theirs: Redis, server: Server, short_path: Path) -> None:
    code, out, err = run(short_path, "--url", server.url)
    assert (code, out) == (2, "")
    assert "cannot ask for confirmation to measure that server: pass --yes" in err
    assert there(theirs) == FOREIGN


@one_kind
def test_who_is_asked_may_say_no(theirs: Redis, server: Server, short_path: Path) -> None:
    ours, its = pty.openpty()
    try:
        os.write(ours, b"n\n")
        asked = subprocess.run(
            [*BENCH, "--url", server.url],
            cwd=ROOT,
            stdin=its,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(its)
    assert asked.returncode == 2
    assert "Measure that server? [y/N]" in asked.stderr
    assert asked.stderr.endswith("Error: cancelled, nothing was changed\n")
    assert there(theirs) == FOREIGN


def test_a_server_without_room_is_refused(short_path: Path) -> None:
    (short_path / "server").mkdir()
    with Server(Kind.VALKEY_9_1, short_path / "server", "--maxmemory", "20mb") as full:
        code, _, err = run(short_path, "--url", full.url, "--quick", "--yes")
    assert code == 2
    assert f"it may take {QUICK.bytes / 1e6:,.0f} MB, and the server has room for" in err


# values


def test_a_payload_has_its_size_whatever_it_carries() -> None:
    for one in (payload(), payload(order=42), payload(due=12345.678901234)):
        assert len(json.dumps(one, separators=(",", ":"))) == PAYLOAD_BYTES


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, None),
        ({"goal": at_most(2)}, True),
        ({"goal": at_most(1)}, False),
        ({"goal": at_least(2)}, True),
        ({"goal": at_least(3)}, False),
        ({"goal": at_least(3), "excuse": "the machine is small"}, None),
        ({"goal": at_least(2), "excuse": "the machine is small"}, True),
    ],
)
def test_a_goal_is_met_missed_or_not_judged(changes: dict[str, Any], met: bool | None) -> None:
    assert Figure(name="a.b", what="a", value=2, unit="/s", **changes).met is met


def test_growth_is_the_middle_ratio_and_not_the_ratio_of_the_middles() -> None:
    turns = [{1: 1.0, 9: 2.0}, {1: 10.0, 9: 30.0}, {1: 100.0, 9: 100.0}]
    assert growth(turns) == 2.0


def test_shares() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert (share(values, 0.5), share(values, 0.99), share([7.0], 0.99)) == (51.0, 100.0, 7.0)


# tenants


def test_jains_index_is_one_if_all_have_the_same() -> None:
    assert jain([5, 5, 5]) == 1
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)


def test_the_most_in_a_window_is_counted_wherever_it_lies() -> None:
    assert most_in([0.0, 0.9, 1.0, 1.1, 1.85, 3.0], 1.0) == 4
    assert most_in([0.0, 1.0, 2.0], 1.0) == 1


def test_shares_are_counted_until_one_has_nothing_left() -> None:
    assert while_all_wait([0, 1, 0, 1, 0, 0], {0: 9, 1: 2}) == {0: 2, 1: 2}
