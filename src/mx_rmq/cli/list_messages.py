"""`mx-rmq list`: the messages of a topic in a given state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack

import click

from mx_rmq.cli.connection import on_admin, with_topic
from mx_rmq.cli.filters import Filters, filter_of, with_filters
from mx_rmq.cli.output import as_json, cut, message_document, payload_text, print_json, say, when
from mx_rmq.cli.terminal import Table, progress_bar, show_table
from mx_rmq.core.message import State
from mx_rmq.core.names import short_worker

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, Filter, MessageView, Page

TIME_OF: Final = {
    State.PENDING: ("created", "created_at"),
    State.DELAYED: ("due", "due"),
    State.WAITING: ("since", "since"),
    State.PROCESSING: ("lease until", "lease_deadline"),
    State.DEAD: ("died", "archived_at"),
    State.QUARANTINED: ("set aside", "archived_at"),
    State.COMPLETED: ("completed", "archived_at"),
}
"""State -> the time shown for its messages: column and attribute."""


@click.command
@with_topic
@click.option(
    "--state", type=click.Choice([*map(str, State)]), required=True, help="State of the messages."
)
@with_filters
@click.option(
    "--limit", type=int, default=20, show_default=True, help="Messages per page, up to 1,000."
)
@click.option("--cursor", help="Where to continue: printed at the end of the previous page.")
@as_json
@on_admin
async def list_messages(
    admin: Admin,
    topic: str,
    state: str,
    limit: int,
    cursor: str | None,
    as_json: bool,
    **filters: Unpack[Filters],
) -> int:
    """List the messages of TOPIC in a given state, page by page.

    Pending messages are listed in dispatch order, with partitions taking turns, and then those with
    a key, line by line; delayed messages by due time; waiting messages by how long they have
    waited; messages in processing by the end of their lease. All others are listed newest first.
    Completed messages are those whose results are kept; the table shows these results.
    --since and --until filter by the time in the table. Exit code 2: failed.
    """
    wanted = await filter_of(admin, **filters)
    if wanted is None:
        page = await admin.list(topic, state, limit=limit, cursor=cursor)
    else:
        page = await _search(admin, topic, state, wanted, limit, cursor, quiet=as_json)
    if as_json:
        messages = [message_document(one, raw=False) for one in page.messages]
        print_json({"messages": messages, "cursor": page.cursor, "looked": page.looked})
        return 0
    title, time = TIME_OF[State(state)]
    content = "result" if state == State.COMPLETED else "payload"
    key = ("key",) if any(one.key for one in page.messages) else ()
    columns = ("id", *key, "priority", "attempts", title, "note", content)
    if page.messages:
        rows = [_row(one, getattr(one.wait or one, time), bool(key)) for one in page.messages]
        spare = ("priority", content) if any(row[-2] for row in rows) else ("priority",)
        show_table(Table(columns, rows, spare=spare, long=("key", "note", content)))
    else:
        say(f"no {state} messages" + (" match" if wanted else ""))
    if page.cursor is not None:
        say(f"more: --cursor {page.cursor}")
    return 0


async def _search(
    admin: Admin,
    topic: str,
    state: str,
    wanted: Filter,
    limit: int,
    cursor: str | None,
    *,
    quiet: bool,
) -> Page:
    """Return a page of messages that match; search until it is full or the messages end."""
    from mx_rmq.admin import Page, Progress

    total = getattr(await admin.stats(topic), state)
    messages: list[MessageView] = []
    looked = 0
    with progress_bar("found", quiet=quiet) as show:
        while True:
            left = limit - len(messages)
            page = await admin.list(topic, state, filter=wanted, limit=left, cursor=cursor)
            messages += page.messages
            looked, cursor = looked + page.looked, page.cursor
            show(Progress(len(messages), looked, total))
            if cursor is None or len(messages) == limit:
                return Page(messages, cursor, looked)


def _row(message: MessageView, at: float | None, with_key: bool) -> tuple[object, ...]:
    note, payload = cut(_note(message)), cut(payload_text(message))
    key = (message.key,) if with_key else ()
    return message.id, *key, message.priority, message.attempts, when(at), note, payload


def _note(message: MessageView) -> str:
    """Return the most important fact about a message in its state."""
    if message.state is State.QUARANTINED:
        return f"{message.error_type}: {message.error}"
    if message.unreadable:
        return f"unreadable: {message.unreadable}"
    if message.wait is not None:
        from mx_rmq.admin.steps import what_it_awaits

        return what_it_awaits(message.steps, message.wait)
    if message.state is State.PROCESSING:
        return short_worker(message.worker)
    if message.reason or not message.errors:
        return message.reason
    return f"{message.errors[-1].type}: {message.errors[-1].text}"
