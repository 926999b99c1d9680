"""What subscriptions cost: how much later a handler starts, and how fast messages are copied.

Both are compared with a topic that has a plain handler. The rate counts messages that every
subscription got: the fan-out must keep up.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Final

from bench.own.crew import LOOK_EVERY, MOVE_WITHIN, Crew
from bench.own.figure import Figure, at_least, at_most, share
from bench.own.latency import EVERY, pace
from bench.own.load import PAYLOAD, TOPIC, Trouble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.own.place import Place
    from bench.own.size import Size
    from mx_rmq.queue import MessageQueue

NAMES: Final = ("billing", "search", "analytics")
COPIES: Final = [f"{TOPIC}@{name}" for name in NAMES]


async def measure(place: Place, size: Size) -> list[Figure]:
    """Measure the added latency with one subscription, and the rate with three."""
    plain = share(await _late(place, size, TOPIC), 0.5)
    copied = share(await _late(place, size, COPIES[0]), 0.5)
    turns = [
        (await _produced(place, size, ()), await _produced(place, size, COPIES))
        for _ in range(size.turns)
    ]
    rates = [with_copies for _, with_copies in turns]
    shares = [with_copies / alone for alone, with_copies in turns]
    return [
        Figure(
            name="subscriptions.latency",
            what="added latency of a subscription, p50",
            value=(copied - plain) * 1000,
            unit="ms",
            goal=at_most(2),
            note=f"a message every {EVERY * 1000:g} ms",
        ),
        Figure(
            name="subscriptions.produce",
            what="produce_many, until each of 3 subscriptions has its copies",
            value=statistics.median(rates),
            unit="/s",
        ),
        Figure(
            name="subscriptions.share",
            what="the same as a share of a plain topic's rate",
            value=statistics.median(shares),
            unit="×",
            goal=at_least(0.3),
        ),
    ]


async def _late(place: Place, size: Size, topic: str) -> list[float]:
    """Return how many seconds after each produce the handler started."""
    async with place.queue() as mq, Crew(mq) as crew:
        hand = await crew.hire([topic], handler="late")
        await hand.go()
        await _declared(mq, [topic])
        late = await pace(mq, hand, TOPIC, size.paced)
        await hand.stop()
    return late


async def _produced(place: Place, size: Size, copies: Sequence[str]) -> float:
    """Return how many messages per second reach all these subscriptions; none: the topic."""
    count = size.produced
    async with place.queue() as mq, Crew(mq) as crew:
        await mq.produce(TOPIC, PAYLOAD)  # connections are made, scripts are loaded
        if copies:
            hand = await crew.hire(copies)
            await hand.go()
            await _declared(mq, copies)
            await _until_copied(mq, copies, 1)
            for topic in copies:
                await mq.admin.pause(topic)  # nothing but the fan-out is measured
        began = time.perf_counter()
        await mq.produce_many(TOPIC, [PAYLOAD] * count)
        await _until_copied(mq, copies, count + 1)
        return count / (time.perf_counter() - began)


async def _declared(mq: MessageQueue, topics: Sequence[str]) -> None:
    wanted = {topic.partition("@")[2] for topic in topics} - {""}
    async with asyncio.timeout(MOVE_WITHIN):
        while wanted - {*await mq.store.subscriptions(TOPIC)}:  # noqa: ASYNC110 - not announced
            await asyncio.sleep(LOOK_EVERY)


async def _until_copied(mq: MessageQueue, copies: Sequence[str], count: int) -> None:
    """Wait until each subscription has got this many messages."""
    try:
        async with asyncio.timeout(MOVE_WITHIN):
            for topic in copies:
                while await _copied(mq, topic) < count:  # noqa: ASYNC110 - not announced
                    await asyncio.sleep(0.005)
    except TimeoutError:
        raise Trouble("the fan-out does not keep up") from None


async def _copied(mq: MessageQueue, topic: str) -> int:
    return (await mq.store.views.counts(topic)).ever.get("produced", 0)
