"""Processes of several releases: the last one, this one, and a future one.

As a program (`python -P tests/lab/releases.py RELEASE ROLE URL HISTORY FIRST COUNT`) this is one
worker or one producer. It uses only what the last release has. `next` is this release, but writes
and reads one more record format.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LAST = "e6935cfaf41a5ed2dd53bd41ed6d4fdcaa55028e"
"""The commit of the last release."""

TOPIC = "work"
NEVER = 99
"""Failures of a message that must die."""
ATTEMPTS = 4


def errand(number: int) -> dict[str, Any]:
    """Return the plan of a message: each third fails once or twice, each tenth dies."""
    fails = NEVER if number % 10 == 0 else number % 3 if number % 6 < 3 else 0
    return {"number": number, "fails": fails, "work": number % 7 / 100}


def dies(number: int) -> bool:
    return bool(errand(number)["fails"] == NEVER)


def options(number: int) -> dict[str, Any]:
    """Return how a message is produced: some with a delay, a priority, a ttl or a custom id."""
    chosen: dict[str, Any] = {"priority": ("high", "normal", "low")[number % 3]}
    if number % 4 == 0:
        chosen["delay"] = number % 5 / 10
    if number % 5 == 0:
        chosen["ttl"] = 600
    if number % 6 == 0:
        chosen["id"] = f"n{number}"
    return chosen


def unpack_last(directory: Path) -> Path:
    """Check out the sources of the last release; return where they are."""
    found = subprocess.run(
        ["git", "archive", LAST, "src"], cwd=ROOT, capture_output=True, check=False
    )
    if found.returncode:
        raise RuntimeError(
            f"the last release, commit {LAST}, is not in this clone's history; fetch all of it "
            f"(git fetch --unshallow): {found.stderr.decode()}"
        )
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory / "src"


def start(source: Path, release: str, role: str, url: str, history: Path, *more: int) -> Any:
    """Start a process of a release, whose package is in `source`."""
    log = history.with_name(f"{role}-{release}-{os.urandom(4).hex()}.log")
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, release, role, url, history, *map(str, more)],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    process.log = log  # type: ignore[attr-defined]  # to find out why it ended
    return process


# the program


async def work(mq: Any, release: str, history: int) -> None:
    from mx_rmq import Delivery, Worker

    async def handle(payload: dict[str, Any], delivery: Delivery) -> None:
        await asyncio.sleep(payload["work"])
        if delivery.attempt <= payload["fails"]:
            raise ValueError("as planned")
        line = f"done {release} {payload['number']} {delivery.attempt}\n"
        os.write(history, line.encode())

    mq.handler(TOPIC, retry=0.02, max_attempts=ATTEMPTS, max_crashes=NEVER)(handle)
    await Worker(mq, concurrency=10, prefetch=10).run()


async def produce(mq: Any, release: str, history: int, first: int, count: int) -> None:
    async with mq:
        for number in range(first, first + count):
            await mq.produce(TOPIC, errand(number), **options(number))
            os.write(history, f"made {release} {number} 0\n".encode())
            await asyncio.sleep(0.005)


def main() -> None:
    release, role, url, path, *numbers = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(created)f %(levelname)s %(message)s")
    import mx_rmq

    source = os.environ["PYTHONPATH"]
    assert mx_rmq.__file__.startswith(source), f"{mx_rmq.__file__} is not from {source}"
    if release == "next":
        from mx_rmq.core import codec, message

        vars(codec)["WITH_STEPS"] = vars(message)["VERSION"] = message.WITH_STEPS + 1
    history = os.open(path, os.O_WRONLY | os.O_APPEND)
    mq = mx_rmq.MessageQueue(url, lease=1.0)
    if role == "worker":
        asyncio.run(work(mq, release, history))
    else:
        asyncio.run(produce(mq, release, history, *map(int, numbers)))


if __name__ == "__main__":
    main()
