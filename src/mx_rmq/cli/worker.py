"""`mx-rmq worker`: run the handlers of a queue, in this process or in several."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from mx_rmq.cli.host import host
from mx_rmq.cli.load_queue import check_module, parse
from mx_rmq.cli.logs import configure_logging, log_format, log_level, print_error
from mx_rmq.cli.program import CommandFailed
from mx_rmq.cli.supervisor import reload, supervise
from mx_rmq.cli.systemd import Systemd
from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.core.mask import Mask
from mx_rmq.settings import WorkerSettings


@click.command
@click.argument("target", metavar="MODULE[:ATTRIBUTE]")
@click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="Also import this module, which declares handlers; comma-separated or repeated.",
)
@click.option("--url", help="Use this server or cluster instead of the queue's.")
@click.option("--prefix", help="Use this prefix instead of the queue's.")
@click.option("--topics", multiple=True, help="Only these topics; comma-separated, or repeated.")
@click.option("--concurrency", type=int, help="Messages handled at the same time.")
@click.option("--grace", type=float, help="Seconds for handlers to finish when the worker stops.")
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Run N processes under a supervisor.",
)
@click.option("--reload", "reloads", is_flag=True, help="Restart when the code changes.")
@click.option("--drain", is_flag=True, help="Stop when no messages are left.")
@click.option(
    "--metrics-port",
    type=int,
    help="Serve metrics and health checks on this port; further processes use the next ports.",
)
@click.option("--metrics-host", help="Address to serve metrics on.  [default: 127.0.0.1]")
@click.option(
    "--quiet",
    is_flag=True,
    envvar="MX_RMQ_QUIET",
    show_envvar=True,
    help="Do not log every handled message, only what goes wrong.",
)
@log_level("info")
@log_format
@click.option("--log-payloads", is_flag=True, help="Log the payloads of failed messages, masked.")
@click.option(
    "--mask",
    multiple=True,
    help="Fields to mask in logs: names, or paths like card.number; comma-separated, or repeated. "
    "Passwords, tokens, secrets and the like are always masked.",
)
@click.option("--lifeline", type=int, hidden=True)
def worker(**given: Any) -> None:
    """Run the handlers of the MessageQueue named ATTRIBUTE in MODULE. ATTRIBUTE defaults to `mq`.

    The first SIGTERM or Ctrl-C gives handlers the grace period to finish; the second cancels them.
    Exit code 0: every message is settled or handed back. 1: some messages are still leased; other
    workers take them over when the leases expire. 2: the worker could not start. 3: a part of the
    worker kept failing, so it stopped.
    """
    systemd = Systemd.take_over()
    given["topics"] = _split(given["topics"]) if given["topics"] else None
    given["imports"] = _split(given["imports"])
    given["mask"] = _split(given["mask"])
    options = Options(**given)
    try:
        Mask(options.mask)  # raises if it is not valid
        code = _run(options, systemd)
    except KeyboardInterrupt:  # before it started
        code = 0
    except MxRmqError as error:
        print_error(error, options.log_format)
        code = CommandFailed.exit_code
    sys.exit(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line of `mx-rmq worker`. None: not given."""

    target: str
    imports: tuple[str, ...]
    url: str | None
    prefix: str | None
    topics: tuple[str, ...] | None
    concurrency: int | None
    grace: float | None
    processes: int | None
    reloads: bool
    drain: bool
    metrics_port: int | None
    metrics_host: str | None
    quiet: bool
    log_level: str
    log_format: str
    log_payloads: bool
    mask: tuple[str, ...]
    lifeline: int | None  # the file descriptor of the connection to the supervisor

    def settings(self) -> dict[str, Any]:
        """Return the options that are settings of a Worker."""
        names = ("topics", "concurrency", "grace", "metrics_port", "metrics_host")
        return {name: getattr(self, name) for name in names}


def _run(options: Options, systemd: Systemd) -> int:
    """Run a worker in this process, or processes that run one; return the exit code."""
    settings = WorkerSettings.load(**options.settings())
    for name in options.imports:
        check_module(name)
    if options.reloads:
        if options.drain or options.processes not in (None, 1):
            raise InvalidInput("--reload cannot be combined with --drain or --processes")
        module, _ = parse(options.target)
        framework = host()
        modules = (module, *options.imports) if framework is None else framework.modules
        supervised = reload(child_command("processes", "reloads"), modules, systemd)
    elif options.processes is not None:
        parse(options.target)
        supervised = supervise(
            child_command("processes", "metrics_port"),
            options.processes,
            name=settings.name,
            metrics_port=_first_port(settings, options.processes),
            drain=options.drain,
            systemd=systemd,
        )
    else:
        from mx_rmq.cli.run_worker import run_worker

        return run_worker(options, settings.grace, systemd)
    configure_logging(options.log_level, options.log_format, options.mask)
    return asyncio.run(supervised)


def child_command(*without: str) -> list[str]:
    """Return the command that runs one process with the options of this one, except these."""
    context = click.get_current_context()
    framework = host()
    program = [sys.executable, "-P", "-m", "mx_rmq.cli"] if framework is None else framework.command
    words = [*program, "worker", context.params["target"]]
    for option in context.command.params:
        given = context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
        if isinstance(option, click.Option) and given and option.name not in without:
            value = context.params[option.name]
            words.append(option.opts[0])
            if not option.is_flag:
                words.append(",".join(value) if option.multiple else str(value))
    return words


def _split(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one.strip() for value in values for one in value.split(",") if one.strip())


def _first_port(settings: WorkerSettings, count: int) -> int:
    """Return the first of `count` free ports for metrics, or raise InvalidInput; 0: no metrics.

    Each port is tried now. Otherwise a process whose port is taken would be restarted forever,
    while the others work.
    """
    host, first = settings.metrics_host, settings.metrics_port
    if first and first + count - 1 > 65_535:
        raise InvalidInput(
            f"metrics need {count} ports, starting at {first}, but the highest port is 65535"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(first, first + count) if first else ():
        try:
            socket.create_server((host, port), family=family).close()
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InvalidInput(f"cannot listen on {host}, port {port}: {why}") from error
    return first
