"""`mx-rmq keys`: the keys of a topic, and what holds each back."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from mx_rmq.cli.connection import on_admin, with_topic
from mx_rmq.cli.output import as_json, count, duration, print_json, say
from mx_rmq.cli.terminal import Table, show_table

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, KeyView

NO_KEY = "(no key)"  # a key of this name is not a problem: the table is for people


@click.command
@with_topic
@click.option("--key", help="Only this key, even if none of its messages wait.")
@click.option(
    "--limit", type=int, default=20, show_default=True, help="How many keys at most, up to 200."
)
@as_json
@on_admin
async def keys(admin: Admin, topic: str, key: str | None, limit: int, as_json: bool) -> int:
    """List the keys of TOPIC with the most messages waiting, then those with their own limits.

    "oldest" is how long a key's next message has waited. "share" is the key's part of all waiting
    messages. "limited by" says why its next message may not start now; if it is empty, the key
    waits for its turn. If there are more keys than --limit, and more than 1,000 messages have one,
    the busiest keys are found in a random sample of 1,000 messages.
    """
    if key is not None:
        view, now = await admin.key(topic, key), await admin.now()
        if as_json:
            print_json({"topic": topic, "at": now, "keys": [key_document(view)]})
        else:
            show_table(_table([view], now))
        return 0
    found = await admin.keys(topic, limit=limit)
    if as_json:
        document = {name: getattr(found, name) for name in ("topic", "at", "waiting", "blocked")}
        held = None if found.held_back is None else asdict(found.held_back)
        every = [key_document(one) for one in found.keys]
        print_json({**document, "partial": found.partial, "held_back": held, "keys": every})
        return 0
    if found.keys:
        show_table(_table(found.keys, found.at))
    else:
        say("no keys")
    if found.held_back is not None:
        from mx_rmq.admin.limits import topic_limited_by

        if why := topic_limited_by(await admin.limits(topic), now=found.at):  # else not any more
            say(f"the topic is held back: {why}")
    if found.partial:
        limited = f"{found.blocked:,} of them limited"
        say(f"{count(found.waiting, 'key')} waiting, {limited}; not all shown")
    return 0


def key_document(view: KeyView) -> dict[str, Any]:
    """Return a key for JSON."""
    document = asdict(view)
    return document | {"rate": None if view.rate is None else str(view.rate)}


def _table(found: list[KeyView], now: float) -> Table:
    from mx_rmq.admin.keys import limited_by

    return Table(
        ("key", "waiting", "oldest", "running", "share", "limited by"),
        [
            (
                NO_KEY if one.key is None else one.key,
                one.waiting,
                duration(one.oldest),
                one.running,
                f"{one.share:.0%}" if one.waiting else None,
                limited_by(one, now=now),
            )
            for one in found
        ],
        spare=("share", "oldest"),
        long=("key", "limited by"),
    )
