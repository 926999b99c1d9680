"""`mx-rmq audit`: is every message in exactly one state?"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mx_rmq.admin import Progress
from mx_rmq.cli.completion import complete_topic
from mx_rmq.cli.connection import on_admin
from mx_rmq.cli.output import as_json, count, print_json, printable, say
from mx_rmq.cli.progress import bar
from mx_rmq.core.errors import OutcomeUnknown, ServerUnavailable, WrongType

if TYPE_CHECKING:
    from mx_rmq.admin import Admin
    from mx_rmq.store.audit import Violation


@click.command(short_help="Check that every message is in exactly one state.")
@click.argument("topics", nargs=-1, shell_complete=complete_topic)
@as_json
@on_admin
async def audit(admin: Admin, topics: tuple[str, ...], as_json: bool) -> int:
    """Report every message that is not in exactly one state, in TOPICS or in all.

    Reads in small steps, so it may run beside live traffic. Exit code 0: clean. 1: violations
    found. 2: the audit could not be made.
    """
    known = await admin.topics()
    chosen = sorted(topics or known, key=known.__contains__)  # an unknown one is refused at once
    messages = 0
    violations: list[Violation] = []
    away: list[str] = []
    with bar("violations", quiet=as_json) as show:
        for number, topic in enumerate(chosen):
            show(Progress(len(violations), number, len(chosen)))
            try:
                violations += await admin.audit(topic)
            except (ServerUnavailable, OutcomeUnknown) as error:  # one of a cluster's, perhaps
                away.append(f"{topic}: {error}")
                continue
            with suppress(WrongType):  # of which the audit has told
                messages += (await admin.stats(topic)).total
    for line in away:
        click.echo(printable(f"not audited: {line}"), err=True)
    if as_json:
        print_json(
            {
                "topics": len(chosen),
                "messages": messages,
                "violations": [asdict(one) for one in violations],
                "away": away,
            }
        )
    else:
        for violation in violations:
            say(str(violation))
        parts = count(len(chosen), "topic"), count(messages, "message")
        say(", ".join((*parts, count(len(violations), "violation"))))
    return 2 if away else int(bool(violations))
