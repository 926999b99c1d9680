"""`mx-rmq requeue | discard | cancel`: an operator's decisions about messages, some or many."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.admin import ARCHIVES, WAITING, Cancelled
from mx_rmq.cli.asking import ask, yes_option
from mx_rmq.cli.completion import complete_topic
from mx_rmq.cli.connection import on_admin
from mx_rmq.cli.filters import filter_of, with_filters
from mx_rmq.cli.output import as_json, count, print_json, printable, say
from mx_rmq.cli.progress import bar
from mx_rmq.core.errors import InvalidInput, MxRmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.admin import Admin, Filter, Progress
    from mx_rmq.core.message import State

FILTERS: Final = ("error", "since", "until", "text")


def _on_many(states: tuple[State, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options by which it chooses many messages of a state."""
    choice = click.Choice([state.value for state in states])
    options = (
        click.option("--state", type=choice, help="Only messages in this state."),
        click.option("--all", "all_of_them", is_flag=True, help="All messages of the --state."),
        with_filters,
        click.option("--limit", type=click.IntRange(min=1), help="With --all: not more than this."),
        click.option(
            "--rate",
            type=click.FloatRange(min=0, min_open=True),
            help="With --all: not more than this a second.",
        ),
        click.option("--dry-run", is_flag=True, help="With --all: only count them."),
    )

    def give(run: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            run = option(run)
        return run

    return give


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What a command does."""

    verb: str
    done: str
    asks: bool
    """Whether it asks also before it is done to single messages."""
    one: Callable[[str], Awaitable[bool]]
    """Does it to a message."""
    many: Callable[..., Awaitable[int]]
    """Does it to many."""
    states: tuple[State, ...]


@click.command(short_help="Send dead or quarantined messages round again.")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("ids", nargs=-1)
@_on_many(ARCHIVES)
@yes_option
@as_json
@on_admin
async def requeue(
    admin: Admin, topic: str, ids: tuple[str, ...], state: str | None, **options: Any
) -> int:
    """Send messages IDS of TOPIC round again, from the dead letters or from quarantine.

    Or --all of a --state; then --error, --since, --until and --text choose among them, and what no
    worker could read stays. Exit code 1: not all of IDS were there. 2: it could not be done. 130:
    interrupted; each message is either requeued or as it was.
    """
    deed = Deed(
        verb="requeue",
        done="requeued",
        asks=False,
        one=lambda id: admin.requeue(topic, id, state=state),
        many=admin.requeue_all,
        states=ARCHIVES,
    )
    return await _do(admin, deed, topic, ids, state, **options)


@click.command(short_help="Delete dead or quarantined messages.")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("ids", nargs=-1)
@_on_many(ARCHIVES)
@yes_option
@as_json
@on_admin
async def discard(
    admin: Admin, topic: str, ids: tuple[str, ...], state: str | None, **options: Any
) -> int:
    """Delete messages IDS of TOPIC for good, from the dead letters or from quarantine.

    Or --all of a --state; then --error, --since, --until and --text choose among them. Exit code 1:
    not all of IDS were there. 2: it could not be done. 130: interrupted; each message is either
    deleted or as it was.
    """
    deed = Deed(
        verb="discard",
        done="discarded",
        asks=True,
        one=lambda id: admin.discard(topic, id, state=state),
        many=admin.discard_all,
        states=ARCHIVES,
    )
    return await _do(admin, deed, topic, ids, state, **options)


@click.command(short_help="Remove pending or delayed messages.")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("ids", nargs=-1)
@_on_many(WAITING)
@yes_option
@as_json
@on_admin
async def cancel(
    admin: Admin, topic: str, ids: tuple[str, ...], state: str | None, **options: Any
) -> int:
    """Remove messages IDS of TOPIC that no worker has begun.

    Or --all of a --state, of pending ones the newest first, of delayed ones those that are due
    first; then --error, --since, --until and --text choose among them. Exit code 1: not all of IDS
    were pending or delayed. 2: it could not be done, or a worker has one already. 130: interrupted;
    each message is either removed or as it was.
    """
    if state is not None and ids:
        raise click.UsageError("--state goes with --all.")

    async def one(id: str) -> bool:
        answer = await admin.cancel(topic, id)
        if answer is Cancelled.PROCESSING:
            raise InvalidInput(f"message {id!r} is in processing: a worker has begun with it")
        return bool(answer)

    deed = Deed(
        verb="cancel", done="cancelled", asks=True, one=one, many=admin.cancel_all, states=WAITING
    )
    return await _do(admin, deed, topic, ids, state, **options)


async def _do(
    admin: Admin,
    deed: Deed,
    topic: str,
    ids: tuple[str, ...],
    state: str | None,
    *,
    all_of_them: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Do it to the messages that are named, or to all that are meant."""
    if all_of_them and ids:
        raise click.UsageError("Either name the messages, or say --all, not both.")
    if not all_of_them and not ids:
        raise click.UsageError("Name the messages, or say --all with --state; filters need both.")
    if all_of_them and state is None:
        raise click.UsageError(f"--all of which state? --state {' or --state '.join(deed.states)}")
    for name, value in options.items():
        if value not in (None, False) and not all_of_them:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --all.")
    await admin.check_topic(topic)
    if state is not None and all_of_them:
        wanted = await filter_of(admin, **{name: options.pop(name) for name in FILTERS})
        many = _Many(admin, deed, topic, state, wanted, as_json=as_json, **options)
        return await many.do(yes=yes)
    if deed.asks:
        ask(f"{deed.verb} {count(len(ids), 'message')} of {topic}", yes=yes)
    return await _each(admin, deed, topic, ids, as_json=as_json)


class _Many:
    """All messages of a state that are meant."""

    def __init__(
        self,
        admin: Admin,
        deed: Deed,
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
        self._deed = deed
        self._topic = topic
        self._state = state
        self._wanted = wanted
        self._limit = limit
        self._rate = rate
        self._dry_run = dry_run
        self._as_json = as_json
        self._done: int | None = None
        """On how many it was done so far; None: it has not begun."""

    async def do(self, *, yes: bool) -> int:
        """Ask, then do it; if it ends in the middle, tell how far it came."""
        if self._dry_run:
            return self._told(await self._go("meant", dry_run=True))
        if not yes:
            number = await self._number()
            ask(f"{self._deed.verb} {self._messages(number)} of {self._topic}", yes=False)
        try:
            return self._told(await self._go(self._deed.done, dry_run=False))
        except asyncio.CancelledError:
            self._tell_how_far("interrupted", interrupted=True)
            raise
        except MxRmqError as error:
            self._tell_how_far("stopped", error=str(error))
            raise

    async def _number(self) -> int:
        """Return how many will be meant: those there are, or those that a dry run finds."""
        if self._wanted is not None:
            return await self._go("meant", dry_run=True)
        there: int = getattr(await self._admin.stats(self._topic), self._state)
        return there if self._limit is None else min(there, self._limit)

    async def _go(self, said: str, *, dry_run: bool) -> int:
        self._done = None
        with bar(said, quiet=self._as_json) as show:

            def progress(one: Progress) -> None:
                self._done = one.done
                show(one)

            return await self._deed.many(
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
            say(f"would {self._deed.verb} {self._messages(done)} of {self._topic}")
        else:
            say(self._said(done))
        return 0

    def _tell_how_far(self, how: str, **more: Any) -> None:
        """Tell on how many it was done, if it had begun. Of one, nobody knows."""
        if self._done is None:
            return
        if self._as_json:
            self._print_json(self._done, **more)
        else:
            say(f"{how}: {self._said(self._done)}, and perhaps one more")

    def _print_json(self, done: int, **more: Any) -> None:
        name = "would" if self._dry_run else self._deed.done
        print_json({"topic": self._topic, "state": self._state, name: done, **more})

    def _said(self, done: int) -> str:
        return f"{self._messages(done)} of {self._topic} {self._deed.done}"

    def _messages(self, number: int) -> str:
        return count(number, f"{self._state} message")


async def _each(
    admin: Admin, deed: Deed, topic: str, ids: tuple[str, ...], *, as_json: bool
) -> int:
    """Act on each message and tell of it at once; one that is refused does not stop the rest."""
    done: list[str] = []
    absent: list[str] = []
    refused: dict[str, str] = {}
    try:
        for id in dict.fromkeys(ids):
            try:
                there = await deed.one(id)
            except InvalidInput as error:
                refused[id] = str(error)
                click.echo(printable(f"Error: {error}"), err=True)
                continue
            (done if there else absent).append(id)
            if not as_json:
                say(f"{id}: {deed.done if there else await _whereabouts(admin, topic, id)}")
    finally:  # also if it ends in the middle
        if as_json:
            print_json({"topic": topic, deed.done: done, "absent": absent, "refused": refused})
    return 2 if refused else int(bool(absent))


async def _whereabouts(admin: Admin, topic: str, id: str) -> str:
    found = await admin.get(topic, id)
    return "not there" if found is None else f"nothing done, it is {found.state}"
