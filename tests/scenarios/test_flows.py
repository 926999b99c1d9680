"""Flows, signals and follow-ups in a cluster, over topics and partitions on every node."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from mx_rmq import Batch, Delivery, MessageQueue, State, Worker
from tests.lab.cluster import Cluster
from tests.lab.nodes import until_true

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_flow_over_many_partitions_of_a_cluster(short_path: Path) -> None:
    mails: Counter[int] = Counter()
    async with Cluster(short_path) as cluster, MessageQueue(cluster.url, lease=2) as mq:

        @mq.handler("page", partitions=4)
        async def page(number: int, delivery: Delivery) -> int:
            delivery.produce("mail", number)
            square: int = await delivery.step("square", lambda: number * number)
            return square

        @mq.handler("mail", partitions=3)
        async def mail(number: int) -> None:
            mails[number] += 1

        @mq.handler("chapter", batch=10)
        async def chapter(numbers: list[int], batch: Batch) -> list[Any]:
            return [len(one.results) for one in batch]

        @mq.handler("book", partitions=4, result_ttl=60)
        async def book(_: str, delivery: Delivery) -> list[Any]:
            approval = await delivery.wait("approval")
            return [*delivery.results, approval]

        async with Worker(mq):
            async with mq.flow() as flow:
                pages = [flow.produce("page", n, key=f"k{n}") for n in range(30)]
                chapters = [
                    flow.produce("chapter", n, after=pages[n : n + 10]) for n in (0, 10, 20)
                ]
                id = flow.produce("book", "a title", after=[*chapters, pages[3]])

            async def waits() -> bool:
                found = await mq.admin.get("book", id)
                return found is not None and found.state is State.WAITING

            await until_true(waits, "the book waits for its approval")
            assert await mq.signal("book", id, "approval", "yes")
            assert await mq.result("book", id, timeout=30) == [10, 10, 10, 9, "yes"]
            wanted = dict.fromkeys(range(30), 1)
            await until_true(lambda: mails == wanted, "each page has sent its mail")
        for topic in await mq.admin.topics():
            assert await mq.admin.audit(topic) == []
