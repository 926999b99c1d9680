"""`mx-rmq limit`: show the limits of a topic and its keys, or change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mx_rmq.cli.connection import on_admin, with_topic
from mx_rmq.cli.output import as_json, print_json, say

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, LimitsView, LimitView

NONE = "none"  # restores what the handler declares


def _number(_: click.Context, option: click.Parameter, text: str | None) -> float | str | None:
    """Return the number that was given, or NONE."""
    if text is None or text == NONE:
        return text
    try:
        return int(text) if option.name == "running" else float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a number nor {NONE!r}.") from None


@click.command
@with_topic
@click.option("--key", help="Limits of this key, not of the whole topic.")
@click.option(
    "--running",
    metavar="N|none",
    callback=_number,
    help="How many messages may run at the same time. 0: nothing starts.",
)
@click.option(
    "--rate",
    metavar="RATE|none",
    help="How many messages may start: 50/s, 100/m or 1000/h.",
)
@click.option(
    "--weight",
    metavar="W|none",
    callback=_number,
    help="With --key: how many turns it gets for each turn of the others.",
)
@as_json
@on_admin
async def limit(
    admin: Admin, topic: str, key: str | None, as_json: bool, **given: str | float | None
) -> int:
    """Show the limits of TOPIC and its keys, or change them.

    Only what you pass changes. It takes effect at once, for all workers, and overrides what the
    handler declares; "none" restores that. What the handler declares is known once a worker has
    asked for messages. The partitions of a topic share its limits.
    """
    changes: dict[str, Any] = {
        name: None if value == NONE else value for name, value in given.items() if value is not None
    }
    if "weight" in changes and key is None:
        raise click.UsageError("--weight needs --key: it says how many turns that key gets.")
    if changes:
        await admin.limit(topic, key, **changes)
    found = await admin.limits(topic, key)
    if as_json:
        print_json(limits_document(found))
    else:
        _print(found, key, await admin.now())
    return 0


def _print(found: LimitsView, key: str | None, now: float) -> None:
    from mx_rmq.admin.limits import limit_words, topic_limited_by

    facts = [
        ("declared", limit_words(found.declared)),
        ("declared per key", limit_words(found.per_key)),
        ("set", limit_words(found.set)),
    ]
    if key is not None and key not in found.keys:
        facts.append((f"set for key {key}", ""))
    facts += [(f"set for key {name}", limit_words(view)) for name, view in found.keys.items()]
    say(f"{found.topic}: {found.running:,} running")
    for name, text in facts:
        say(f"  {name}: {text or 'nothing'}")
    if found.more:
        say("  and other keys")
    if why := topic_limited_by(found, now=now):
        say(f"  held back: {why}")


def limits_document(found: LimitsView) -> dict[str, Any]:
    """Return limits for JSON."""
    held = found.held_back
    return {
        "topic": found.topic,
        "declared": _document(found.declared),
        "per_key": _document(found.per_key) | {"overtake": found.overtake},
        "set": _document(found.set),
        "keys": {key: _document(view) for key, view in found.keys.items()},
        "more": found.more,
        "running": found.running,
        "held_back": held and {"by": held.by, "until": held.until, "reason": held.reason},
    }


def _document(view: LimitView) -> dict[str, Any]:
    return {
        "running": view.running,
        "rate": None if view.rate is None else str(view.rate),
        "burst": None if view.rate is None else view.rate.at_once,
        "weight": view.weight,
        "paused": view.paused,
        "paused_until": view.paused_until,
        "reason": view.reason,
    }
