"""`mx-rmq audit`: is every message in exactly one state? With --repair, fix those that are not."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mx_rmq.cli.confirm import ask, yes_option
from mx_rmq.cli.connection import on_admin, with_topics
from mx_rmq.cli.output import as_json, count, print_json, say
from mx_rmq.cli.terminal import progress_bar
from mx_rmq.core.errors import OutcomeUnknown, ServerUnavailable, WrongType
from mx_rmq.core.partition import topic_of

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, Repair
    from mx_rmq.store.audit import Violation


@click.command
@with_topics
@click.option(
    "--repair", is_flag=True, help="Show the repairs, ask for confirmation, then do them."
)
@yes_option
@as_json
@on_admin
async def audit(
    admin: Admin, topics: tuple[str, ...], repair: bool, yes: bool, as_json: bool
) -> int:
    """Report every message that is not in exactly one state, in TOPICS or in all topics.

    It reads in small steps, so it can run under live traffic. Exit code 0: clean. 1: violations
    found. 2: failed.

    --repair prints what it would do and asks for confirmation. A message that has a record becomes
    or stays pending, delayed or in processing; a message with only an archived copy stays archived.
    No message is lost. Each repair checks again first, so it is safe under live traffic. Exit
    code 0: nothing left to fix. 1: something is left.
    """
    known = await admin.topics()
    chosen = sorted(topics or known, key=known.__contains__)  # unknown first: refused at once
    if repair:
        return await _repair(admin, chosen, yes=yes, as_json=as_json)
    return await _audit(admin, chosen, as_json=as_json)


async def _audit(admin: Admin, topics: list[str], *, as_json: bool) -> int:
    from mx_rmq.admin import Progress

    messages = 0
    violations: list[Violation] = []
    away: list[str] = []
    with progress_bar("violations", quiet=as_json) as show:
        for number, topic in enumerate(topics):
            show(Progress(len(violations), number, len(topics)))
            try:
                violations += await admin.audit(topic)
            except (ServerUnavailable, OutcomeUnknown) as error:  # perhaps one node of a cluster
                away.append(f"{topic}: {error}")
                continue
            with suppress(WrongType):  # the audit has reported it
                messages += (await admin.stats(topic)).total
    for line in away:
        say(f"not audited: {line}", err=True)
    if as_json:
        found = {"violations": [asdict(one) for one in violations], "away": away}
        print_json({"topics": len(topics), "messages": messages, **found})
    else:
        for violation in violations:
            say(str(violation))
        audited = f"{count(len(topics), 'topic')}, {count(messages, 'message')}"
        say(f"{audited}, {count(len(violations), 'violation')}")
    return 2 if away else int(bool(violations))


async def _repair(admin: Admin, topics: list[str], *, yes: bool, as_json: bool) -> int:
    """Show what a repair would do, and do it after confirmation. Return the exit code."""
    plan = [one for topic in topics for one in await admin.repair(topic, dry_run=True)]
    if not (yes or as_json):
        _print_repairs(plan, "would be done")
    if not plan or not (yes or (sys.stdin.isatty() and not as_json)):
        if as_json:
            print_json({"repaired": False, "repairs": [asdict(one) for one in plan]})
        elif plan:
            say("Nothing was changed. Pass --yes to make these repairs.")
        return int(bool(plan))
    ask(f"do {count(len(plan), 'repair')}", yes=yes)
    changed = sorted({topic_of(one.topic) for one in plan})
    done = [one for topic in changed for one in await admin.repair(topic)]
    left = [one for topic in changed for one in await admin.audit(topic)]
    if as_json:
        repairs, violations = [asdict(one) for one in done], [asdict(one) for one in left]
        print_json({"repaired": True, "repairs": repairs, "violations": violations})
    else:
        _print_repairs(done, "done")
        for violation in left:
            say(f"still wrong: {violation}")
    return int(bool(left))


def _print_repairs(repairs: list[Repair], done: str) -> None:
    for one in repairs:
        say(str(one))
    say(f"{count(len(repairs), 'repair')} {done}")
