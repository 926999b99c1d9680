"""streaQ: a task after others, and a pipeline."""

from __future__ import annotations

import asyncio

from streaq import Worker  # type: ignore[import-not-found]

from bench.flows.job import CHILDREN, CONCURRENCY, URL, WAIT, ask, page
from bench.flows.roles import play

# begin flow
options = {"max_connections": 300}  # each result_by_id needs one or two
worker = Worker(redis_url=URL, redis_kwargs=options, concurrency=CONCURRENCY)


@worker.task  # type: ignore[untyped-decorator]
async def render(number: int) -> int:
    return await page(number)


@worker.task  # type: ignore[untyped-decorator]
async def bind(pages: list[str]) -> int:
    results = await asyncio.gather(*(worker.result_by_id(id) for id in pages))
    return sum(each.result for each in results)


async def book() -> int:
    pages = [render.enqueue(number) for number in range(CHILDREN)]
    ids = [each.id for each in pages]
    await worker.enqueue_many(pages)
    task = await bind.enqueue(ids).start(after=ids)
    return (await task.result(WAIT)).result  # type: ignore[no-any-return]


# begin steps
@worker.task  # type: ignore[untyped-decorator]
async def step(text: str) -> str:
    return await ask(text)


async def ticket() -> str:
    task = await step.enqueue("bug").then(step).then(step)
    return (await task.result(WAIT)).result  # type: ignore[no-any-return]


# end


if __name__ == "__main__":
    play(worker.run_sync, book, ticket, worker)
