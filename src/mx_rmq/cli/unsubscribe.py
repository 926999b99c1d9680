"""`mx-rmq unsubscribe`: end a subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from mx_rmq.cli.confirm import ask, yes_option
from mx_rmq.cli.connection import on_admin, with_topic
from mx_rmq.cli.output import as_json, count, print_result

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@with_topic
@click.argument("name")
@click.option(
    "--waiting",
    type=click.Choice(["dead", "drop"]),
    default="dead",
    show_default=True,
    help="What happens to messages that wait in it: they become dead letters, or are dropped.",
)
@yes_option
@as_json
@on_admin
async def unsubscribe(
    admin: Admin,
    topic: str,
    name: str,
    waiting: Literal["dead", "drop"],
    yes: bool,
    as_json: bool,
) -> int:
    """End the subscription NAME of TOPIC: it gets no more messages.

    First stop the workers that have it: one that starts later declares it again. Messages that wait
    become dead letters with the reason "unsubscribed", or are dropped. Running ones may finish. If
    it is interrupted, run it again.
    """
    known = {one.name: one for one in await admin.subscriptions(topic)}
    lag = count(known[name].lag if name in known else 0, "message")
    fate = "dead-letter" if waiting == "dead" else "drop"
    ask(f"end the subscription {name} of {topic} and {fate} up to {lag}", yes=yes)
    number = await admin.unsubscribe(topic, name, waiting=waiting)
    there_was = name in known or number > 0
    done = "moved to the dead letters" if waiting == "dead" else "dropped"
    line = f"{topic}@{name}: ended, {count(number, 'message')} {done}"
    if not there_was:
        line = f"{topic} has no subscription {name}"
    document = {"topic": topic, "name": name, "waiting": waiting, "messages": number}
    print_result(line, document, as_json=as_json)
    return 0 if there_was else 1
