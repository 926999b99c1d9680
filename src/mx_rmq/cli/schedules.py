"""`mx-rmq schedules`: every schedule and when it runs next, or the next ten runs of one."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.connection import on_admin
from mx_rmq.cli.output import as_json, cut, print_json, say, when
from mx_rmq.cli.terminal import Table, show_table

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, ScheduleView

RUNS: Final = 10  # next runs that are shown of one schedule


@click.command
@click.argument("name", required=False)
@as_json
@on_admin
async def schedules(admin: Admin, name: str | None, as_json: bool) -> int:
    """List the schedules and when they run next. With NAME, show its next ten runs.

    A cron that is declared in code has the name of its topic. Times are UTC.
    """
    if name is not None:
        return _one(await admin.get_schedule(name), as_json=as_json)
    found = await admin.schedules()
    if as_json:
        print_json({"schedules": [schedule_document(one) for one in found]})
    elif not found:
        say("no schedules")
    else:
        show_table(_table(found))
    return 0


def _table(found: list[ScheduleView]) -> Table:
    return Table(
        ("name", "topic", "expression", "tz", "next run", "last run", "payload", ""),
        [
            (
                one.name,
                one.topic,
                one.expression,
                one.tz,
                when(one.next_run),
                when(one.last_run),
                cut(json.dumps(one.payload, ensure_ascii=False)),
                ", ".join(_marks(one)),
            )
            for one in found
        ],
        spare=("payload", "last run", "tz"),
        long=("payload",),
    )


def _marks(one: ScheduleView) -> list[str]:
    why = f" ({one.pause_reason})" if one.pause_reason else ""
    paused = [f"paused{why}"] if one.paused else []
    return [*paused, *(["in code"] if one.declared else [])]


def _one(one: ScheduleView, *, as_json: bool) -> int:
    runs = one.next_runs(RUNS)
    if as_json:
        print_json({**schedule_document(one), "next_runs": runs})
        return 0
    facts = [f"{one.expression} ({one.tz})", f"to {one.topic}", *_marks(one)]
    say(f"{one.name}: {', '.join(facts)}")
    say(f"  payload: {json.dumps(one.payload, ensure_ascii=False)}")
    say(f"  missed ticks: {one.missed}")
    say(f"  last run: {when(one.last_run) or 'none'}")
    say("  next runs:" if runs else "  next runs: none")
    for run in runs:
        say(f"    {when(run)}")
    return 0


def schedule_document(view: ScheduleView) -> dict[str, Any]:
    """Return a schedule for JSON."""
    document = asdict(view)
    del document["waits_since"]
    return document
