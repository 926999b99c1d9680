"""DBOS on Postgres: a workflow that enqueues others, and a workflow with steps."""

from __future__ import annotations

import threading

from dbos import DBOS, DBOSClient  # type: ignore[import-not-found]

from bench.flows.job import CHILDREN, CONCURRENCY, URL, ask_sync, page_sync
from bench.flows.roles import play


# begin flow
@DBOS.workflow()  # type: ignore[untyped-decorator]
def render(number: int) -> int:
    return page_sync(number)


@DBOS.workflow()  # type: ignore[untyped-decorator]
def bind() -> int:
    pages = [DBOS.enqueue_workflow("page", render, number) for number in range(CHILDREN)]
    return sum(page.get_result() for page in pages)


def book() -> object:
    client = DBOSClient(system_database_url=URL)
    return client.enqueue({"queue_name": "book", "workflow_name": "bind"}).get_result()


# begin steps
@DBOS.step()  # type: ignore[untyped-decorator]
def step(text: str) -> str:
    return ask_sync(text)


@DBOS.workflow()  # type: ignore[untyped-decorator]
def fix(text: str) -> str:
    return step(step(step(text)))  # type: ignore[no-any-return]


def ticket() -> object:
    client = DBOSClient(system_database_url=URL)
    return client.enqueue({"queue_name": "book", "workflow_name": "fix"}, "bug").get_result()


# end


def work() -> None:
    DBOS(config={"name": "flows", "system_database_url": URL})
    DBOS.launch()
    DBOS.register_queue("book")
    DBOS.register_queue("page", worker_concurrency=CONCURRENCY)
    threading.Event().wait()


if __name__ == "__main__":
    play(work, book, ticket)
