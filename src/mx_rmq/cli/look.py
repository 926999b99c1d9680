"""`mx-rmq stats | list | show | workers`: look, and change nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from mx_rmq.cli.connection import CannotDo, on_admin
from mx_rmq.cli.output import (
    as_json,
    cut,
    duration,
    lines,
    message_document,
    payload_text,
    print_json,
    print_table,
    printable,
    say,
    when,
)
from mx_rmq.core.errors import OutcomeUnknown, ServerUnavailable
from mx_rmq.core.message import State
from mx_rmq.store.pages import MAX_PAGE

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, MessageView, Stats

TIME_OF = {
    State.PENDING: ("created", "created_at"),
    State.DELAYED: ("due", "due"),
    State.PROCESSING: ("lease until", "lease_deadline"),
    State.DEAD: ("died", "archived_at"),
    State.QUARANTINED: ("set aside", "archived_at"),
}
"""By which time each state is ordered, or would be."""


@click.command(short_help="Count the messages of each topic, state by state.")
@click.argument("topics", nargs=-1)
@as_json
@on_admin
async def stats(admin: Admin, topics: tuple[str, ...], as_json: bool) -> int:
    """Count the messages of TOPICS, or of all topics, state by state.

    The age is that of the oldest message among those that are taken next. A topic of several
    partitions is counted as one.
    """
    found, away = [], []
    for topic in topics or await admin.topics():
        try:
            found.append(await admin.stats(topic))
        except (ServerUnavailable, OutcomeUnknown) as error:  # one of a cluster's, perhaps
            away.append(f"{topic}: {error}")
    if away and not found:
        raise CannotDo("\n".join(away))
    if as_json:
        print_json({"topics": [_document(one) for one in found]})
    elif not found:
        say("no topics yet")
    else:
        columns = ("topic", "pending", "processing", "delayed", "dead", "quarantined", "oldest", "")
        print_table(
            columns,
            (
                (
                    one.topic,
                    one.pending,
                    one.processing,
                    one.delayed,
                    one.dead,
                    one.quarantined,
                    duration(one.oldest_pending),
                    _notes(one),
                )
                for one in found
            ),
        )
    for line in away:
        click.echo(printable(f"not counted: {line}"), err=True)
    return 2 if away else 0


@click.command("list", short_help="List the messages of a topic that are in a state.")
@click.argument("topic")
@click.option("--state", type=click.Choice([state.value for state in State]), required=True)
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=20, show_default=True)
@click.option("--cursor", help="Where the page before ended, as it said.")
@as_json
@on_admin
async def list_messages(
    admin: Admin, topic: str, state: str, limit: int, cursor: str | None, as_json: bool
) -> int:
    """List the messages of TOPIC that are in a state, a page at a time.

    Pending ones in the order in which they are taken, of several partitions in turn; delayed ones
    by due time, those in processing by the end of their lease, dead and quarantined ones newest
    first.
    """
    page = await admin.list(topic, state, limit=limit, cursor=cursor)
    if as_json:
        messages = [message_document(one, raw=False) for one in page.messages]
        print_json({"messages": messages, "cursor": page.cursor})
        return 0
    title, time = TIME_OF[State(state)]
    columns = ("id", "priority", "attempts", title, "note", "payload")
    print_table(columns, (_row(one, getattr(one, time)) for one in page.messages))
    if page.cursor is not None:
        say(f"there are more: --cursor {page.cursor}")
    return 0


@click.command(short_help="Show everything that is known of one message.")
@click.argument("topic")
@click.argument("id")
@as_json
@on_admin
async def show(admin: Admin, topic: str, id: str, as_json: bool) -> int:
    """Show everything that is known of message ID of TOPIC. Exit code 1: it is not there."""
    message = await admin.get(topic, id)
    if as_json:
        print_json(None if message is None else message_document(message, raw=True))
    elif message is None:
        click.echo("Error: " + cut(f"no message {id!r} in topic {topic!r}", 200), err=True)
    else:
        _show(message)
    return int(message is None)


@click.command(short_help="List the workers that were heard of lately.")
@as_json
@on_admin
async def workers(admin: Admin, as_json: bool) -> int:
    """List the workers that were heard of lately, and what they are doing."""
    found = await admin.workers()
    if as_json:
        print_json({"workers": [{**asdict(one), "alive": one.alive} for one in found]})
    elif not found:
        say("no worker was heard of")
    else:
        print_table(
            ("worker", "host", "pid", "topics", "running", "held", "slots", "started", "seen", ""),
            (
                (
                    one.name,
                    one.host,
                    None if one.pid is None else str(one.pid),
                    ", ".join(one.topics),
                    one.running,
                    one.held,
                    one.concurrency,
                    when(one.started_at),
                    f"{duration(one.seen_ago)} ago",
                    None if one.alive else "silent",
                )
                for one in found
            ),
        )
    return 0


def _document(stats: Stats) -> dict[str, Any]:
    document = asdict(stats)
    if stats.partitions == 1:
        del document["partitions"]
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
        return message.worker
    if message.reason or not message.errors:
        return message.reason
    return f"{message.errors[-1].type}: {message.errors[-1].text}"


def _show(message: MessageView) -> None:
    quarantined = message.state is State.QUARANTINED
    facts = {
        "id": message.id,
        "topic": message.topic,
        "partition": message.partition or None,
        "state": message.state,
        "unreadable": message.unreadable,
        "reason": message.reason,
        "error": f"{message.error_type}: {message.error}" if quarantined else None,
        "priority": message.priority,
        "attempts": _attempts(message),
        "created": when(message.created_at),
        "expires": when(message.expires_at),
        "due": when(message.due),
        "lease until": when(message.lease_deadline),
        "worker": message.worker,
        "token": message.token,
        "set aside" if quarantined else "died": when(message.archived_at),
        "length": f"{message.length:,} bytes",
    }
    for name, fact in facts.items():
        if fact is not None and fact != "":
            say(f"{name + ':':<13}{fact}")
    for name, value in message.headers.items():
        say(f"{'header:':<13}{name}: {value}")
    for failure in message.errors:
        by = f" by {failure.worker}" if failure.worker else ""
        say(f"{'failed:':<13}{when(failure.at)}{by}: {failure.type}: {failure.text}")
        for line in lines(failure.traceback.rstrip("\n")) if failure.traceback else ():
            click.echo("    " + line)
    click.echo("bytes:" if message.unreadable else "payload:")
    for line in lines(payload_text(message, indent=2)):
        click.echo("  " + line)


def _attempts(message: MessageView) -> str | None:
    if message.priority is None:  # its record could not be read
        return None
    allowed = "" if message.max_attempts is None else f" of {message.max_attempts}"
    crashes = f", {message.crashes} of them crashes" if message.crashes else ""
    return f"{message.attempts}{allowed} failed{crashes}"
