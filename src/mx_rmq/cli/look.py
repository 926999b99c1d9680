"""`mx-rmq stats | list | workers`: look, and change nothing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mx_rmq.admin import Page, Progress
from mx_rmq.admin.rates import rates
from mx_rmq.cli.completion import complete_topic
from mx_rmq.cli.connection import CannotDo, on_admin
from mx_rmq.cli.filters import filter_of, with_filters
from mx_rmq.cli.output import (
    as_json,
    cut,
    duration,
    message_document,
    payload_text,
    print_json,
    print_line,
    printable,
    say,
    when,
)
from mx_rmq.cli.progress import bar
from mx_rmq.cli.tables import Table, screen, show_table
from mx_rmq.core.errors import OutcomeUnknown, ServerUnavailable
from mx_rmq.core.message import State
from mx_rmq.core.names import short_worker
from mx_rmq.store.pages import MAX_PAGE

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, Filter, MessageView, Rates, Stats, Totals, WorkerView

TIME_OF = {
    State.PENDING: ("created", "created_at"),
    State.DELAYED: ("due", "due"),
    State.PROCESSING: ("lease until", "lease_deadline"),
    State.DEAD: ("died", "archived_at"),
    State.QUARANTINED: ("set aside", "archived_at"),
}
"""By which time each state is ordered, or would be."""


@click.command(short_help="Count the messages of each topic, state by state.")
@click.argument("topics", nargs=-1, shell_complete=complete_topic)
@click.option(
    "--watch",
    type=click.FloatRange(min=0.1),
    is_flag=False,
    flag_value=2.0,
    metavar="[SECONDS]",
    help="Again every 2 seconds, or as often as you say, until you interrupt it.",
)
@as_json
@on_admin
async def stats(admin: Admin, topics: tuple[str, ...], watch: float | None, as_json: bool) -> int:
    """Count the messages of TOPICS, or of all topics, state by state.

    The age is that of the oldest message among those that are taken next. A topic of several
    partitions is counted as one. With --watch, also how fast messages came and went since the look
    before; and with --json, one line of JSON each time. Exit code 2: not all topics could be
    counted.
    """
    if watch is not None:
        await _watch(admin, topics, watch, as_json=as_json)
    found, away = await _count(admin, topics)
    if away and not found:
        raise CannotDo("\n".join(away))
    if as_json:
        print_json({"topics": [_document(one) for one in found], "away": away})
    else:
        show_table(_table(found)) if found else say("no topics yet")
    for line in away:
        click.echo(printable(f"not counted: {line}"), err=True)
    return 2 if away else 0


async def _count(admin: Admin, topics: tuple[str, ...]) -> tuple[list[Stats], list[str]]:
    """Return what was counted, and what could not be and why."""
    found, away = [], []
    for topic in topics or await admin.topics():
        try:
            found.append(await admin.stats(topic))
        except (ServerUnavailable, OutcomeUnknown) as error:  # one of a cluster's, perhaps
            away.append(f"{topic}: {error}")
    return found, away


async def _watch(
    admin: Admin, topics: tuple[str, ...], seconds: float, *, as_json: bool
) -> NoReturn:
    """Count again and again, and say how fast it went, until it is interrupted."""
    seen: dict[str, tuple[float, Totals]] = {}
    with screen() as show:
        while True:
            try:
                found, away = await _count(admin, topics)
            except (ServerUnavailable, OutcomeUnknown) as error:  # it may come back
                found, away = [], [str(error)]
            speeds = _speeds(seen, found)
            if as_json:
                lines = [_document(one, speeds.get(one.topic)) for one in found]
                print_line({"topics": lines, "away": away})
            else:
                show(_table(found, speeds), [f"not counted: {line}" for line in away])
            await asyncio.sleep(seconds)


def _speeds(seen: dict[str, tuple[float, Totals]], found: list[Stats]) -> dict[str, Rates]:
    """Return how fast messages came and went since each topic was `seen`, which is brought up."""
    now, speeds = time.monotonic(), {}
    for one in found:
        at, before = seen.get(one.topic, (now, one.totals))
        if at < now:
            speeds[one.topic] = rates(one.topic, before, one.totals, now - at)
        seen[one.topic] = now, one.totals
    return speeds


def _table(found: list[Stats], speeds: dict[str, Rates] | None = None) -> Table:
    """Return a table of topics. Given `speeds`, it has their columns, also while they are empty."""
    columns = ("topic", "pending", "processing", "delayed", "dead", "quarantined", "oldest")
    fast = () if speeds is None else ("in/s", "out/s", "failed/s")
    return Table(
        (*columns, *fast, ""),
        [
            (
                one.topic,
                one.pending,
                one.processing,
                one.delayed,
                one.dead,
                one.quarantined,
                duration(one.oldest_pending),
                *([] if speeds is None else _fast(speeds.get(one.topic))),
                _notes(one),
            )
            for one in found
        ],
        spare=("oldest", *fast[2:]),
    )


def _fast(speed: Rates | None) -> tuple[float | None, ...]:
    return (None,) * 3 if speed is None else (speed.produced, speed.completed, speed.failed)


@click.command("list", short_help="List the messages of a topic that are in a state.")
@click.argument("topic", shell_complete=complete_topic)
@click.option("--state", type=click.Choice([state.value for state in State]), required=True)
@with_filters
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=20, show_default=True)
@click.option("--cursor", help="Where to go on: what the page before said at its end.")
@as_json
@on_admin
async def list_messages(
    admin: Admin,
    topic: str,
    state: str,
    error: str | None,
    since: str | None,
    until: str | None,
    text: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> int:
    """List the messages of TOPIC that are in a state, a page at a time.

    Pending ones in the order in which they are taken, of several partitions in turn; delayed ones
    by due time, those in processing by the end of their lease, dead and quarantined ones newest
    first. The time that --since and --until mean is the one that is shown. Exit code 2: it could
    not be done.
    """
    wanted = await filter_of(admin, error=error, since=since, until=until, text=text)
    page = await _page(admin, topic, state, wanted, limit, cursor, quiet=as_json)
    if as_json:
        messages = [message_document(one, raw=False) for one in page.messages]
        print_json({"messages": messages, "cursor": page.cursor, "looked": page.looked})
        return 0
    title, time = TIME_OF[State(state)]
    columns = ("id", "priority", "attempts", title, "note", "payload")
    if page.messages:
        rows = [_row(one, getattr(one, time)) for one in page.messages]
        spare = ("priority", "payload") if any(row[4] for row in rows) else ("priority",)
        show_table(Table(columns, rows, spare=spare, long=("note", "payload")))
    else:
        say(f"no {state} messages" + (" match" if wanted else ""))
    if page.cursor is not None:
        say(f"there are more: --cursor {page.cursor}")
    return 0


async def _page(
    admin: Admin,
    topic: str,
    state: str,
    wanted: Filter | None,
    limit: int,
    cursor: str | None,
    *,
    quiet: bool,
) -> Page:
    """Return a page. With a filter it is looked for until it is full, or until the end."""
    if wanted is None:
        return await admin.list(topic, state, limit=limit, cursor=cursor)
    total = getattr(await admin.stats(topic), state)
    messages: list[MessageView] = []
    looked = 0
    with bar("found", quiet=quiet) as show:
        while True:
            left = limit - len(messages)
            page = await admin.list(topic, state, filter=wanted, limit=left, cursor=cursor)
            messages += page.messages
            looked, cursor = looked + page.looked, page.cursor
            show(Progress(len(messages), looked, total))
            if cursor is None or len(messages) == limit:
                return Page(messages, cursor, looked)


@click.command(short_help="List the workers that were heard of lately.")
@click.option("--running", is_flag=True, help="List what each of them runs, and for how long.")
@as_json
@on_admin
async def workers(admin: Admin, running: bool, as_json: bool) -> int:
    """List the workers that were heard of lately, and how busy they are.

    A worker tells of itself every 15 seconds: all figures are as old as they are shown to be. It
    tells of 20 running handlers, those that have run the longest.
    """
    found = await admin.workers()
    if as_json:
        print_json({"workers": [{**asdict(one), "alive": one.alive} for one in found]})
    elif not found:
        say("no worker was heard of")
    else:
        show_table(_running(found) if running else _workers(found))
    return 0


def _workers(found: list[WorkerView]) -> Table:
    return Table(
        ("worker", "host", "pid", "topics", "running", "held", "slots", "started", "as of", ""),
        [
            (
                short_worker(one.name),
                one.host,
                None if one.pid is None else str(one.pid),
                ", ".join(one.topics),
                one.running,
                one.held,
                one.concurrency,
                when(one.started_at),
                f"{duration(one.seen_ago)} ago",
                _state(one),
            )
            for one in found
        ],
        spare=("started", "host", "pid", "slots", "held"),
        long=("topics",),
    )


def _state(one: WorkerView) -> str | None:
    """Return what is wrong with a worker."""
    if not one.alive:
        return "silent"
    return f"{', '.join(one.down)} down" if one.down else None


def _running(found: list[WorkerView]) -> Table:
    """Return what the workers run; one that runs nothing has a line, too."""
    rows: list[tuple[object, ...]] = []
    for one in found:
        end = f"{duration(one.seen_ago)} ago", _state(one)
        name = short_worker(one.name)
        nothing = (name, None, None, None, None, None, *end)
        rows += [
            (name, run.topic, run.id, run.handler, run.attempt, duration(run.seconds), *end)
            for run in one.doing
        ] or [nothing]
    columns = ("worker", "topic", "id", "handler", "attempt", "running for", "as of", "")
    return Table(columns, rows, spare=("attempt", "as of", "handler"))


def _document(stats: Stats, speed: Rates | None = None) -> dict[str, Any]:
    document = asdict(stats)
    if stats.partitions == 1:
        del document["partitions"]
    if speed is not None:
        document["rates"] = asdict(speed)
        del document["rates"]["topic"]
    return document


def _notes(stats: Stats) -> str:
    notes = (
        f"{stats.partitions:,} partitions" if stats.partitions > 1 else "",
        "paused" if stats.paused else "",
        f"{stats.dropped:,} ids dropped" if stats.dropped else "",
    )
    return ", ".join(filter(None, notes))


def _row(message: MessageView, at: float | None) -> tuple[object, ...]:
    note, payload = cut(_note(message)), cut(payload_text(message))
    return message.id, message.priority, message.attempts, when(at), note, payload


def _note(message: MessageView) -> str:
    """Return what matters most about a message in its state."""
    if message.state is State.QUARANTINED:
        return f"{message.error_type}: {message.error}"
    if message.unreadable:
        return f"unreadable: {message.unreadable}"
    if message.state is State.PROCESSING:
        return short_worker(message.worker)
    if message.reason or not message.errors:
        return message.reason
    return f"{message.errors[-1].type}: {message.errors[-1].text}"
