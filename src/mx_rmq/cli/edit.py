"""`mx-rmq edit`: change the payload of a dead or quarantined message."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.confirm import ask, open_editor, waiting, yes_option
from mx_rmq.cli.connection import on_admin, with_topic
from mx_rmq.cli.output import as_json, cut, payload_text, print_json, say
from mx_rmq.cli.produce import parsed
from mx_rmq.cli.program import CommandFailed
from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError, InvalidInput
from mx_rmq.core.message import FAILED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.admin import Admin, MessageView

HINT: Final = "//"  # start of a line in the editor that is not part of the JSON
RECORD: Final = frozenset(("v", "id", "payload"))  # fields that tell a record from a payload


@click.command
@with_topic
@click.argument("id")
@click.option(
    "--payload", help="The new payload as JSON.  [default: edit it in $VISUAL or $EDITOR]"
)
@click.option(
    "--payload-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Read the new payload from a file, or - for standard input.",
)
@click.option(
    "--state",
    type=click.Choice([state.value for state in FAILED]),
    help="Only if the message is in this state.",
)
@yes_option
@as_json
@on_admin
async def edit(
    admin: Admin,
    topic: str,
    id: str,
    payload: str | None,
    payload_file: Path | None,
    state: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Change the payload of message ID of TOPIC, and requeue it.

    Its id, headers and priority stay. If the message cannot be decoded, the editor shows its whole
    record: fix the record, and its payload is used. If the edit fails, your text is kept in a file.
    Exit code 1: the message is neither dead nor quarantined. 2: failed, the payload is not JSON, or
    the message was archived again while you edited.
    """
    if payload is not None and payload_file is not None:
        raise click.UsageError("Pass either --payload or --payload-file, not both.")
    message = await admin.get(topic, id)
    states = (state,) if state else FAILED
    done = False
    if message is not None and message.state in states:
        given = _read(payload_file) if payload_file else payload
        edited = await _edited(message) if given is None else ""
        try:
            value = _payload_in(parsed(given or edited), message)
            ask(f"requeue {message.state} message {id} of {topic} with this payload", yes=yes)
            done = await admin.edit(
                topic, id, value, state=message.state, archived_at=message.archived_at
            )
        finally:
            if edited and not done:
                say(f"Your text is kept: --payload-file {_keep(edited)}", err=True)
    if as_json:
        print_json({"topic": topic, "id": id, "edited": done})
    elif done:
        say(f"{id}: edited and requeued")
    else:
        say("Error: " + cut(_why_not(message, topic, id, states), 200), err=True)
    return int(not done)


def _why_not(message: MessageView | None, topic: str, id: str, states: Sequence[str]) -> str:
    if message is None:
        return f"no message {id!r} in topic {topic!r}"
    if message.state in states:
        return f"message {id!r} is no longer {message.state}"
    return f"message {id!r} is {message.state}, not {' or '.join(states)}"


def _read(file: Path) -> bytes:
    if str(file) != "-":
        return file.read_bytes()
    with waiting():
        return sys.stdin.buffer.read()


async def _edited(message: MessageView) -> str:
    """Open the payload in an editor, or the bytes of an unreadable message; return the result."""
    if not sys.stdin.isatty():
        raise CommandFailed(
            "not a terminal, cannot open an editor: pass --payload or --payload-file"
        )
    whose = f"{message.state} message {message.id} of {message.topic}"
    if message.unreadable:
        before = message.raw.decode("utf-8", "replace")
        hint = (
            f"The record of {whose}: fix it, or replace it with the payload alone. "
            f"It cannot be decoded: {message.unreadable}"
        )
    else:
        before = payload_text(message, indent=2)
        hint = f"The payload of {whose}"
    edited = await open_editor(f"{HINT} {cut(hint, 300)}\n{before}")
    if edited is None or _without_hint(edited) == _without_hint(before):
        raise CommandFailed("the payload was not changed")
    return _without_hint(edited)


def _without_hint(text: str) -> str:
    """Remove our hint. No line of JSON starts like it."""
    lines = text.strip().split("\n")
    return "\n".join(line for line in lines if not line.startswith(HINT)).strip()


def _payload_in(value: Any, message: MessageView) -> Any:
    """Return the payload, also if the value is the fixed record of an unreadable message."""
    if not message.unreadable or not isinstance(value, dict) or not value.keys() >= RECORD:
        return value
    try:
        record = codec.decode(json.dumps(value).encode(), message.topic, message.id)
    except DecodeError as error:
        raise InvalidInput(f"{error.reason}; fix it, or write the payload alone") from None
    return json.loads(bytes(record.payload))


def _keep(text: str) -> str:
    """Save an edited text to a file that only this user can read; return its path."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="mx-rmq-edit-", suffix=".json", delete=False
    ) as file:
        file.write(text)
    return file.name
