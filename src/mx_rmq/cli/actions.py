"""What `requeue`, `discard` and `cancel` share: their options, and how they act on messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.confirm import ask, yes_option
from mx_rmq.cli.connection import on_admin, options, with_topic
from mx_rmq.cli.filters import FILTERS, filter_of, with_filters
from mx_rmq.cli.output import as_json, complain, count, print_json, say
from mx_rmq.cli.progress import bar
from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.core.message import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.admin import Admin, Filter, Progress

ARCHIVES: Final = (State.DEAD, State.QUARANTINED)
WAITING: Final = (State.PENDING, State.DELAYED)


def acts_on(
    states: tuple[State, ...], state_help: str = "Only messages in this state. Required with --all."
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Pass an Admin to a command; add the options that choose messages in these states."""
    choice = click.Choice([state.value for state in states])
    return options(
        with_topic,
        click.argument("ids", nargs=-1),
        click.option("--state", type=choice, help=state_help),
        click.option("--all", "all_of_them", is_flag=True, help="All messages in the --state."),
        with_filters,
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            help="With --all: at most N messages.",
            metavar="N",
        ),
        click.option(
            "--rate",
            type=click.FloatRange(min=0, min_open=True),
            help="With --all: at most N messages per second.",
            metavar="N",
        ),
        click.option("--dry-run", is_flag=True, help="With --all: only count the messages."),
        yes_option,
        as_json,
        on_admin,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What one of the commands does."""

    verb: str
    done: str
    asks: bool
    """Whether it needs confirmation for messages given by id, too."""
    one: Callable[[str], Awaitable[bool]]
    """Act on one message; False: not found."""
    many: Callable[..., Awaitable[int]]
    """Act on every message that matches; return their number."""
    states: tuple[State, ...]


async def act(
    admin: Admin,
    action: Action,
    topic: str,
    ids: tuple[str, ...],
    state: str | None,
    *,
    all_of_them: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Act on the given messages, or with --all on every message that matches the filter."""
    if all_of_them and ids:
        raise click.UsageError("Pass either IDs or --all, not both.")
    if not all_of_them and not ids:
        raise click.UsageError("Pass message IDs, or --all with --state. Filters need --all.")
    if all_of_them and state is None:
        choices = " or --state ".join(action.states)
        raise click.UsageError(f"--all needs --state {choices}.")
    for name, value in options.items():
        if value not in (None, False) and not all_of_them:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --all.")
    await admin.check_topic(topic)
    if state is not None and all_of_them:
        wanted = await filter_of(admin, **{name: options.pop(name) for name in FILTERS})
        many = _Many(admin, action, topic, state, wanted, as_json=as_json, **options)
        return await many.do(yes=yes)
    if action.asks:
        ask(f"{action.verb} {count(len(ids), 'message')} of {topic}", yes=yes)
    return await _each(admin, action, topic, ids, as_json=as_json)


class _Many:
    """Acts on every message of a state that matches the filter."""

    def __init__(
        self,
        admin: Admin,
        action: Action,
        topic: str,
        state: str,
        wanted: Filter | None,
        *,
        limit: int | None,
        rate: float | None,
        dry_run: bool,
        as_json: bool,
    ) -> None:
        self._admin = admin
        self._action = action
        self._topic = topic
        self._state = state
        self._wanted = wanted
        self._limit = limit
        self._rate = rate
        self._dry_run = dry_run
        self._as_json = as_json
        self._done: int | None = None
        """Messages done so far; None before the first progress report."""

    async def do(self, *, yes: bool) -> int:
        """Ask for confirmation, then act. If it is interrupted, say how far it got."""
        if self._dry_run:
            return self._told(await self._go("matched", dry_run=True))
        if not yes:
            number = await self._number()
            ask(f"{self._action.verb} {self._messages(number)} of {self._topic}", yes=False)
        try:
            return self._told(await self._go(self._action.done, dry_run=False))
        except asyncio.CancelledError:
            self._tell_how_far("interrupted", interrupted=True)
            raise
        except MxRmqError as error:
            self._tell_how_far("stopped", error=str(error))
            raise

    async def _number(self) -> int:
        """Return how many messages match. With a filter, a dry run counts them."""
        if self._wanted is not None:
            return await self._go("matched", dry_run=True)
        there: int = getattr(await self._admin.stats(self._topic), self._state)
        return there if self._limit is None else min(there, self._limit)

    async def _go(self, said: str, *, dry_run: bool) -> int:
        self._done = None
        with bar(said, quiet=self._as_json) as show:

            def progress(one: Progress) -> None:
                self._done = one.done
                show(one)

            return await self._action.many(
                self._topic,
                self._state,
                filter=self._wanted,
                limit=self._limit,
                rate=self._rate,
                dry_run=dry_run,
                progress=progress,
            )

    def _told(self, done: int) -> int:
        if self._as_json:
            self._print_json(done)
        elif self._dry_run:
            say(f"would {self._action.verb} {self._messages(done)} of {self._topic}")
        else:
            say(self._said(done))
        return 0

    def _tell_how_far(self, how: str, **more: Any) -> None:
        """Say how many messages are done. The call under way may have done one more."""
        if self._done is None:
            return
        if self._as_json:
            self._print_json(self._done, **more)
        else:
            say(f"{how}: {self._said(self._done)}, possibly one more")

    def _print_json(self, done: int, **more: Any) -> None:
        name = "would" if self._dry_run else self._action.done
        print_json({"topic": self._topic, "state": self._state, name: done, **more})

    def _said(self, done: int) -> str:
        return f"{self._messages(done)} of {self._topic} {self._action.done}"

    def _messages(self, number: int) -> str:
        return count(number, f"{self._state} message")


async def _each(
    admin: Admin, action: Action, topic: str, ids: tuple[str, ...], *, as_json: bool
) -> int:
    """Act on each message and report it at once. A refused message does not stop the rest."""
    done: list[str] = []
    absent: list[str] = []
    refused: dict[str, str] = {}
    try:
        for id in dict.fromkeys(ids):
            try:
                there = await action.one(id)
            except InvalidInput as error:
                refused[id] = str(error)
                complain(f"Error: {error}")
                continue
            (done if there else absent).append(id)
            if not as_json:
                say(f"{id}: {action.done if there else await _whereabouts(admin, topic, id)}")
    finally:  # also when interrupted
        if as_json:
            print_json({"topic": topic, action.done: done, "absent": absent, "refused": refused})
    return 2 if refused else int(bool(absent))


async def _whereabouts(admin: Admin, topic: str, id: str) -> str:
    found = await admin.get(topic, id)
    return "not found" if found is None else f"not changed, it is {found.state}"
