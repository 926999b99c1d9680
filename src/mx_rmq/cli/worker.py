"""`mx-rmq worker`: run the handlers of a queue, in this process or in several."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from mx_rmq.cli.load_queue import parse
from mx_rmq.cli.logs import FORMATS, Logs, configure_logging, log_level
from mx_rmq.cli.program import CannotDo
from mx_rmq.cli.supervisor import Lifeline, python, reload, supervise
from mx_rmq.cli.systemd import Systemd
from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.core.mask import Mask
from mx_rmq.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Coroutine


@click.command
@click.argument("target", metavar="MODULE[:ATTRIBUTE]")
@click.option("--url", help="Use this server or cluster instead of the queue's.")
@click.option("--prefix", help="Use this prefix instead of the queue's.")
@click.option("--topics", multiple=True, help="Only these topics; comma-separated, or repeated.")
@click.option("--concurrency", type=int, help="Messages handled at the same time.")
@click.option("--grace", type=float, help="Seconds for handlers to finish when the worker stops.")
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    help="Run N processes under a supervisor.",
    metavar="N",
)
@click.option("--reload", "reloads", is_flag=True, help="Restart when the code changes.")
@click.option("--drain", is_flag=True, help="Stop when no messages are left.")
@click.option(
    "--metrics-port",
    type=int,
    help="Serve metrics and health checks on this port; other processes use the next ports.",
)
@click.option("--metrics-host", help="Address to serve metrics on.  [default: 127.0.0.1]")
@log_level("info")
@click.option(
    "--log-format",
    type=click.Choice(FORMATS, case_sensitive=False),
    default="text",
    envvar="MX_RMQ_LOG_FORMAT",
    show_default=True,
    show_envvar=True,
    help="Format of log lines.",
)
@click.option("--log-payloads", is_flag=True, help="Log the payloads of failed messages, masked.")
@click.option(
    "--mask",
    multiple=True,
    help="Fields to mask in logs: names, or paths like card.number; comma-separated, or repeated. "
    "Passwords, tokens, secrets and the like are always masked.",
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
    """Run the handlers of the MessageQueue ATTRIBUTE of MODULE. ATTRIBUTE defaults to `mq`.

    The first SIGTERM or Ctrl-C gives handlers the grace period to finish; the second cancels them.
    Exit code 0: every message is settled or handed back. 1: some messages are still leased; other
    workers take them over when the leases expire. 2: the worker could not start. 3: a part of the
    worker kept failing, so it stopped.
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
        Mask(asked.logs.mask)  # raises if it is not valid
        settings = asked.settings()
        if reloads:
            if drain or processes not in (None, 1):
                raise InvalidInput("--reload cannot be combined with --drain or --processes")
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
            from mx_rmq.cli.run_worker import run_worker

            code = run_worker(asked, settings.grace, line, systemd)
    except KeyboardInterrupt:  # before it started
        code = 0
    except MxRmqError as error:
        asked.logs.tell(error)
        code = CannotDo.exit_code
    sys.exit(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command line's options. None: not given."""

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
        """Return the worker's settings, or raise InvalidInput."""
        return WorkerSettings.load(**self.arguments())

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for Worker."""
        return {
            "topics": self.topics,
            "concurrency": self.concurrency,
            "grace": self.grace,
            "metrics_port": self.metrics_port,
            "metrics_host": self.metrics_host,
        }

    def command(self, *, metrics_port: int | None) -> list[str]:
        """Return the command that runs one process with these options, on its own port."""
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
    """Return the first of `count` free ports, or raise InvalidInput; 0: no metrics.

    Each port is tried now. Otherwise a process whose port is taken would be restarted forever,
    while the others work.
    """
    host, first = settings.metrics_host, settings.metrics_port
    if first and first + count - 1 > 65_535:
        raise InvalidInput(
            f"metrics need {count} ports from {first} on, but the last port is 65535"
        )
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
