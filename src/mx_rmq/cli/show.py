"""`mx-rmq show`: everything about one message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.connection import complete_topic, on_admin
from mx_rmq.cli.history import history_document, print_history, reach
from mx_rmq.cli.output import (
    as_json,
    cut,
    lines,
    message_document,
    payload_text,
    print_json,
    say,
    when,
)
from mx_rmq.cli.program import CommandFailed
from mx_rmq.cli.steps import print_steps
from mx_rmq.core.message import State

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, Happening, MessageView

ENDS: Final = ("completed", "discarded", "cancelled", "trimmed")
"""Events after which a message is gone."""

ARCHIVED: Final = {State.QUARANTINED: "set aside", State.COMPLETED: "completed"}
"""What the time in an archive is called, unless it is when the message died."""


@click.command
@click.argument(
    "words", nargs=-1, required=True, metavar="[TOPIC] ID", shell_complete=complete_topic
)
@as_json
@on_admin
async def show(admin: Admin, words: tuple[str, ...], as_json: bool) -> int:
    """Show message ID of TOPIC. Without TOPIC, search all topics.

    If the message is gone, show what is left of it in the topic's history, and how far back that
    reaches. Exit code 1: not found. 2: failed, or several topics have a message with this id.
    """
    if len(words) > 2:
        raise click.UsageError("Pass one message: ID or TOPIC ID.")
    *topic, id = words
    message = await (admin.get(topic[0], id) if topic else _find(admin, id))
    topics = [message.topic] if message else topic or await admin.topics()
    history = await _history(admin, topics, id)
    topic = [history[0].topic] if history else [message.topic] if message else topic
    begins = await admin.history_begins(topic[0]) if topic else None
    if as_json:
        print_json(_document(message, history, begins))
    elif message is not None:
        _print_facts(message)
        print_steps(message)
        _print_failures(message)
        print_history(history, begins, await admin.now(), message.created_at)
        what = "result:" if message.state is State.COMPLETED else "payload:"
        click.echo("bytes:" if message.unreadable else what)
        for line in lines(payload_text(message, indent=2)):
            click.echo("  " + line)
    elif history:
        last = history[-1].what
        _print({"id": id, "topic": history[0].topic, "state": last if last in ENDS else "gone"})
        print_history(history, begins, await admin.now())
    else:
        where = f"in topic {topic[0]!r}" if topic else "in any topic"
        say("Error: " + cut(f"no message {id!r} {where}", 200), err=True)
        if begins is not None:
            since = reach(begins, await admin.now())
            say(f"The history reaches back to {since}; it may have ended before.", err=True)
    return int(message is None and not history)


async def _find(admin: Admin, id: str) -> MessageView | None:
    found = await admin.find(id)
    if len(found) > 1:
        topics = ", ".join(one.topic for one in found)
        raise CommandFailed(f"message {id!r:.80} is in several topics, pass one of them: {topics}")
    return found[0] if found else None


async def _history(admin: Admin, topics: list[str], id: str) -> list[Happening]:
    """Return the history of a message from the first topic that has one."""
    for topic in topics:
        if history := await admin.history(topic, id):
            return history
    return []


def _document(
    message: MessageView | None, history: list[Happening], begins: float | None
) -> dict[str, Any] | None:
    if message is not None:
        about = message_document(message, raw=True)
    elif history:
        (id,) = history[0].ids
        about = {"id": id, "topic": history[0].topic, "state": None}
    else:
        return None
    events = history_document(history)
    return {**about, "history": events, "history_begins": begins}


def _print_facts(message: MessageView) -> None:
    quarantined = message.state is State.QUARANTINED
    _print(
        {
            "id": message.id,
            "topic": message.topic,
            "partition": message.partition or None,
            "state": message.state,
            "unreadable": message.unreadable,
            "reason": message.reason,
            "error": f"{message.error_type}: {message.error}" if quarantined else None,
            "priority": message.priority,
            "key": message.key,
            "cost": message.cost if message.cost != 1 else None,
            "attempts": _attempts(message),
            "created": when(message.created_at),
            "expires": when(message.expires_at),
            "due": when(message.due),
            "lease until": when(message.lease_deadline),
            "worker": message.worker,
            "token": message.token,
            "progress": None if message.progress is None else f"{message.progress:.0%}",
            "note": message.note,
            ARCHIVED.get(message.state, "died"): when(message.archived_at),
            "length": f"{message.length:,} bytes",
        }
    )
    for name, value in message.headers.items():
        _print({"header": f"{name}: {value}"})


def _print(facts: dict[str, object]) -> None:
    for name, fact in facts.items():
        if fact is not None and fact != "":
            say(f"{name + ':':<13}{fact}")


def _attempts(message: MessageView) -> str | None:
    if message.priority is None:  # its record cannot be decoded
        return None
    allowed = "" if message.max_attempts is None else f" of {message.max_attempts}"
    crashes = f", {message.crashes} of them by crashes" if message.crashes else ""
    since = " since it was requeued" if message.earlier else ""
    return f"{message.attempts}{allowed} failed{since}{crashes}"


def _print_failures(message: MessageView) -> None:
    for number, failure in enumerate(message.errors):
        by = f" by {failure.worker}" if failure.worker else ""
        name = "earlier" if number < message.earlier else "failed"
        _print({name: f"{when(failure.at)}{by}: {failure.type}: {failure.text}"})
        for line in lines(failure.traceback.rstrip("\n")) if failure.traceback else ():
            click.echo("    " + line)
