"""`mx-rmq pause | resume | grow`: decisions about a topic as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mx_rmq.cli.completion import complete_topic
from mx_rmq.cli.connection import on_admin
from mx_rmq.cli.output import as_json, count, print_json, say

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command(short_help="Let workers take no more messages of a topic.")
@click.argument("topic", shell_complete=complete_topic)
@as_json
@on_admin
async def pause(admin: Admin, topic: str, as_json: bool) -> int:
    """Let workers take no more messages of TOPIC, until it is resumed. What they have goes on."""
    return _switched(topic, "paused", await admin.pause(topic), as_json=as_json)


@click.command(short_help="Let workers take the messages of a topic again.")
@click.argument("topic", shell_complete=complete_topic)
@as_json
@on_admin
async def resume(admin: Admin, topic: str, as_json: bool) -> int:
    """Let workers take the messages of TOPIC again."""
    return _switched(topic, "resumed", await admin.resume(topic), as_json=as_json)


@click.command(short_help="Give a topic more partitions.")
@click.argument("topic", shell_complete=complete_topic)
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


def _switched(topic: str, state: str, new: bool, *, as_json: bool) -> int:
    if as_json:
        print_json({"topic": topic, "state": state, "changed": new})
    else:
        say(f"{topic}: {state}" if new else f"{topic}: nothing to do, it was so already")
    return 0
