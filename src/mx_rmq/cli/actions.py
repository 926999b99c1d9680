"""What `requeue`, `discard`, `cancel` and `abort` share: their options, and how they act."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import click

from mx_rmq.cli.confirm import ask, yes_option
from mx_rmq.cli.connection import on_admin, options, with_topic
from mx_rmq.cli.filters import Filters, filter_of, with_filters
from mx_rmq.cli.output import as_json, count, print_json, print_result, say
from mx_rmq.cli.terminal import progress_bar
from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.core.message import FAILED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.admin import Admin, Progress
    from mx_rmq.core.message import State


def acts_on(states: tuple[State, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Pass an Admin to a command; add the options that choose messages in these states."""
    state_help = "Only messages in this state. Required with --all"
    state_help += "." if states is FAILED else "; not allowed without it."
    number, rate = click.IntRange(min=1), click.FloatRange(min=0, min_open=True)
    return options(
        with_topic,
        click.argument("ids", nargs=-1),
        click.option("--state", type=click.Choice([one.value for one in states]), help=state_help),
        click.option(
            "--all", "all_of_them", is_flag=True, help="Every message in --state that matches."
        ),
        with_filters,
        click.option("--limit", type=number, metavar="N", help="With --all: at most N messages."),
        click.option(
            "--rate", type=rate, metavar="N", help="With --all: at most N messages per second."
        ),
        click.option(
            "--dry-run", is_flag=True, help="With --all: count the messages, change nothing."
        ),
        yes_option,
        as_json,
        on_admin,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What one of the commands does."""

    verb: str
    done: str
    states: tuple[State, ...]
    one: Callable[..., Awaitable[bool]]
    """Takes topic and id, and state= if it acts on archived messages. False: not found."""
    many: Callable[..., Awaitable[int]]  # acts on every message that matches; returns how many
    asks: bool = True  # whether it needs confirmation for messages given by id, too


async def act(
    admin: Admin,
    action: Action,
    *,
    topic: str,
    ids: tuple[str, ...],
    state: str | None,
    all_of_them: bool,
    yes: bool,
    as_json: bool,
    **only_with_all: Any,
) -> int:
    """Act on the given messages, or with --all on every message that matches the filter."""
    if all_of_them and ids:
        raise click.UsageError("Pass either IDs or --all, not both.")
    if not all_of_them and not ids:
        raise click.UsageError("Pass message IDs, or --all with --state. Filters need --all.")
    if all_of_them and state is None:
        choices = " or --state ".join(action.states)
        raise click.UsageError(f"--all needs --state {choices}.")
    by_id = {"state": state} if action.states is FAILED else {}  # what applies without --all
    for name, value in ({"state": state} | only_with_all).items():
        if name not in by_id and value not in (None, False) and not all_of_them:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --all.")
    await admin.check_topic(topic)
    if state is not None and all_of_them:
        return await _act_on_all(
            admin, action, topic, state, yes=yes, as_json=as_json, **only_with_all
        )
    if action.asks:
        ask(f"{action.verb} {count(len(ids), 'message')} of {topic}", yes=yes)
    return await _act_on_each(admin, action, topic, ids, by_id, as_json=as_json)


async def _act_on_all(
    admin: Admin,
    action: Action,
    topic: str,
    state: str,
    *,
    limit: int | None,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **filters: Unpack[Filters],
) -> int:
    """Act on every message of a state that matches the filter, after confirmation.

    If that is interrupted or fails, say how far it got: the call under way may have done one more.
    """
    wanted = await filter_of(admin, **filters)
    latest: list[Progress] = []  # the last progress report, if there was one

    async def run(label: str, *, dry_run: bool) -> int:
        latest.clear()
        with progress_bar(label, quiet=as_json) as show:

            def progress(one: Progress) -> None:
                latest[:] = [one]
                show(one)

            return await action.many(
                topic,
                state,
                filter=wanted,
                limit=limit,
                rate=rate,
                dry_run=dry_run,
                progress=progress,
            )

    def messages(number: int) -> str:
        return f"{count(number, f'{state} message')} of {topic}"

    def report(number: int, line: str, **more: Any) -> None:
        name = "would" if dry_run else action.done
        document = {"topic": topic, "state": state, name: number, **more}
        print_result(line, document, as_json=as_json)

    if dry_run:
        number = await run("matched", dry_run=True)
        report(number, f"would {action.verb} {messages(number)}")
        return 0
    if not yes:
        if wanted is None:
            there: int = getattr(await admin.stats(topic), state)
            number = there if limit is None else min(there, limit)
        else:
            number = await run("matched", dry_run=True)
        ask(f"{action.verb} {messages(number)}", yes=False)
    try:
        number = await run(action.done, dry_run=False)
    except (asyncio.CancelledError, MxRmqError) as error:
        if latest:
            done = latest[0].done
            line = f"{messages(done)} {action.done}, possibly one more"
            if isinstance(error, MxRmqError):
                report(done, f"stopped: {line}", error=str(error))
            else:
                report(done, f"interrupted: {line}", interrupted=True)
        raise
    report(number, f"{messages(number)} {action.done}")
    return 0


async def _act_on_each(
    admin: Admin,
    action: Action,
    topic: str,
    ids: tuple[str, ...],
    by_id: dict[str, Any],
    *,
    as_json: bool,
) -> int:
    """Act on each message and report it at once. A refused message does not stop the rest."""
    done: list[str] = []
    absent: list[str] = []
    refused: dict[str, str] = {}
    try:
        for id in dict.fromkeys(ids):
            try:
                there = await action.one(topic, id, **by_id)
            except InvalidInput as error:
                refused[id] = str(error)
                say(f"Error: {error}", err=True)
                continue
            (done if there else absent).append(id)
            if not as_json:
                say(f"{id}: {action.done if there else await why_not(admin, topic, id)}")
    finally:  # also when interrupted
        if as_json:
            print_json({"topic": topic, action.done: done, "absent": absent, "refused": refused})
    return 2 if refused else int(bool(absent))


async def why_not(admin: Admin, topic: str, id: str) -> str:
    """Say why nothing was done to a message."""
    found = await admin.get(topic, id)
    return "not found" if found is None else f"not changed, it is {found.state}"
