"""A plain script without an event loop: it orders a report, follows it, reads it, aborts another.

Run the server and the worker in two other terminals, in this directory:

    mx-rmq server
    mx-rmq worker plain_script:mq
    python plain_script.py
"""

import os
import time
from dataclasses import dataclass

from mx_rmq import Delivery, MessageDied, MessageQueue

mq = MessageQueue(os.environ.get("MX_RMQ_URL", "embedded://./mx-rmq-data"))


@dataclass
class Order:
    title: str
    pages: int


reports = mq.topic("report.ordered", Order, result=list[str])


@reports.handler(result_ttl=600)
def write(order: Order, delivery: Delivery) -> list[str]:
    """Write a report page by page. A plain function may block: it runs in a thread."""
    pages = []
    for number in range(1, order.pages + 1):
        time.sleep(0.1)
        pages.append(f"Page {number} of {order.title}")
        delivery.progress(number / order.pages, f"page {number} of {order.pages}")
    return pages


def main() -> None:
    id = reports.sync.produce(Order("sales", pages=20))
    for status in reports.sync.watch(id):
        print(status.state, status.note)
    print("the report ends with:", reports.sync.result(id)[-1])

    id = reports.sync.produce(Order("everything", pages=10_000))
    for status in reports.sync.watch(id):
        if status.state == "processing":
            mq.sync.call(lambda mq: mq.admin.abort(reports.name, id, "it takes too long"))
    try:
        reports.sync.result(id)
    except MessageDied as error:
        print("no report:", error.reason)


if __name__ == "__main__":
    main()
