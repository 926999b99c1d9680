"""`mx-rmq worker`: run the handlers of a queue, in this process or in several."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.connection import CannotDo
from mx_rmq.cli.loading import load, parse
from mx_rmq.cli.logs import FORMATS, Logs, configure_logging, log_level
from mx_rmq.cli.output import say
from mx_rmq.cli.supervisor import BROKEN, LEFT, Lifeline, python, reload, supervise
from mx_rmq.cli.systemd import Systemd
from mx_rmq.core.config import WorkerSettings
from mx_rmq.core.errors import InvalidInput, MxRmqError, WorkerBroken
from mx_rmq.core.events import WorkerFailed, WorkerStarted, WorkerStopped, WorkerStopping
from mx_rmq.core.mask import Mask
from mx_rmq.logs import FailedPayloads
from mx_rmq.runtime.event_loop import loop_factory
from mx_rmq.worker import SIGNALS, Worker

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from contextlib import AbstractAsyncContextManager

    from mx_rmq.queue import MessageQueue

SIGN_OF_LIFE: Final = 1.0
"""Seconds between two signs of life to those who watch this process."""

LAST_RESORT: Final = 60
"""Seconds beyond the grace after which a worker that has failed is ended by the system."""

LEAVE_WITHIN: Final = 5.0
"""Seconds that foreign threads may keep the process when its worker has stopped."""


@click.command("worker", short_help="Run the handlers of a queue.")
@click.argument("target", metavar="MODULE[:ATTRIBUTE]")
@click.option("--url", help="Another server or cluster than the queue's own.")
@click.option("--prefix", help="Another prefix than the queue's own.")
@click.option("--topics", multiple=True, help="Only these; separated by commas, or repeated.")
@click.option("--concurrency", type=int, help="Messages handled at the same time.")
@click.option("--grace", type=float, help="Seconds that handlers have to finish when it stops.")
@click.option("--processes", type=click.IntRange(1, 1000), help="Processes, under a supervisor.")
@click.option("--reload", "reloads", is_flag=True, help="Restart when the code changes.")
@click.option("--drain", is_flag=True, help="Stop when nothing is left to do.")
@click.option(
    "--metrics-port",
    type=int,
    help="Serve metrics and health at this port; further processes at the next ones.",
)
@click.option("--metrics-host", help="The address to serve them on.  [default: 127.0.0.1]")
@log_level("info")
@click.option(
    "--log-format",
    type=click.Choice(FORMATS, case_sensitive=False),
    default="text",
    envvar="MX_RMQ_LOG_FORMAT",
    show_default=True,
    show_envvar=True,
)
@click.option("--log-payloads", is_flag=True, help="Log the payloads of failed messages, masked.")
@click.option(
    "--mask",
    multiple=True,
    help="Fields to mask in logs: names, or paths like card.number; separated by commas, or "
    "repeated. Passwords, tokens, secrets and the like always are.",
)
@click.option("--lifeline", type=int, hidden=True)
def worker(
    target: str,
    url: str | None,
    prefix: str | None,
    topics: tuple[str, ...],
    concurrency: int | None,
    grace: float | None,
    processes: int | None,
    reloads: bool,
    drain: bool,
    metrics_port: int | None,
    metrics_host: str | None,
    log_level: str,
    lifeline: int | None,
    log_format: str,
    log_payloads: bool,
    mask: tuple[str, ...],
) -> None:
    """Run the handlers of the MessageQueue that MODULE calls ATTRIBUTE, or `mq` if none is named.

    The first SIGTERM or Ctrl-C lets handlers finish within the grace, a second one cancels them.
    Exit code 0: everything is settled or handed back. 1: something is left to the leases. 2: it
    could not begin. 3: a part of the worker kept dying, so it stopped by itself.
    """
    systemd = Systemd.take_over()
    asked = Asked(
        target=target,
        url=url,
        prefix=prefix,
        topics=_split(topics) if topics else None,
        concurrency=concurrency,
        grace=grace,
        drain=drain,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        log_level=log_level.lower(),
        logs=Logs(log_format.lower(), log_payloads, _split(mask)),
    )
    try:
        Mask(asked.logs.mask)  # which refuses what is none
        settings = asked.settings()
        if reloads:
            if drain or processes not in (None, 1):
                raise InvalidInput("--reload is for one process that does not end by itself")
            command = asked.command(metrics_port=metrics_port)
            code = _supervise(reload(command, parse(target)[0], systemd), asked)
        elif processes is not None:
            parse(target)
            code = _supervise(
                supervise(
                    asked.command(metrics_port=None),
                    processes,
                    name=settings.name,
                    metrics_port=_ports(settings, processes),
                    drain=drain,
                    systemd=systemd,
                ),
                asked,
            )
        else:
            line = None if lifeline is None else Lifeline(lifeline)
            code = _work(asked, settings.grace, line, systemd)
    except KeyboardInterrupt:  # before anything had begun
        code = 0
    except MxRmqError as error:
        asked.logs.tell(error)
        code = CannotDo.exit_code
    sys.exit(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for. None: not said."""

    target: str
    url: str | None
    prefix: str | None
    topics: tuple[str, ...] | None
    concurrency: int | None
    grace: float | None
    drain: bool
    metrics_port: int | None
    metrics_host: str | None
    log_level: str
    logs: Logs

    def settings(self) -> WorkerSettings:
        """Return what a worker would go by, or refuse it."""
        return WorkerSettings.load(**self._settings())

    def worker(self, mq: MessageQueue) -> Worker:
        """Return a worker that goes by it."""
        return Worker(mq, **self._settings())

    def _settings(self) -> dict[str, Any]:
        return {
            "topics": self.topics,
            "concurrency": self.concurrency,
            "grace": self.grace,
            "metrics_port": self.metrics_port,
            "metrics_host": self.metrics_host,
        }

    def command(self, *, metrics_port: int | None) -> list[str]:
        """Return the command that asks for the same in one process, at a port of its own."""
        words = ["worker", self.target, "--log-level", self.log_level]
        if self.url is not None:
            words += ["--url", self.url]
        if self.prefix is not None:
            words += ["--prefix", self.prefix]
        if self.topics is not None:
            words += ["--topics", ",".join(self.topics)]
        if self.concurrency is not None:
            words += ["--concurrency", str(self.concurrency)]
        if self.grace is not None:
            words += ["--grace", str(self.grace)]
        if metrics_port is not None:
            words += ["--metrics-port", str(metrics_port)]
        if self.metrics_host is not None:
            words += ["--metrics-host", self.metrics_host]
        if self.drain:
            words.append("--drain")
        words += self.logs.words()
        return python(*words)


def _split(topics: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(topic.strip() for one in topics for topic in one.split(",") if topic.strip())


def _ports(settings: WorkerSettings, count: int) -> int:
    """Return the first of so many ports, or refuse them; 0: none are wanted.

    Each is tried now: a process that finds its own taken would be started again and again, beside
    others that work.
    """
    host, first = settings.metrics_host, settings.metrics_port
    if first and first + count - 1 > 65_535:
        raise InvalidInput(f"there are no {count} ports from {first} on for the metrics")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(first, first + count) if first else ():
        try:
            socket.create_server((host, port), family=family).close()
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InvalidInput(f"cannot listen on {host}, port {port}: {why}") from error
    return first


def _supervise(duty: Coroutine[Any, Any, int], asked: Asked) -> int:
    configure_logging(asked.log_level, asked.logs.formatter())
    return asyncio.run(duty)


def _work(asked: Asked, grace: float, lifeline: Lifeline | None, systemd: Systemd) -> int:
    """Work in this process; return the exit code."""
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)  # both raise KeyboardInterrupt
    if lifeline is not None:
        lifeline.watch(grace)
    mq = load(asked.target)
    mq.move(url=asked.url, prefix=asked.prefix)
    configure_logging(asked.log_level, asked.logs.formatter())
    if asked.logs.payloads:
        mq.middleware = (*mq.middleware, FailedPayloads(asked.logs.mask))
    started, unclean = threading.Event(), threading.Event()
    one = asked.worker(mq)

    def on_started(_: WorkerStarted) -> None:
        started.set()
        systemd.ready()
        give_sign_of_life()

    def give_sign_of_life() -> None:
        """Tell those who watch that the event loop turns, and that no part is down."""
        if not one.down:
            systemd.alive()
            if lifeline is not None:
                lifeline.works()
        every = min(SIGN_OF_LIFE, (systemd.watchdog or inf) / 3)
        asyncio.get_running_loop().call_later(every, give_sign_of_life)

    def on_stopping(_: WorkerStopping) -> None:
        systemd.stopping()

    def on_failed(_: WorkerFailed) -> None:
        """It stops now. If even that does not work, the system ends the process."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(ceil(min(grace, 1e6)) + LAST_RESORT)

    def on_stopped(event: WorkerStopped) -> None:
        if not event.clean:
            unclean.set()

    mq.events.subscribe(on_started, WorkerStarted)
    mq.events.subscribe(on_stopping, WorkerStopping)
    mq.events.subscribe(on_stopped, WorkerStopped)
    mq.events.subscribe(on_failed, WorkerFailed)

    async def until_stopped() -> int:
        broken = False
        try:
            async with _endpoint(one):
                await (_drain(one) if asked.drain else one.run())
        except MxRmqError as error:
            if not started.is_set():
                raise
            asked.logs.tell(error)
            unclean.set()
            broken = isinstance(error, WorkerBroken)
        code = BROKEN if broken else LEFT if unclean.is_set() else 0
        _leave_soon(code)
        return code

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(until_stopped())


def _endpoint(one: Worker) -> AbstractAsyncContextManager[object]:
    """Return the worker's metrics and health, if there is a port for them."""
    if not one.settings.metrics_port:
        return nullcontext()
    try:
        from mx_rmq.metrics import Endpoint
    except ImportError as error:
        raise InvalidInput(str(error)) from error
    return Endpoint(one)


async def _drain(one: Worker) -> None:
    """Drain the queue; the first signal ends that in good order, a second one cancels handlers."""
    loop = asyncio.get_running_loop()
    draining = asyncio.create_task(one.drain(), name="mx-rmq drain")

    def on_signal() -> None:
        if draining.cancelling():
            one.cancel()
        else:
            draining.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        await asyncio.wait([draining])
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    if not draining.cancelled():
        done = draining.result()
        say(
            f"{done.completed:,} completed, {done.retried:,} retried, {done.dead:,} dead, "
            f"{done.quarantined:,} quarantined"
        )


def _leave_soon(code: int) -> None:
    """The worker has stopped: whatever else would keep the process, do not wait for it long.

    A thread in which a handler sits cannot be ended otherwise, and its message is handed back.
    """

    def leave(*_: object) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    for number in SIGNALS:
        signal.signal(number, leave)
    timer = threading.Timer(LEAVE_WITHIN, leave)
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # there are too many threads already
        signal.signal(signal.SIGALRM, leave)
        signal.alarm(ceil(LEAVE_WITHIN))
