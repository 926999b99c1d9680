"""`mx-rmq grow`: give a topic more partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import on_admin, with_topic
from mx_rmq.cli.output import as_json, count, print_result

if TYPE_CHECKING:
    from mx_rmq.admin import Admin


@click.command
@with_topic
@click.argument("partitions", metavar="N", type=int)
@as_json
@on_admin
async def grow(admin: Admin, topic: str, partitions: int, as_json: bool) -> int:
    """Give TOPIC N partitions. The number can only grow.

    Running producers and workers notice within fifteen seconds. Messages with the same key
    may be handled out of order once, because the key may have moved to a new partition.
    """
    number = await admin.grow(topic, partitions)
    document = {"topic": topic, "partitions": number}
    print_result(f"{topic}: {count(number, 'partition')}", document, as_json=as_json)
    return 0
