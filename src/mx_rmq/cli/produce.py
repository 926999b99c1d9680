"""`mx-rmq produce`: messages from the command line or from a pipe."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.connection import check_directory, with_server
from mx_rmq.cli.output import as_json, count, cut, print_json
from mx_rmq.cli.program import CommandFailed
from mx_rmq.core.confirm import Level
from mx_rmq.core.duplicates import CHOICES
from mx_rmq.core.errors import (
    InvalidInput,
    MxRmqError,
    NotConfirmed,
    PartlyProduced,
    ProduceUnknown,
)
from mx_rmq.core.message import Priority

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mx_rmq.queue import MessageQueue

CHUNK: Final = 1000  # lines that --many reads per call
HINT: Final = """write a string as '"text"'"""


@click.command
@click.argument("topic")
@click.argument("payload", required=False)
@with_server
@click.option("--id", help="A custom id. --on-duplicate says what happens if it is taken.")
@click.option(
    "--on-duplicate",
    type=click.Choice(CHOICES),
    default="ignore",
    show_default=True,
    help="If the id is taken: store nothing, replace that message, or fail.",
)
@click.option(
    "--dedup",
    type=float,
    help="How many seconds the id stays taken; 0: only while the message exists.  "
    "[default: MX_RMQ_DEDUP, then mx-rmq.toml, then 120]",
)
@click.option("--delay", type=float, help="Seconds until the message is due.")
@click.option("--at", help="When the message is due: 2030-01-31T12:00:00+01:00.")
@click.option(
    "--priority",
    type=click.Choice([one.value for one in Priority]),
    default=Priority.NORMAL.value,
    show_default=True,
    help="High is handled before normal, normal before low.",
)
@click.option("--ttl", type=float, help="Seconds after which the message expires.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header. Can be repeated."
)
@click.option("--key", help="A tenant, an account: messages of one key wait in one line.")
@click.option(
    "--cost",
    type=int,
    default=1,
    show_default=True,
    help="How much the message counts against a rate.",
)
@click.option(
    "--confirm",
    type=click.Choice([level.value for level in Level]),
    help="How safely the message must be stored.  "
    "[default: MX_RMQ_CONFIRM, then mx-rmq.toml, then stored]",
)
@click.option("--many", is_flag=True, help="Read one payload per line from standard input.")
@as_json
def produce(
    topic: str,
    payload: str | None,
    url: str | None,
    prefix: str | None,
    patience: float | None,
    id: str | None,
    at: str | None,
    headers: tuple[str, ...],
    key: str | None,
    many: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Produce PAYLOAD (JSON) to TOPIC and print the message id.

    Without PAYLOAD, or with -, read it from standard input. Exit code 2: failed.
    """
    from mx_rmq.cli.host import queue_of

    try:
        options |= {"at": parse_at(at), "headers": parse_headers(headers)}
        mq = queue_of(url=url, prefix=prefix, patience=patience)
        # After the warnings about settings: `doctor` reports unsafe servers.
        logging.getLogger("mx_rmq").setLevel(logging.ERROR)
        check_directory(mq.settings)
        if not many:
            value = parsed(_text(payload))
            produced = asyncio.run(_produce(mq, topic, value, id=id, key=key, **options))
            print_json({"ids": [produced]}) if as_json else click.echo(produced)
            return
        if id is not None or payload not in (None, "-"):
            raise InvalidInput(
                "--many takes neither PAYLOAD nor --id: it reads payloads from standard input"
            )
        _refuse_terminal()
        _produce_many(mq, topic, key, options, as_json=as_json)
    except (NotConfirmed, ProduceUnknown) as error:
        why = "wait again" if isinstance(error, NotConfirmed) else "retry without a duplicate"
        hint = "" if many else f"; to {why}, pass --id {error.ids[0]}"
        raise CommandFailed(f"{error}{hint}") from error
    except MxRmqError as error:
        raise CommandFailed(str(error)) from error


async def _produce(mq: MessageQueue, topic: str, payload: Any, **options: Any) -> str:
    async with mq:
        return await mq.produce(topic, payload, **options)


def _produce_many(
    mq: MessageQueue, topic: str, key: str | None, options: dict[str, Any], *, as_json: bool
) -> None:
    """Produce the lines of standard input in chunks. Reading happens outside the event loop.

    The ids are printed as they come, or as one JSON document at the end, also after an error.
    """
    ids: list[str] = []

    def report(produced: Sequence[str]) -> None:
        ids.extend(produced)
        for id in () if as_json else produced:
            click.echo(id)

    try:
        with asyncio.Runner() as runner:
            runner.run(mq.open())
            try:
                for payloads in _chunks():
                    keys = None if key is None else [key] * len(payloads)
                    report(runner.run(mq.produce_many(topic, payloads, keys=keys, **options)))
            except (NotConfirmed, PartlyProduced) as error:
                report(error.ids)
                raise
            finally:
                runner.run(mq.close())
                click.echo(f"{count(len(ids), 'message')} produced", err=True)
    finally:
        if as_json:
            print_json({"ids": ids})


def _chunks() -> Iterator[list[Any]]:
    """Read payloads from standard input."""
    numbered = enumerate(sys.stdin.buffer, 1)
    while chunk := list(islice(numbered, CHUNK)):
        yield [parsed(line, f"line {number:,}") for number, line in chunk if line.strip()]


def _text(payload: str | None) -> str | bytes:
    if payload is not None and payload != "-":
        return payload
    if payload is None:
        _refuse_terminal()
    return sys.stdin.buffer.read()


def _refuse_terminal() -> None:
    if sys.stdin.isatty():
        raise InvalidInput(f"no payload: pass it as JSON ({HINT}), or pipe it in")


def parsed(text: str | bytes, what: str = "the payload") -> Any:
    """Parse JSON, or raise InvalidInput."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = text.decode(errors="replace") if isinstance(text, bytes) else text
        line = shown.split("\n")[getattr(error, "lineno", 1) - 1]
        raise InvalidInput(f"{what} is not JSON: {cut(line)} ({error}); {HINT}") from None


def parse_at(at: str | None) -> datetime | None:
    try:
        return None if at is None else datetime.fromisoformat(at)
    except ValueError:
        raise InvalidInput(f"--at {at!r} is not a time like 2030-01-31T12:00:00+01:00") from None


def parse_headers(given: tuple[str, ...]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--header {one!r} must have the form NAME=VALUE")
        if name in headers:
            raise InvalidInput(f"--header {name!r} is given twice")
        headers[name] = value
    return headers
