"""Compare our Tasks backend with others, on Django 6: `python -m bench.django_tasks [NAME …]`.

For each, a worker with its defaults gets 20 tasks of 0.2 to 1.2 s. When half of them are done, it
is killed with SIGKILL, and another one is started. Then one process enqueues tasks, as fast as it
can.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.environments import CACHE, ROOT, Environments
from bench.flows.servers import valkey
from bench.systems import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PROJECT: Final = Path(__file__).parent / "project"
MANAGE: Final = str(PROJECT / "manage.py")
WORKERS: Final = {
    "ours": [MANAGE, "mx_rmq", "worker"],
    "vtasks": [MANAGE, "runworker"],
    "redis": [MANAGE, "run_redis_tasks", "--continuous"],
    "huey": [MANAGE, "run_huey"],
    "rq": [MANAGE, "rqworker", "--job-class", "django_tasks_rq.Job"],
    "celery": ["-m", "celery", "-A", "bench.django_tasks.project.celery_app", "worker"],
}
TASKS: Final = 20
HALF: Final = 10
ENQUEUED: Final = 2000
WITHIN: Final = 60.0  # seconds after the kill


def python() -> str:
    """Return an interpreter on which Django 6 runs."""
    if sys.version_info >= (3, 12):
        return sys.executable
    pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[23].*/bin/python"))
    for found in ("python3.12", *map(str, pyenv)):
        if shutil.which(found) is None:
            continue
        tried = subprocess.run([found, "-c", ""], capture_output=True, check=False)
        if tried.returncode == 0:  # pyenv may have put one on the path that does not work
            return found
    raise RuntimeError("Django 6 needs Python 3.12, and there is none")


def numbers(record: Path) -> list[int]:
    """Return the numbers of the tasks that were run; -1 is the one that connects."""
    return [int(line) for line in record.read_text().split() if line != "-1"]


@contextmanager
def worker(program: str, words: list[str], environment: Mapping[str, str]) -> Iterator[None]:
    """Run a worker; kill it and all that it has started."""
    process = subprocess.Popen(
        [program, *words],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measure(name: str, program: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place, valkey() as url:
        record = Path(place) / "record"
        record.touch()
        own = {"TASKS_SYSTEM": name, "TASKS_URL": url, "TASKS_RECORD": str(record)}
        environment = {**os.environ, **own, "PYTHONPATH": str(ROOT)}

        def run(*words: str) -> str:
            done = subprocess.run(
                [program, *words], env=environment, cwd=ROOT, check=True, capture_output=True
            )
            return done.stdout.decode()

        run(MANAGE, "migrate", "--verbosity", "0")
        enqueue = ("-m", "bench.django_tasks.project.enqueue")
        with worker(program, WORKERS[name], environment):
            run(*enqueue, "note", str(TASKS))
            _until(lambda: len(numbers(record)) >= HALF)
        killed, before = time.monotonic(), len({*numbers(record)})
        with worker(program, WORKERS[name], environment):
            _until(lambda: len({*numbers(record)}) == TASKS)
        seconds = round(time.monotonic() - killed, 1)
        done = numbers(record)
        rates = [int(run(*enqueue, "nothing", str(ENQUEUED))) for _ in range(3)]
        return {
            "done": f"{len({*done})} of {TASKS}",
            "before the kill": before,
            "twice": len(done) - len({*done}),
            "seconds": seconds,
            "enqueued per second": sorted(rates),
        }


def _until(fact: Callable[[], bool]) -> None:
    """Wait until this is so, at most `WITHIN`."""
    deadline = time.monotonic() + WITHIN
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.02)


def main(*names: str) -> None:
    environments = Environments(base=python())
    for name in names or WORKERS:
        environment = f"django-{name}"
        environments.prepare(System(name, name, "", environment, 0, 0, ""))
        program = str(CACHE / "venvs" / environment / "bin" / "python")
        print(json.dumps({"name": name, **measure(name, program)}), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends servers and workers, too
    main(*sys.argv[1:])
