"""Run several worker processes under one supervisor, or restart one when its code changes.

A socket pair connects each process to the supervisor. The process sends a byte through it while
its worker runs. When the supervisor is gone, for whatever reason, the socket closes and the process
shuts down cleanly. Each process has its own session: Ctrl-C in the terminal reaches only the
supervisor, which passes it on, so that no process gets the signal twice.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.cli.load_queue import import_from_here
from mx_rmq.runtime.signals import STOP_SIGNALS
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.cli.systemd import Systemd

logger = get_logger(__name__)

# Exit codes of a worker
LEFT: Final = 1  # unfinished messages wait until their leases run out
WRONG: Final = 2  # it could not start
BROKEN: Final = 3  # a part of the worker kept failing, so the worker stopped

# Seconds
CHECK_PROCESSES: Final = 1.0  # between two checks that all processes are alive
CHECK_FILES: Final = 0.5  # between two checks for changed code
FIRST_PAUSE: Final = 0.5  # before a process is restarted; the pause doubles each time
LONGEST_PAUSE: Final = 30.0
LONG_LIFE: Final = 60.0  # a process that ran this long is restarted after the first pause again
LAST_RESORT: Final = 30.0  # after the grace, when a process without a supervisor exits anyway

_NOT_CODE: Final = frozenset(("__pycache__", "node_modules", "site-packages"))

Files = dict[str, tuple[int, int]]  # path -> modification time and size


class Lifeline:
    """The connection to the supervisor, in a worker process."""

    def __init__(self, number: int) -> None:
        os.set_inheritable(number, False)
        self._number = number
        self._socket = socket.socket(fileno=number)

    def watch(self, grace: float) -> None:
        """Start a thread that stops this process when the supervisor is gone."""
        name = "mx-rmq-lifeline"
        threading.Thread(target=self._watch, args=(grace,), name=name, daemon=True).start()

    def works(self) -> None:
        """Tell the supervisor that the worker runs: when it has started, then every second."""
        with suppress(OSError):  # it is gone, which the thread handles; or its buffer is full
            self._socket.send(b".", socket.MSG_DONTWAIT)

    def _watch(self, grace: float) -> None:
        with suppress(OSError):
            while os.read(self._number, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(min(grace + LAST_RESORT, threading.TIMEOUT_MAX))
        os._exit(LEFT)  # a handler blocks the event loop, so SIGTERM had no effect


class Ended(NamedTuple):
    """How a process ended."""

    pid: int | None  # None: it could not be started
    code: int

    def __str__(self) -> str:
        if self.pid is None:
            return "a worker process could not be started"
        if self.code >= 0:
            return f"worker process {self.pid} ended with exit code {self.code}"
        name = signal.strsignal(-self.code)
        return f"worker process {self.pid} was killed by signal {-self.code}, {name}"

    @property
    def verdict(self) -> int:
        """The exit code of the supervisor, if this was its only process."""
        if self.code == -signal.SIGTERM:
            return 0  # it had not started: a worker that has, handles SIGTERM
        return self.code if self.code in (0, WRONG, BROKEN) else LEFT


class Processes:
    """The running worker processes. Each signal to the supervisor goes to all of them."""

    def __init__(self, command: Sequence[str], systemd: Systemd) -> None:
        self._command = command
        self._systemd = systemd
        self._running: set[asyncio.subprocess.Process] = set()
        self._alive_at: dict[asyncio.subprocess.Process, float] = {}  # its last sign of life
        self.stopping = asyncio.Event()  # set once a signal told us to stop
        self.worked = asyncio.Event()  # set once any worker has started: the options are valid
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        if systemd.watchdog is not None:
            self._check(systemd.watchdog)

    async def run(self, **environment: str) -> Ended:
        """Start a process and wait until it ends."""
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
            except OSError as error:  # no memory, or too many processes
                logger.error("%s", error)
                return Ended(None, LEFT)
            self._running.add(process)
            if self.stopping.is_set():  # a signal came while it was being started
                _send(process, signal.SIGTERM)
            loop.add_reader(ours, self._on_sign_of_life, ours, process)
            try:
                return Ended(process.pid, await process.wait())
            finally:
                self._running.discard(process)
                self._alive_at.pop(process, None)
                loop.remove_reader(ours)

    def terminate(self) -> None:
        """Tell every process to stop. The second call means: do not wait for handlers."""
        for process in self._running:
            _send(process, signal.SIGTERM)

    def _on_signal(self) -> None:
        self.stopping.set()
        self._systemd.stopping()
        self.terminate()

    def _on_sign_of_life(self, ours: socket.socket, process: asyncio.subprocess.Process) -> None:
        with suppress(OSError):
            if ours.recv(64):
                self._alive_at[process] = time.monotonic()
                if not self.worked.is_set():
                    self.worked.set()
                    self._systemd.ready()
                return
        asyncio.get_running_loop().remove_reader(ours)

    def _check(self, watchdog: float) -> None:
        """Ping systemd. Kill each process that is silent for too long; it is then replaced."""
        self._systemd.alive()
        for process, at in self._alive_at.items():
            if time.monotonic() - at > watchdog and process.returncode is None:
                silent = "worker process %d was silent for %g s and is killed"
                logger.error(silent, process.pid, watchdog)
                _send(process, signal.SIGKILL)
        every = min(CHECK_PROCESSES, watchdog / 3)
        asyncio.get_running_loop().call_later(every, self._check, watchdog)


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

    The first process starts alone: if it cannot start, it logs why, and no other one is started.
    Each process has its own name and its own metrics port, if these are set.
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
    """Keep one process alive; return its exit code once it is not to be restarted.

    A drain restarts only a process that was killed: one that failed would fail forever.
    """
    pause = FIRST_PAUSE
    while True:
        started = time.monotonic()
        ended = await processes.run(**environment)
        if processes.stopping.is_set() or (drain and ended.code >= 0):
            return ended.verdict
        if ended.code == WRONG and not processes.worked.is_set():
            return WRONG
        if time.monotonic() - started >= LONG_LIFE:
            pause = FIRST_PAUSE
        logger.warning("%s; restarting in %g s", ended, pause)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await processes.stopping.wait()
            return ended.verdict
        pause = min(pause * 2, LONGEST_PAUSE)


async def reload(command: Sequence[str], modules: Sequence[str], systemd: Systemd) -> int:
    """Run one process until told to stop; restart it when the code of these modules changes."""
    processes = Processes(command, systemd)
    directories = sorted({one for module in modules for one in directories_of(module)})
    logger.info("reloading when a .py file changes in %s", ", ".join(directories))
    while True:
        files = code_in(directories)
        running = asyncio.create_task(processes.run(), name="mx-rmq process")
        change = asyncio.create_task(_change(directories, files), name="mx-rmq change")
        try:
            await asyncio.wait([running, change], return_when=asyncio.FIRST_COMPLETED)
            if running.done() and not processes.stopping.is_set():
                logger.warning("%s; waiting until the code changes", running.result())
                await _first_of(change, processes.stopping)
            if processes.stopping.is_set():
                return (await running).verdict
            logger.info("%s has changed: restarting the worker", await change)
            processes.terminate()
            await running
        finally:
            change.cancel()


async def _change(directories: Sequence[str], before: Files) -> str:
    """Wait until a file is new, gone or changed; return its name."""
    while (now := code_in(directories)) == before:  # noqa: ASYNC110 - files send no events
        await asyncio.sleep(CHECK_FILES)
    return min(name for name, _ in before.items() ^ now.items())


def directories_of(module: str) -> list[str]:
    """Return where a module's code is: its package, or its directory. Imports nothing."""
    import_from_here()
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except ValueError:
        spec = None
    if spec is not None and spec.submodule_search_locations:
        return list(spec.submodule_search_locations)
    if spec is not None and spec.has_location and spec.origin is not None:
        return [str(Path(spec.origin).parent)]
    return [str(Path.cwd())]


def code_in(directories: Sequence[str]) -> Files:
    """Return the .py files below these directories, except hidden and installed ones."""
    files: Files = {}
    for directory in directories:
        for folder, folders, names in os.walk(directory):
            folders[:] = [name for name in folders if _may_have_code(Path(folder, name))]
            for name in names:
                if name.endswith(".py") and not name.startswith("."):
                    with suppress(OSError):  # deleted meanwhile
                        facts = (path := Path(folder, name)).stat()
                        files[str(path)] = facts.st_mtime_ns, facts.st_size
    return files


def _may_have_code(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in _NOT_CODE
    return not hidden and not (folder / "pyvenv.cfg").exists()


async def _first_of(task: asyncio.Task[int] | asyncio.Task[str], event: asyncio.Event) -> None:
    """Wait until a task is done or an event is set."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)  # process.send_signal() might reap it: code 255
