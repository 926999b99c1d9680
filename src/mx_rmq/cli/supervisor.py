"""Several worker processes under one supervisor, and one that is restarted when its code changes.

Each process is tied to the supervisor by a line, a pair of sockets. Through it the process says
that it works; and when the supervisor is gone, whatever the reason, the line ends, and the process
stops in good order. Processes have sessions of their own, so that a Ctrl-C in the terminal reaches
only the supervisor, which passes it on: one signal stays one signal.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.cli.loading import look_here
from mx_rmq.safe_log import get_logger
from mx_rmq.worker import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mx_rmq.cli.systemd import Systemd

logger = get_logger(__name__)

LEFT: Final = 1
"""Exit code: something was left to the leases."""
WRONG: Final = 2
"""Exit code: it could not begin."""
BROKEN: Final = 3
"""Exit code: a part of the worker kept dying, so it stopped by itself."""

LOOK_AT_PROCESSES: Final = 1.0
"""Seconds between two looks whether all processes give signs of life."""

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Seconds before a process is started anew, doubled each time."""
LONG_LIFE: Final = 60.0
"""Seconds of life after which a process has earned the first pause again."""

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at the files."""

LAST_RESORT: Final = 30.0
"""Seconds beyond the grace after which a process without a supervisor ends by force."""

_NOT_CODE: Final = frozenset(("__pycache__", "node_modules", "site-packages"))

Files = dict[str, tuple[int, int]]


class Lifeline:
    """The line to the supervisor, in a worker process."""

    def __init__(self, number: int) -> None:
        os.set_inheritable(number, False)
        self._number = number
        self._line = socket.socket(fileno=number)

    def watch(self, grace: float) -> None:
        """From now on, stop when the supervisor is gone."""
        threading.Thread(
            target=self._watch, args=(grace,), name="mx-rmq-lifeline", daemon=True
        ).start()

    def works(self) -> None:
        """Tell the supervisor that the worker works: when it has begun, then every second."""
        with suppress(OSError):  # it is gone: the thread sees to that; or it does not listen
            self._line.send(b".", socket.MSG_DONTWAIT)

    def _watch(self, grace: float) -> None:
        with suppress(OSError):
            while os.read(self._number, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(min(grace + LAST_RESORT, threading.TIMEOUT_MAX))
        os._exit(LEFT)  # a handler holds the event loop, and nobody else is there to end it


class Ended(NamedTuple):
    """How a process ended."""

    pid: int | None
    """None: it could not even be started."""
    code: int

    def __str__(self) -> str:
        if self.pid is None:
            return "a worker process could not be started"
        if self.code >= 0:
            return f"worker process {self.pid} ended with exit code {self.code}"
        number = -self.code
        return f"worker process {self.pid} died of signal {number}, {signal.strsignal(number)}"

    @property
    def verdict(self) -> int:
        """What it means for the messages, as an exit code."""
        if self.code == -signal.SIGTERM:
            return 0  # it had not begun: a worker that has, stops in good order
        return self.code if self.code in (0, WRONG, BROKEN) else LEFT


class Processes:
    """The worker processes that live now. Each signal to the supervisor goes to all of them."""

    def __init__(self, command: Sequence[str], systemd: Systemd) -> None:
        self._command = command
        self._systemd = systemd
        self._living: set[asyncio.subprocess.Process] = set()
        self._heard_at: dict[asyncio.subprocess.Process, float] = {}
        """When each process that works gave its last sign of life."""
        self.stopping = asyncio.Event()
        """Set: we were told to stop."""
        self.worked = asyncio.Event()
        """Set: a worker has begun at least once, so what we were told was right."""
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        if systemd.watchdog is not None:
            self._look(systemd.watchdog)

    async def live(self, **environment: str) -> Ended:
        """Start a process and wait for its end."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours:
            try:
                with theirs:
                    process = await asyncio.create_subprocess_exec(
                        *self._command,
                        "--lifeline",
                        str(theirs.fileno()),
                        stdin=asyncio.subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,
                        env={**os.environ, **environment},
                    )
            except OSError as error:  # no memory, no room for another process
                logger.error("%s", error)
                return Ended(None, LEFT)
            self._living.add(process)
            if self.stopping.is_set():  # told while it was being started
                _terminate(process)
            loop.add_reader(ours, self._on_word, ours, process)
            try:
                return Ended(process.pid, await process.wait())
            finally:
                self._living.discard(process)
                self._heard_at.pop(process, None)
                loop.remove_reader(ours)

    def terminate(self) -> None:
        """Tell every process to stop; the second time, not to wait for its handlers."""
        for process in self._living:
            _terminate(process)

    def _on_signal(self) -> None:
        self.stopping.set()
        self._systemd.stopping()
        self.terminate()

    def _on_word(self, line: socket.socket, process: asyncio.subprocess.Process) -> None:
        with suppress(OSError):
            if line.recv(64):
                self._heard_at[process] = time.monotonic()
                if not self.worked.is_set():
                    self.worked.set()
                    self._systemd.ready()
                return
        asyncio.get_running_loop().remove_reader(line)

    def _look(self, watchdog: float) -> None:
        """Give systemd a sign of life. A process that gives us none is killed, then replaced."""
        self._systemd.alive()
        for process, heard_at in self._heard_at.items():
            if time.monotonic() - heard_at > watchdog and process.returncode is None:
                logger.error(
                    "worker process %d gave no sign of life for %g s and is killed",
                    process.pid,
                    watchdog,
                )
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        every = min(LOOK_AT_PROCESSES, watchdog / 3)
        asyncio.get_running_loop().call_later(every, self._look, watchdog)


async def supervise(
    command: Sequence[str],
    count: int,
    *,
    name: str | None = None,
    metrics_port: int = 0,
    drain: bool = False,
    systemd: Systemd,
) -> int:
    """Keep `count` processes alive until told to stop, or drained; return the worst exit code.

    The first one goes ahead alone: if it cannot begin, it says why, once, and that is the end.
    Each has a name and a port for its metrics of its own, if there are any.
    """
    processes = Processes(command, systemd)

    def keep(number: int) -> asyncio.Task[int]:
        own = {} if name is None else {"MX_RMQ_NAME": f"{name}-{number}"}
        own["MX_RMQ_METRICS_PORT"] = str(metrics_port and metrics_port + number - 1)
        return asyncio.create_task(_keep(processes, own, drain=drain), name=f"mx-rmq {number}")

    first = keep(1)
    await _first_of(first, processes.worked)
    rest = [] if first.done() else [keep(number) for number in range(2, count + 1)]
    return max(await asyncio.gather(first, *rest))


async def _keep(processes: Processes, environment: dict[str, str], *, drain: bool) -> int:
    """Keep one process alive; return its exit code when it shall live no more."""
    pause = FIRST_PAUSE
    while True:
        started = time.monotonic()
        ended = await processes.live(**environment)
        if processes.stopping.is_set() or (drain and ended.code == 0):
            return ended.verdict
        if ended.code == WRONG and not processes.worked.is_set():
            return WRONG
        if time.monotonic() - started >= LONG_LIFE:
            pause = FIRST_PAUSE
        logger.warning("%s; another one starts in %g s", ended, pause)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await processes.stopping.wait()
            return ended.verdict
        pause = min(pause * 2, LONGEST_PAUSE)


async def reload(command: Sequence[str], module: str, systemd: Systemd) -> int:
    """Run one process until told to stop; begin anew when the code changes."""
    processes = Processes(command, systemd)
    directories = directories_of(module)
    logger.info("reloads when a .py file changes in %s", ", ".join(directories))
    while True:
        files = look_at(directories)
        living = asyncio.create_task(processes.live(), name="mx-rmq process")
        change = asyncio.create_task(_change(directories, files), name="mx-rmq change")
        try:
            await asyncio.wait([living, change], return_when=asyncio.FIRST_COMPLETED)
            if living.done() and not processes.stopping.is_set():
                logger.warning("%s; it waits for a change of the code", living.result())
                await _first_of(change, processes.stopping)
            if processes.stopping.is_set():
                return (await living).verdict
            logger.info("%s has changed: the worker begins anew", await change)
            processes.terminate()
            await living
        finally:
            change.cancel()


async def _change(directories: Sequence[str], before: Files) -> str:
    """Wait until a file is new, gone or changed; return its name."""
    while (now := look_at(directories)) == before:  # noqa: ASYNC110 - files tell nobody
        await asyncio.sleep(LOOK_EVERY)
    return min(name for name, _ in before.items() ^ now.items())


def directories_of(module: str) -> list[str]:
    """Return where a module's code is: in its package, else in its directory. Imports nothing."""
    look_here()
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except ValueError:
        spec = None
    if spec is not None and spec.submodule_search_locations:
        return list(spec.submodule_search_locations)
    if spec is not None and spec.has_location and spec.origin is not None:
        return [str(Path(spec.origin).parent)]
    return [str(Path.cwd())]


def look_at(directories: Sequence[str]) -> Files:
    """Return the time and the size of each .py file, by its name."""
    return {name: facts for directory in directories for name, facts in _look(directory)}


def _look(directory: str) -> Iterator[tuple[str, tuple[int, int]]]:
    with suppress(OSError), os.scandir(directory) as entries:  # gone meanwhile, or not ours
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _NOT_CODE:
                continue
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    if not Path(entry.path, "pyvenv.cfg").exists():
                        yield from _look(entry.path)
                elif entry.name.endswith(".py"):
                    facts = entry.stat()
                    yield entry.path, (facts.st_mtime_ns, facts.st_size)


async def _first_of(task: asyncio.Task[int] | asyncio.Task[str], event: asyncio.Event) -> None:
    """Wait for the end of a task or for an event."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def _terminate(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)  # process.terminate() might reap it: code 255


def python(*words: str) -> list[str]:
    """Return the command that runs us with these words, in the same Python."""
    return [sys.executable, "-P", "-m", "mx_rmq.cli", *words]
