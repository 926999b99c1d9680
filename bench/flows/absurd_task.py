"""Absurd on Postgres: a task that spawns others, and a task with steps."""

from __future__ import annotations

import threading
from typing import Any

from absurd_sdk import Absurd  # type: ignore[import-not-found]

from bench.flows.job import CHILDREN, CONCURRENCY, URL, WAIT, ask_sync, page_sync
from bench.flows.roles import play

# begin flow
app = Absurd(URL, queue_name="book")
pages = Absurd(URL, queue_name="page")


@pages.register_task("render")  # type: ignore[untyped-decorator]
def render(number: int, ctx: Any) -> int:
    return page_sync(number)


@app.register_task("bind")  # type: ignore[untyped-decorator]
def bind(params: Any, ctx: Any) -> int:
    numbers = range(CHILDREN)
    ids = ctx.step("spawn", lambda: [str(pages.spawn("render", n)["task_id"]) for n in numbers])
    return sum(ctx.await_task_result(id, queue_name="page").result for id in ids)


def book() -> Any:
    task = app.spawn("bind", None)["task_id"]
    return app.await_task_result(task, timeout=WAIT).result


# begin steps
@app.register_task("fix")  # type: ignore[untyped-decorator]
def fix(text: str, ctx: Any) -> str:
    plan = ctx.step("plan", lambda: ask_sync(text))
    patch = ctx.step("patch", lambda: ask_sync(plan))
    return ctx.step("deploy", lambda: ask_sync(patch))  # type: ignore[no-any-return]


def ticket() -> Any:
    task = app.spawn("fix", "bug")["task_id"]
    return app.await_task_result(task, timeout=WAIT).result


# end


def work() -> None:
    threading.Thread(target=pages.start_worker, kwargs={"concurrency": CONCURRENCY}).start()
    app.start_worker()


if __name__ == "__main__":
    app.create_queue("book")
    app.create_queue("page")
    play(work, book, ticket)
