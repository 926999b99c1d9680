"""`mx-rmq requeue | discard | cancel | pause | resume | grow`: an operator's decisions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from mx_rmq.admin import ARCHIVES, Cancelled
from mx_rmq.cli.connection import CannotDo, on_admin
from mx_rmq.cli.output import as_json, count, print_json, printable, say
from mx_rmq.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.admin import Admin

_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_state = click.option(
    "--state", type=click.Choice([state.value for state in ARCHIVES]), help="Only from there."
)
_all = click.option("--all", "all_of_them", is_flag=True, help="All that are there; with --state.")
_limit = click.option("--limit", type=click.IntRange(min=1), help="With --all: not more than this.")


@click.command(short_help="Send dead or quarantined messages round again.")
@click.argument("topic")
@click.argument("ids", nargs=-1)
@_state
@_all
@_limit
@_yes
@as_json
@on_admin
async def requeue(
    admin: Admin,
    topic: str,
    ids: tuple[str, ...],
    state: str | None,
    all_of_them: bool,
    limit: int | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Send messages IDS of TOPIC round again, from the dead letters or from quarantine.

    Exit code 1: not all of them were there. With --all, what no worker could read stays.
    """
    which = _chosen(ids, state, all_of_them, limit)
    await admin.check_topic(topic)
    if which is not None:
        await _ask_about_all(admin, "requeue", topic, which, limit, yes=yes)
        done = await admin.requeue_all(topic, which, limit=limit)
        return _told_of_all("requeued", topic, which, done, as_json=as_json)
    return await _each(
        "requeued",
        topic,
        ids,
        lambda id: admin.requeue(topic, id, state=state),
        as_json=as_json,
    )


@click.command(short_help="Delete dead or quarantined messages.")
@click.argument("topic")
@click.argument("ids", nargs=-1)
@_state
@_all
@_limit
@_yes
@as_json
@on_admin
async def discard(
    admin: Admin,
    topic: str,
    ids: tuple[str, ...],
    state: str | None,
    all_of_them: bool,
    limit: int | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Delete messages IDS of TOPIC for good, from the dead letters or from quarantine.

    Exit code 1: not all of them were there.
    """
    which = _chosen(ids, state, all_of_them, limit)
    await admin.check_topic(topic)
    if which is not None:
        await _ask_about_all(admin, "discard", topic, which, limit, yes=yes)
        done = await admin.discard_all(topic, which, limit=limit)
        return _told_of_all("discarded", topic, which, done, as_json=as_json)
    _ask(f"discard {count(len(ids), 'message')} of {topic}", yes=yes)
    return await _each(
        "discarded",
        topic,
        ids,
        lambda id: admin.discard(topic, id, state=state),
        as_json=as_json,
    )


@click.command(short_help="Remove pending or delayed messages.")
@click.argument("topic")
@click.argument("ids", nargs=-1, required=True)
@_yes
@as_json
@on_admin
async def cancel(admin: Admin, topic: str, ids: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Remove messages IDS of TOPIC that no worker has begun.

    Exit code 1: not all of them were pending or delayed. 2: a worker has one already.
    """
    await admin.check_topic(topic)
    _ask(f"cancel {count(len(ids), 'message')} of {topic}", yes=yes)

    async def one(id: str) -> bool:
        answer = await admin.cancel(topic, id)
        if answer is Cancelled.PROCESSING:
            raise InvalidInput(f"message {id!r} is in processing: a worker has begun with it")
        return bool(answer)

    return await _each("cancelled", topic, ids, one, as_json=as_json)


@click.command(short_help="Let workers take no more messages of a topic.")
@click.argument("topic")
@as_json
@on_admin
async def pause(admin: Admin, topic: str, as_json: bool) -> int:
    """Let workers take no more messages of TOPIC, until it is resumed. What they have goes on."""
    return _switched(topic, "paused", await admin.pause(topic), as_json=as_json)


@click.command(short_help="Let workers take the messages of a topic again.")
@click.argument("topic")
@as_json
@on_admin
async def resume(admin: Admin, topic: str, as_json: bool) -> int:
    """Let workers take the messages of TOPIC again."""
    return _switched(topic, "resumed", await admin.resume(topic), as_json=as_json)


@click.command(short_help="Give a topic more partitions.")
@click.argument("topic")
@click.argument("partitions", metavar="N", type=int)
@as_json
@on_admin
async def grow(admin: Admin, topic: str, partitions: int, as_json: bool) -> int:
    """Give TOPIC N partitions. It can get more at any time, and never gets fewer.

    Producers and workers that run learn of it within fifteen seconds. Messages of a key may be
    handled out of order once, because the key may have moved to a new partition.
    """
    number = await admin.grow(topic, partitions)
    if as_json:
        print_json({"topic": topic, "partitions": number})
    else:
        say(f"{topic}: {count(number, 'partition')}")
    return 0


def _chosen(
    ids: tuple[str, ...], state: str | None, all_of_them: bool, limit: int | None
) -> str | None:
    """Return the state whose messages are meant, all of them; None: those of the ids."""
    if all_of_them == bool(ids):
        raise click.UsageError("Name the messages, or say --all.")
    if limit is not None and not all_of_them:
        raise click.UsageError("--limit goes with --all.")
    if all_of_them and state is None:
        raise click.UsageError(f"--all of which state? --state {' or --state '.join(ARCHIVES)}")
    return state if all_of_them else None


async def _ask_about_all(
    admin: Admin, verb: str, topic: str, state: str, limit: int | None, *, yes: bool
) -> None:
    there = getattr(await admin.stats(topic), state)
    number = there if limit is None else min(there, limit)
    _ask(f"{verb} {count(number, f'{state} message')} of {topic}", yes=yes)


def _ask(deed: str, *, yes: bool) -> None:
    """Go on only if somebody says yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CannotDo(f"nobody is there to be asked whether to {deed}: say --yes")
    if not click.confirm(f"{deed[0].upper()}{deed[1:]}?", err=True):
        raise CannotDo("nothing was done")


async def _each(
    deed: str,
    topic: str,
    ids: tuple[str, ...],
    act: Callable[[str], Awaitable[bool]],
    *,
    as_json: bool,
) -> int:
    """Act on each message and tell of it at once; one that is refused does not stop the rest."""
    done: list[str] = []
    absent: list[str] = []
    refused: dict[str, str] = {}
    for id in dict.fromkeys(ids):
        try:
            there = await act(id)
        except InvalidInput as error:
            refused[id] = str(error)
            click.echo(printable(f"Error: {error}"), err=True)
            continue
        (done if there else absent).append(id)
        if not as_json:
            say(f"{id}: {deed}" if there else f"{id}: not there")
    if as_json:
        print_json({"topic": topic, deed: done, "absent": absent, "refused": refused})
    return 2 if refused else int(bool(absent))


def _told_of_all(deed: str, topic: str, state: str, done: int, *, as_json: bool) -> int:
    if as_json:
        print_json({"topic": topic, "state": state, deed: done})
    else:
        say(f"{count(done, f'{state} message')} of {topic} {deed}")
    return 0


def _switched(topic: str, state: str, new: bool, *, as_json: bool) -> int:
    if as_json:
        print_json({"topic": topic, "state": state, "changed": new})
    else:
        say(f"{topic}: {state}" if new else f"{topic}: nothing to do, it was so already")
    return 0
