"""The exports: what is ordered, and how it is written. The worker needs only this file."""

import asyncio
import csv
import io
import os
from dataclasses import dataclass
from typing import Final

from mx_rmq import Delivery, MessageQueue

PAGE_SECONDS: Final = 0.2  # a real export would query a database here
PAGE_ROWS: Final = 50

mq = MessageQueue(os.environ.get("MX_RMQ_URL", "embedded://./mx-rmq-data"))


@dataclass
class Export:
    table: str
    rows: int = 1000


exports = mq.topic("export.ordered", Export, result=str)


@exports.handler(result_ttl=3600, timeout=600)
async def write(export: Export, delivery: Delivery) -> str:
    """Write a table as CSV, page by page."""
    text = io.StringIO(newline="")
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["table", "row"])
    for first in range(1, export.rows + 1, PAGE_ROWS):
        await asyncio.sleep(PAGE_SECONDS)
        last = min(first + PAGE_ROWS - 1, export.rows)
        out.writerows([export.table, row] for row in range(first, last + 1))
        delivery.progress(last / export.rows, f"{last} of {export.rows} rows")
    return text.getvalue()
