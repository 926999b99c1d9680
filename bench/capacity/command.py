"""`python -m bench.capacity`: how far it goes, estimated from what a message costs."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from bench.capacity.costs import QUICK, USUAL, measure, own_place
from bench.capacity.model import Costs, Model
from bench.capacity.plan import Load, Plan, shipped
from bench.interrupt import run_unless_stopped
from bench.own.command import forget_settings
from bench.own.load import Trouble
from bench.own.place import PREFIX, place, prefix_of_its_own
from mx_rmq.cli.confirm import ask
from mx_rmq.cli.output import as_json, print_json, printable
from mx_rmq.cli.program import CommandFailed
from mx_rmq.cli.terminal import Table, show_table
from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.names import check_topic
from mx_rmq.core.partition import MAX_PARTITIONS
from mx_rmq.login import shown_url
from mx_rmq.net.url import check_url

if TYPE_CHECKING:
    from bench.capacity.costs import Extent

MOST_SHARDS: Final = 10_000
VOLUME: Final = 100
"""Megabytes that a measurement takes on the server at most."""


class Count(click.ParamType[int]):
    """A whole number, which may be written 1e6 or 1_000_000."""

    name = "number"

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read one."""
        try:
            found = float(value)
        except ValueError:
            found = float("nan")
        if found != found // 1 or not self._least <= found <= self._most:
            self.fail(
                f"{printable(str(value))} is not a whole number from {self._least:,} to "
                f"{self._most:,}",
                param,
                ctx,
            )
        return int(found)


@click.command(short_help="Estimate how far it goes: messages per second, memory, processes.")
@click.option("--shards", default="1,3,10,100", help="Servers that share the load, with commas.")
@click.option("--payload", type=Count(20, 1_048_576), default=1_000, help="Bytes of a message.")
@click.option("--batch", type=Count(1, 500), default=100, help="Messages per call of a worker.")
@click.option("--produce-batch", type=Count(1, 500), help="Messages per call of a producer.")
@click.option("--topics", type=Count(1, 10_000), default=1, help="Number of topics, evenly busy.")
@click.option("--topic", multiple=True, help="Or these: then it says exactly where they are.")
@click.option(
    "--partitions", type=Count(1, MAX_PARTITIONS), help="Of each topic; default: eight per shard."
)
@click.option("--backlog", type=Count(0, 10**12), default=1_000_000, help="Messages that wait.")
@click.option("--handler", type=click.FloatRange(0), default=0.0, help="Its CPU, microseconds.")
@click.option(
    "--utilisation",
    type=click.FloatRange(0.01, 1),
    default=0.7,
    help="The part of a core that a process may use.",
)
@click.option("--replicas", is_flag=True, help="Each shard has one.")
@click.option("--costs", type=click.Path(path_type=Path), help="A file of --measure; else ours.")
@click.option(
    "--measure", "out", type=click.Path(path_type=Path), help="Measure costs here, write this file."
)
@click.option("--url", help="With --measure: your server; by default it starts its own.")
@click.option("--prefix", default=PREFIX, show_default=True, help="A random part is added to it.")
@click.option(
    "--patience",
    type=click.FloatRange(0, 300),
    default=10.0,
    help="Seconds to wait for the server.",
)
@click.option("--quick", is_flag=True, help="With --measure: rough figures in a few seconds.")
@click.option("--yes", is_flag=True, help="With --url: do not ask.")
@as_json
def capacity(
    shards: str,
    costs: Path | None,
    out: Path | None,
    url: str | None,
    prefix: str,
    patience: float,
    quick: bool,
    yes: bool,
    as_json: bool,
    topic: tuple[str, ...],
    **load: Any,
) -> None:
    """Estimate messages per second, memory, processes and connections, and name the limits.

    It uses the costs measured on our machine, or on yours: --measure FILE takes about a
    minute and a half and is the only thing here that needs a server; --costs FILE uses its file
    again. Exit code 0: estimated. 1: something went wrong. 2: it could not start.
    130: Ctrl-C.
    """
    if costs is not None and out is not None:
        raise click.UsageError("One of --costs and --measure.")
    if url is not None and out is None:
        raise click.UsageError("--url goes with --measure: an estimate needs no server.")
    try:
        asked = Load(names=tuple(dict.fromkeys(map(check_topic, topic))), **load)
        numbers = _shards(shards)
        if out is not None:
            extent = QUICK if quick else USUAL
            found = _measured(extent, out, url=url, prefix=prefix, patience=patience, yes=yes)
        else:
            found = shipped() if costs is None else _read(costs)
    except MxRmqError as error:
        raise CommandFailed(str(error)) from error
    except Trouble as error:
        raise click.ClickException(printable(str(error))) from error
    model = Model(found)
    plans = [Plan.of(replace(asked, shards=number), model) for number in numbers]
    if as_json:
        print_json({"costs": _about(model), "plans": [_document(plan) for plan in plans]})
    else:
        _print(model, plans)


def _shards(text: str) -> list[int]:
    kind = Count(1, MOST_SHARDS)
    return [kind.convert(one, None, None) for one in text.split(",")]


def _read(path: Path) -> Costs:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Costs)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise CommandFailed(f"{path} is not a file from --measure: {error}") from error


# measuring


def _measured(
    extent: Extent, out: Path, *, url: str | None, prefix: str, patience: float, yes: bool
) -> Costs:
    """Measure, and write the file."""
    url = forget_settings(url)
    logging.getLogger("mx_rmq").setLevel(logging.ERROR)  # mx-rmq doctor checks durability
    prefix = prefix_of_its_own(prefix)
    if url is not None:
        check_url(url)
        _ask(url, prefix, yes=yes)
    costs = run_unless_stopped(_measure(extent, url, prefix, patience))
    try:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(costs)) + b"\n")
    except OSError as error:
        raise CommandFailed(f"{out} cannot be written: {error.strerror}") from error
    return costs


def _ask(url: str, prefix: str, *, yes: bool) -> None:
    """Say what will happen on the user's server; continue only after a yes."""
    click.echo(
        printable(
            f"On {shown_url(url)} this writes keys under {prefix}: and nowhere else, up to "
            f"{VOLUME} MB of them, keeps the server busy for a minute or two, and deletes them at "
            "the end."
        ),
        err=True,
    )
    ask("measure that server", yes=yes)


async def _measure(extent: Extent, url: str | None, prefix: str, patience: float) -> Costs:
    somewhere = (
        own_place(prefix=prefix, patience=patience)
        if url is None
        else place(url, prefix=prefix, patience=patience)
    )
    async with somewhere as where:
        return await measure(where, extent, lambda text: click.echo(text, err=True))


# printing


def _print(model: Model, plans: list[Plan]) -> None:
    load = plans[0].load
    click.echo(
        printable(
            f"{load.payload:,} bytes per message, {load.batch:,} per call, every core "
            f"{load.utilisation:.0%} busy, {load.backlog:,} messages waiting"
        )
    )
    click.echo()
    columns = (
        *("shards", "partitions", "on the busiest", "messages/s per shard", "messages/s"),
        *("memory", "on the busiest", "workers", "producers", "connections per node"),
    )
    rows = [
        (
            plan.load.shards,
            plan.partitions,
            f"{plan.busiest:,.3g}",
            rounded(plan.per_shard),
            rounded(plan.total),
            size(plan.memory),
            size(plan.memory_busiest),
            plan.workers,
            plan.producers,
            plan.node_connections,
        )
        for plan in plans
    ]
    show_table(Table(columns, rows))
    click.echo()
    for plan in plans:
        for bound in plan.bounds:
            if bound.over:
                shards = f"{plan.load.shards:,} shard{'s' * (plan.load.shards > 1)}"
                click.echo(f"{shards}: {bound.text}: {bound.why}")
    about = _about(model)
    click.echo(
        printable(
            f"costs of {about['date']}: {about['server']}, Python {about['python']}, "
            f"{about['machine']}; the formula fits them within {about['deviation']:.0%}"
        )
    )


def _about(model: Model) -> dict[str, Any]:
    costs = model.costs
    return {
        "date": costs.date,
        "server": costs.server,
        "python": costs.python,
        "machine": costs.machine,
        "rounds": costs.rounds,
        "cluster": costs.cluster,
        "replicas": costs.replicas,
        "deviation": model.deviation(),
        "us": {
            **{phase: line._asdict() for phase, line in model.cpu.items()},
            "producer": model.producer._asdict(),
            "worker": model.worker._asdict(),
        },
    }


def _document(plan: Plan) -> dict[str, Any]:
    bounds = [{**asdict(bound), "over": bound.over} for bound in plan.bounds]
    return {**asdict(plan), "bounds": bounds}


def rounded(value: float) -> int:
    """Return a number rounded to two significant digits."""
    step = int(10 ** max(0, len(str(int(value))) - 2))
    return round(value / step) * step


def size(value: float) -> str:
    """Return bytes in the unit that fits."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:,.3g} {unit}"
    return f"{value:,.0f} B"
