"""`mx-rmq subscriptions`: the subscriptions of a topic."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import complete_topic, on_admin
from mx_rmq.cli.output import as_json, duration, print_json, say
from mx_rmq.cli.terminal import Table, show_table

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, SubscriptionView


@click.command
@click.argument("topic", required=False, shell_complete=complete_topic)
@as_json
@on_admin
async def subscriptions(admin: Admin, topic: str | None, as_json: bool) -> int:
    """List the subscriptions of TOPIC, or of all topics, and how far each is behind.

    "lag" counts the messages that a subscription has not started: those that wait in it, also for
    their next attempt, and those that wait in TOPIC to be copied. "oldest" is how long its next
    message has waited. Every command that takes a topic takes a subscription, too: pass
    TOPIC@NAME.
    """
    found = await (_of_all(admin) if topic is None else admin.subscriptions(topic))
    if as_json:
        print_json({"topic": topic, "subscriptions": [asdict(one) for one in found]})
    elif found:
        rows = [
            (
                one.topic if topic is None else one.name,
                one.lag,
                duration(one.oldest),
                one.processing,
                one.dead,
                one.quarantined,
                "paused" if one.paused else "",
            )
            for one in found
        ]
        columns = ("subscription", "lag", "oldest", "processing", "dead", "quarantined", "")
        show_table(Table(columns, rows, spare=("quarantined", "oldest"), long=("subscription",)))
    else:
        say("no topic has subscriptions" if topic is None else f"{topic} has no subscriptions")
    return 0


async def _of_all(admin: Admin) -> list[SubscriptionView]:
    seen = await admin.overview(most=None)
    topics = [name for name, stats in seen.topics.items() if stats.subscriptions]
    return [one for topic in topics for one in await admin.subscriptions(topic)]
