"""`mx-rmq stats`: count the messages of each topic by state."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mx_rmq.cli.connection import on_admin, with_topics
from mx_rmq.cli.output import as_json, duration, print_json, say
from mx_rmq.cli.program import CommandFailed
from mx_rmq.cli.terminal import Table, screen, show_table
from mx_rmq.core.errors import MxRmqError, OutcomeUnknown, ServerUnavailable

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, Rates, Stats, Totals


class _Seconds(click.FloatRange):
    """The value of --watch, which takes the next word even if it is a topic."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number. Pass topics before --watch.", param, ctx)
        return super().convert(value, param, ctx)


@click.command
@with_topics
@click.option(
    "--watch",
    type=_Seconds(min=0.1),
    is_flag=False,
    flag_value=2.0,
    metavar="[SECONDS]",
    help="Repeat every SECONDS (2 if omitted) until Ctrl-C.",
)
@as_json
@on_admin
async def stats(admin: Admin, topics: tuple[str, ...], watch: float | None, as_json: bool) -> int:
    """Count the messages of TOPICS, or of all topics, by state.

    "oldest" is the age of the next pending message to be dispatched. The partitions of a topic are
    counted together. The last column sums up the findings of `mx-rmq doctor`. --watch also shows
    messages per second, and with --json prints one line of JSON each time. Exit code 2: some
    topics could not be counted.
    """
    if watch is not None:
        await _watch(admin, topics, watch, as_json=as_json)
    found, away, notes = await _count(admin, topics)
    if away and not found:
        raise CommandFailed("\n".join(away))
    if as_json:
        print_json({"topics": [_document(one) for one in found], "away": away})
    else:
        show_table(_table(found, notes)) if found else say("no topics yet")
    for line in away:
        say(f"not counted: {line}", err=True)
    return 2 if away else 0


async def _count(
    admin: Admin, topics: tuple[str, ...]
) -> tuple[list[Stats], list[str], dict[str, list[str]]]:
    """Return the counts, a line for each topic without counts, and the doctor's notes by topic."""
    from mx_rmq.doctor.topics import check_overview

    overview = await admin.overview(*topics, most=None)
    try:
        workers = await admin.workers()
    except MxRmqError:  # perhaps their node of a cluster is away, or this user has no right
        workers = None
    notes: dict[str, list[str]] = {}
    for finding in check_overview(overview, workers, now=time.time()):
        if finding.note:
            notes.setdefault(finding.topic, []).append(finding.note)
    away = [f"{topic}: {error}" for topic, error in overview.away.items()]
    return list(overview.topics.values()), away, notes


async def _watch(
    admin: Admin, topics: tuple[str, ...], seconds: float, *, as_json: bool
) -> NoReturn:
    """Count again and again, with rates, until interrupted."""
    seen: dict[str, tuple[float, Totals]] = {}
    with screen() as show:
        while True:
            try:
                found, away, notes = await _count(admin, topics)
            except (ServerUnavailable, OutcomeUnknown) as error:  # it may come back
                found, away, notes = [], [str(error)], {}
            rates = _rates(seen, found)
            if as_json:
                lines = [_document(one, rates.get(one.topic)) for one in found]
                print_json({"topics": lines, "away": away}, indent=None)
            else:
                show(_table(found, notes, rates), [f"not counted: {line}" for line in away])
            await asyncio.sleep(seconds)


def _rates(seen: dict[str, tuple[float, Totals]], found: list[Stats]) -> dict[str, Rates]:
    """Return each topic's rates since it was last `seen`, and update `seen`."""
    from mx_rmq.admin.stats import rates

    now, found_rates = time.monotonic(), {}
    for one in found:
        at, before = seen.get(one.topic, (now, one.totals))
        if at < now:
            found_rates[one.topic] = rates(one.topic, before, one.totals, now - at)
        seen[one.topic] = now, one.totals
    return found_rates


def _table(
    found: list[Stats], notes: dict[str, list[str]], rates: dict[str, Rates] | None = None
) -> Table:
    """Return a table of topics. With `rates`, even empty ones, it has columns for them."""
    states = ("pending", "processing", "delayed", "waiting", "dead", "quarantined")
    per_second = () if rates is None else ("in/s", "out/s", "failed/s")
    return Table(
        ("topic", *states, "oldest", *per_second, ""),
        [
            (
                one.topic,
                *(getattr(one, state) for state in states),
                duration(one.oldest_pending),
                *(() if rates is None else _per_second(rates.get(one.topic))),
                _notes(one, notes.get(one.topic, [])),
            )
            for one in found
        ],
        spare=("oldest", *per_second[2:]),
    )


def _per_second(rates: Rates | None) -> tuple[float | None, ...]:
    return (None,) * 3 if rates is None else (rates.produced, rates.completed, rates.failed)


def _document(stats: Stats, rates: Rates | None = None) -> dict[str, Any]:
    document = asdict(stats)
    if stats.partitions == 1:
        del document["partitions"]
    if rates is not None:
        document["rates"] = asdict(rates)
        del document["rates"]["topic"]
    return document


def _notes(stats: Stats, notes: list[str]) -> str:
    partitions = [f"{stats.partitions:,} partitions"] if stats.partitions > 1 else []
    return ", ".join(partitions + notes)
