"""`python -m bench.own`: what a message costs, on its own server or on yours."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click

from bench.interrupt import run_unless_stopped
from bench.own.load import Trouble
from bench.own.parts import PARTS
from bench.own.place import PREFIX, look, place, prefix_of_its_own
from bench.own.size import LONG, QUICK, USUAL, Size
from mx_rmq.cli.confirm import ask
from mx_rmq.cli.output import as_json, print_json, printable
from mx_rmq.cli.program import CommandFailed
from mx_rmq.cli.terminal import Table, show_table
from mx_rmq.core.errors import MxRmqError
from mx_rmq.login import shown_url
from mx_rmq.net.url import check_url
from mx_rmq.runtime.loop import loop_factory
from mx_rmq.settings import QueueSettings

if TYPE_CHECKING:
    from bench.own.figure import Figure
    from bench.own.place import Place


KEPT: Final = "MX_RMQ_SERVER_BINARY"
LOGIN: Final = tuple(
    f"MX_RMQ_{name}" for name in ("USERNAME", "PASSWORD", "PASSWORD_FILE", "CONFIG")
)
"""What may set the login: variables, and the variable that names the settings file."""
VERDICTS: Final = {True: "met", False: "missed", None: ""}


@click.command(short_help="Measure what a message costs here.")
@click.option("--url", help="Your server or cluster; by default it starts its own.")
@click.option("--prefix", default=PREFIX, show_default=True, help="A random part is added to it.")
@click.option(
    "--patience",
    type=click.FloatRange(0, 300),
    default=10.0,
    help="Seconds to wait for the server.",
)
@click.option("--only", multiple=True, help=f"Of: {', '.join(PARTS)}. With commas, or repeated.")
@click.option("--quick", is_flag=True, help="A smoke run of half a minute; figures are rough.")
@click.option("--long", is_flag=True, help=f"Up to {LONG:,} pending: minutes more, about 2 GB.")
@click.option("--pending", type=click.IntRange(2_000, 100_000_000), help="Up to this many pending.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def bench(
    url: str | None,
    prefix: str,
    patience: float,
    only: tuple[str, ...],
    quick: bool,
    long: bool,
    pending: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Measure speed, latency, memory and growth; print each beside its goal.

    Takes about five minutes. It ignores all settings and measures the defaults. On your server
    it asks first, uses only its own keys, and deletes them at the end. Exit code 0: measured,
    whether goals are met or not. 1: something went wrong. 2: it could not start. 130: Ctrl-C.
    """
    logging.getLogger("mx_rmq").setLevel(logging.ERROR)  # mx-rmq doctor checks durability
    try:
        address = forget_settings(url)
        asked = Asked(
            url=address,
            prefix=prefix_of_its_own(prefix),
            patience=patience,
            parts=_parts(only),
            size=_size(quick=quick, long=long, pending=pending),
            yes=yes,
            as_json=as_json,
        )
        if asked.url is not None:
            check_url(asked.url)
            asyncio.run(_look(asked.url, asked))
            ask("measure that server", yes=asked.yes)
        run_unless_stopped(_run(asked))
    except MxRmqError as error:
        raise CommandFailed(str(error)) from error
    except Trouble as error:
        raise click.ClickException(printable(str(error))) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for."""

    url: str | None
    prefix: str
    patience: float
    parts: tuple[str, ...]
    size: Size
    yes: bool
    as_json: bool


def _parts(only: tuple[str, ...]) -> tuple[str, ...]:
    wanted = {name.strip() for one in only for name in one.split(",") if name.strip()}
    if unknown := sorted(wanted - PARTS.keys()):
        raise click.UsageError(
            f"--only {printable(', '.join(unknown))}: there is only {', '.join(PARTS)}."
        )
    return tuple(name for name in PARTS if not wanted or name in wanted)


def _size(*, quick: bool, long: bool, pending: int | None) -> Size:
    if quick + long + (pending is not None) > 1:
        raise click.UsageError("One of --quick, --long and --pending.")
    if quick:
        return QUICK
    most = LONG if long else pending
    if most is None:
        return USUAL
    return replace(USUAL, pending=(*(one for one in USUAL.pending if one < most), most))


async def _run(asked: Asked) -> None:
    began = time.monotonic()
    async with place(asked.url, prefix=asked.prefix, patience=asked.patience) as here:
        _introduce(here)
        figures: list[Figure] = []
        for number, name in enumerate(asked.parts, 1):
            _tell(f"  {number} of {len(asked.parts)}: {name}")
            figures += await PARTS[name](here, asked.size)
    seconds = time.monotonic() - began
    if asked.as_json:
        print_json(_document(asked, here, figures, seconds))
    else:
        _print(here, figures, seconds)


# before


async def _look(url: str, asked: Asked) -> None:
    """Say what will happen on the user's server; refuse one without enough memory."""
    nature, strangers = await look(url, patience=asked.patience)
    needed, room = asked.size.bytes, nature.maxmemory - nature.memory
    if nature.maxmemory and needed > room:
        raise CommandFailed(
            f"it may take {needed / 1e6:,.0f} MB, and the server has room for "
            f"{max(0, room) / 1e6:,.0f} MB: say --quick"
        )
    _tell(
        f"On {shown_url(url)} this writes keys under {asked.prefix}: and nowhere else, up "
        f"to {needed / 1e6:,.0f} MB of them. It keeps the server as busy as it can, and deletes "
        "those keys at the end. It changes no setting, and resets no statistic."
    )
    _tell(f"Other clients send {strangers:,.0f} commands per second there now.")


def _introduce(here: Place) -> None:
    nature = here.nature
    where = "its own server" if here.own else "the server"
    if nature.nodes > 1:
        where = f"a cluster of {nature.nodes} nodes, the first"
    kept = "with an append-only file" if nature.persists else "without append-only file"
    _tell(f"{where}: {nature.name} {nature.version}, {kept}")
    load = os.getloadavg()[0]
    _tell(f"Python {platform.python_version()}, {_loop()}, {os.cpu_count()} cores, load {load:.1f}")


def _tell(text: str) -> None:
    """Print progress to stderr; stdout is for the figures."""
    click.echo(printable(text), err=True)


def _loop() -> str:
    return "asyncio's event loop" if loop_factory() is None else "uvloop"


def forget_settings(url: str | None = None) -> str | None:
    """Drop all settings, because defaults are measured. Return the URL with the login."""
    _remove_variables((KEPT, *LOGIN))
    address = None if url is None else QueueSettings.load(url=url).address
    _remove_variables((KEPT,))
    os.environ["MX_RMQ_CONFIG"] = os.devnull
    return address


def _remove_variables(kept: tuple[str, ...]) -> None:
    for name in [name for name in os.environ if name.startswith("MX_RMQ_") and name not in kept]:
        del os.environ[name]


# after


def _print(here: Place, figures: list[Figure], seconds: float) -> None:
    rows = []
    for figure in figures:
        mark = "*" if figure.others and not here.own else ""
        measured = f"{_number(figure.value)} {figure.unit}{mark}"
        verdict = figure.excuse if figure.met is None else VERDICTS[figure.met]
        rows.append((figure.what, measured, _goal(figure), verdict, figure.note))
    show_table(Table(("", "measured", "goal", "", ""), rows))
    judged = [figure.met for figure in figures if figure.met is not None]
    click.echo(f"\n{sum(judged)} of {len(judged)} goals met; measured in {seconds:,.0f} s")
    if not all(judged):
        _tell("other work on the machine, a slow one and --quick make figures worse")
    if not here.own:
        click.echo("* includes the traffic of other clients")


def _goal(figure: Figure) -> str:
    if figure.goal is None:
        return figure.beside
    return f"{figure.goal.bound} {_number(figure.goal.limit)} {figure.unit}"


def _number(value: float) -> str:
    """Return a number with three digits that count."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _document(asked: Asked, here: Place, figures: list[Figure], seconds: float) -> dict[str, Any]:
    return {
        "server": {
            "own": here.own,
            "name": here.nature.name,
            "version": here.nature.version,
            "persists": here.nature.persists,
        },
        "python": platform.python_version(),
        "loop": _loop(),
        "cores": os.cpu_count(),
        "size": asdict(asked.size),
        "seconds": seconds,
        "figures": [
            {
                "name": figure.name,
                "what": figure.what,
                "value": figure.value,
                "unit": figure.unit,
                "goal": None if figure.goal is None else asdict(figure.goal),
                "beside": figure.beside,
                "met": figure.met,
                "excuse": figure.excuse if figure.met is None else "",
                "note": figure.note,
                "counts_others": figure.others and not here.own,
            }
            for figure in figures
        ],
    }
