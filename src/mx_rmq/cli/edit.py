"""`mx-rmq edit`: another payload for a message that is dead or quarantined."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.admin import ARCHIVES
from mx_rmq.cli.asking import ask, keep, let_edit, waiting, yes_option
from mx_rmq.cli.completion import complete_topic
from mx_rmq.cli.connection import CannotDo, on_admin
from mx_rmq.cli.output import as_json, cut, payload_text, print_json, printable, say
from mx_rmq.cli.produce import parsed
from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError, InvalidInput

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, MessageView

HINT: Final = "// "
"""How a line begins in the editor that is no part of the JSON."""

LONGEST_HINT: Final = 300

RECORD: Final = frozenset(("v", "id", "payload"))
"""By which a record is told from a payload."""


@click.command(short_help="Give a dead or quarantined message another payload, and requeue it.")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("id")
@click.option("--payload", help="The new payload, JSON. Else it is edited in $VISUAL or $EDITOR.")
@click.option(
    "--payload-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="A file that holds it; -: standard input.",
)
@click.option(
    "--state",
    type=click.Choice([state.value for state in ARCHIVES]),
    help="Only if it is in this state.",
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
    """Give message ID of TOPIC another payload and send it round again.

    Its id, headers and priority stay. Of a message that no worker could read, the editor shows the
    record; of the mended record the payload is taken. What was edited in vain is kept in a file,
    which is named. Exit code 1: it is neither dead nor quarantined. 2: it could not be done, the
    payload is not JSON, or the message has died again meanwhile.
    """
    if payload is not None and payload_file is not None:
        raise click.UsageError("Either --payload or --payload-file.")
    message = await admin.get(topic, id)
    done = False
    if message is not None and message.state in ((state,) if state else ARCHIVES):
        given = _given(payload, payload_file)
        edited = await _edited(message) if given is None else ""
        try:
            value = _payload_in(parsed(given or edited), message)
            ask(f"requeue {message.state} message {id} of {topic} with this payload", yes=yes)
            done = await admin.edit(
                topic, id, value, state=message.state, archived_at=message.archived_at
            )
        finally:
            if edited and not done:
                path = keep(edited)
                click.echo(f"What you wrote is kept: --payload-file {path}", err=True)
    if as_json:
        print_json({"topic": topic, "id": id, "edited": done})
    elif done:
        say(f"{id}: edited and requeued")
    else:
        click.echo(
            "Error: " + cut(f"no {_states(state)} message {id!r} in {topic!r}", 200), err=True
        )
    return int(not done)


def _states(state: str | None) -> str:
    return state or " or ".join(ARCHIVES)


def _given(payload: str | None, file: Path | None) -> str | bytes | None:
    """Return the new payload as the options have it; None: it is to be edited."""
    if file is None:
        return payload
    if str(file) != "-":
        return file.read_bytes()
    with waiting():
        return sys.stdin.buffer.read()


async def _edited(message: MessageView) -> str:
    """Return what somebody has made of the payload in an editor."""
    if not sys.stdin.isatty():
        raise CannotDo("nobody is there to edit it: say --payload or --payload-file")
    before = _before(message)
    edited = await let_edit(f"{HINT}{_hint(message)}\n{before}")
    if edited is None or _without_hint(edited) == _without_hint(before):
        raise CannotDo("the payload was not changed, so nothing was done")
    return _without_hint(edited)


def _hint(message: MessageView) -> str:
    whose = f"{message.state} message {message.id} of {message.topic}"
    if not message.unreadable:
        return printable(f"The payload of {whose}")
    return cut(
        f"The record of {whose}: mend it, or leave nothing but the payload. "
        f"Nobody could read it: {message.unreadable}",
        LONGEST_HINT,
    )


def _without_hint(text: str) -> str:
    """Return the text without the lines that are ours: no line of JSON begins so."""
    lines = text.strip().split("\n")
    return "\n".join(line for line in lines if not line.startswith(HINT.strip())).strip()


def _payload_in(value: Any, message: MessageView) -> Any:
    """Return the payload; of an unreadable message's record, if somebody has mended that."""
    if not message.unreadable or not isinstance(value, dict) or not value.keys() >= RECORD:
        return value
    try:
        record = codec.decode_as(json.dumps(value).encode(), message.topic, message.id)
    except DecodeError as error:
        raise InvalidInput(f"{error.reason}; mend it, or write the payload alone") from None
    return json.loads(bytes(record.payload))


def _before(message: MessageView) -> str:
    """Return the text to edit: the payload, or as much of the bytes as is text."""
    if message.unreadable:
        return message.raw.decode("utf-8", "replace")
    return payload_text(message, indent=2)
