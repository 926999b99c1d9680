"""`python -m bench.capacity` as a user runs it: without a server, and with --measure on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from click.testing import CliRunner
from redis import Redis

from bench.capacity.command import capacity, rounded, size
from bench.capacity.model import Costs, Model
from bench.capacity.plan import Load, Plan, shipped
from bench.environments import ROOT
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from tests.lab.servers import Server

one_kind = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)


def run(*words: str) -> Result:
    result = CliRunner().invoke(capacity, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def document(*words: str) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def measure(directory: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.capacity", *words],
        cwd=directory,
        env={**os.environ, "TMPDIR": str(directory), "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_it_estimates_for_1_3_10_and_100_shards_without_any_server() -> None:
    result = run()
    assert result.exit_code == 0
    _, _, head, *rows = result.stdout.splitlines()
    assert head.split()[:2] == ["shards", "partitions"]
    assert [row.split()[0] for row in rows[:4]] == ["1", "3", "10", "100"]
    assert "100 shards: connections of a worker, 3,400 of 1,024: raise ulimit -n" in rows
    assert rows[-1].startswith(f"costs of {shipped().date}: ")


def test_the_document_says_what_the_plan_says() -> None:
    words = ("--shards", "10", "--payload", "200", "--batch", "50", "--backlog", "1e8")
    (found,) = document(*words, "--handler", "500", "--replicas")["plans"]
    load = Load(shards=10, payload=200, batch=50, backlog=100_000_000, handler=500.0, replicas=True)
    plan = Plan.of(load, Model(shipped()))
    assert found["total"] == pytest.approx(plan.total)
    assert found["memory"] == pytest.approx(plan.memory)
    assert found["workers"] == plan.workers
    assert found["load"]["backlog"] == 100_000_000
    assert [bound["over"] for bound in found["bounds"]] == [one.over for one in plan.bounds]


def test_topics_by_name_are_put_where_a_cluster_puts_them() -> None:
    words = ("--shards", "3", "--partitions", "12")
    (found,) = document(*words, "--topic", "order.created", "--topic", "mail")["plans"]
    plan = Plan.of(Load(shards=3, partitions=12, names=("order.created", "mail")), Model(shipped()))
    assert found["busiest"] == plan.busiest == int(plan.busiest)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--shards", "0"), "0 is not a whole number from 1 to 10,000"),
        (("--shards", "1,x"), "x is not a whole number"),
        (("--backlog", "1.5"), "1.5 is not a whole number"),
        (("--backlog", "nan"), "nan is not a whole number"),
        (("--partitions", "2000"), "2000 is not a whole number from 1 to 1,024"),
        (("--utilisation", "2"), "0.01<=x<=1"),
        (("--topic", "a b"), "a b"),
        (("--url", "redis://127.0.0.1:1"), "--url goes with --measure"),
        (("--costs", "a", "--measure", "b"), "One of --costs and --measure."),
        (("--costs", "missing.json"), "missing.json cannot be read: No such file"),
        (("--costs", __file__), "is not a file from --measure"),
    ],
)
def test_what_cannot_be_estimated_is_refused(words: tuple[str, ...], expected: str) -> None:
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in result.stderr


@pytest.mark.timeout(250)
def test_a_measurement_on_its_own_server_is_written_and_can_be_used_again(
    short_path: Path,
) -> None:
    words = ("--measure", "costs.json", "--quick", "--shards", "3", "--json")
    done = measure(short_path, *words, MX_RMQ_LEASE="nonsense")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "  round 1 of 1"
    assert [path.name for path in short_path.iterdir()] == ["costs.json"]
    written = short_path / "costs.json"
    costs = msgspec.json.decode(written.read_bytes(), type=Costs)
    assert costs.cluster == 1.0
    assert document("--costs", str(written), "--shards", "3") == json.loads(done.stdout)


@one_kind
@pytest.mark.timeout(250)
def test_on_a_server_of_yours_it_says_what_it_does_and_leaves_nothing(
    server: Server, short_path: Path
) -> None:
    with Redis.from_url(server.url) as client:
        client.flushall()
        client.set("other", "2")
        refused = measure(short_path, "--measure", "costs.json", "--url", server.url)
        assert refused.returncode == 2
        assert "cannot ask for confirmation to measure that server" in refused.stderr
        words = ("--measure", "costs.json", "--quick", "--url", server.url, "--yes")
        done = measure(short_path, *words)
        assert done.returncode == 0, done.stderr
        assert "this writes keys under mx-rmq-bench-" in done.stderr
        assert client.keys() == [b"other"]
        client.flushall()


def test_numbers_are_rounded_to_what_they_can_tell() -> None:
    assert [rounded(one) for one in (7.6, 99.6, 1_234.0, 40_247.0, 2_476_742.0)] == [
        *(8, 100, 1_200, 40_000, 2_500_000)
    ]
    assert [size(one) for one in (387, 1_188, 49_500_000, 1.19e9, 2e13)] == [
        *("387 B", "1.19 kB", "49.5 MB", "1.19 GB", "20 TB")
    ]
