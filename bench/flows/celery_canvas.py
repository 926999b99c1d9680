"""Celery: a chord, and a chain."""

from __future__ import annotations

from celery import Celery, chain, chord  # type: ignore[import-not-found]

from bench.flows.job import CHILDREN, CONCURRENCY, URL, WAIT, ask_sync, page_sync
from bench.flows.roles import play

# begin flow
app = Celery("flows", broker=URL, backend=URL)


@app.task  # type: ignore[untyped-decorator]
def render(number: int) -> int:
    return page_sync(number)


@app.task  # type: ignore[untyped-decorator]
def bind(pages: list[int]) -> int:
    return sum(pages)


def book() -> int:
    pages = [render.s(number) for number in range(CHILDREN)]
    return chord(pages)(bind.s()).get(timeout=WAIT)  # type: ignore[no-any-return]


# begin steps
@app.task  # type: ignore[untyped-decorator]
def step(text: str) -> str:
    return ask_sync(text)


def ticket() -> str:
    result = chain(step.s("bug"), step.s(), step.s()).delay()
    return result.get(timeout=WAIT)  # type: ignore[no-any-return]


# end


def work() -> None:
    app.worker_main(["worker", "--pool=threads", f"--concurrency={CONCURRENCY}"])


if __name__ == "__main__":
    play(work, book, ticket)
