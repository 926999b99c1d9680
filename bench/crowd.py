"""A queue with a million messages in each state, and traffic while operators look at it.

Everything gets there by real transitions: produced by the public API, and what is dead or
quarantined was dispatched first. `python -m bench.crowd URL PREFIX` is the traffic: a producer and
a worker, where one handler in fifty fails, until it is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq import MessageQueue, Worker
from mx_rmq.core import codec
from mx_rmq.core.message import Failure, State
from mx_rmq.runtime.loop import loop_factory
from mx_rmq.settings import Limits
from mx_rmq.store import Store
from mx_rmq.store.quarantine import QuarantineReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.admin import Admin, MessageView
    from mx_rmq.store.results import Leased, Settled

TOPIC: Final = "orders"
LONG: Final = "long"
"""A topic of short messages, then the same number of 1 MiB."""
WORKER: Final = "shop-7f9c6d5b8-x2x9q-31337-0190a7c2e4b87d3fa1c95e62d07b48aa"

RARE: Final = "left-handed"
"""Text that one payload in 20,000 holds."""
NOTHING: Final = "no such thing"
RARE_ERROR: Final = "CardStolen"

STATES: Final = (State.PENDING, State.DELAYED, State.DEAD, State.QUARANTINED)

BATCH: Final = 500
AT_ONCE: Final = 64
"""Archiving calls at the same time."""
LEASE: Final = 600_000
LIMITS: Final = Limits(dlq_max=0, quarantine_max=0)
"""Limits that keep a million dead letters."""

_FRAME: Final = (
    '  File "/srv/shop/orders/handlers.py", line {line}, in charge\n'
    "    receipt = await gateway.charge(order.customer, order.amount, currency=order.currency)\n"
    '  File "/srv/shop/payments/gateway.py", line 88, in charge\n'
    "    return await self._post('/v2/charges', body, within=self.settings.within)\n"
    '  File "/srv/shop/payments/gateway.py", line 141, in _post\n'
    "    raise self._error(answer)\n"
)
_ERRORS: Final = (
    ("TimeoutError", "the payment gateway did not answer within 10 s"),
    ("ConnectionError", "[Errno 111] Connect call failed ('10.4.2.17', 8443)"),
    ("ValueError", "amount=-3.50 is not above 0"),
    ("KeyError", "'currency'"),
)


@dataclass(frozen=True, slots=True)
class Extent:
    """How full it is."""

    messages: int = 1_000_000
    """Pending, delayed and dead ones each, all of one topic."""
    quarantined: int = 100_000
    others: int = 30
    """Other topics, each with this many dead letters:"""
    each: int = 1_000
    workers: int = 500
    """Recently seen workers, each running 20 handlers."""
    long: int = 100
    """Messages of 1 MiB in one topic, behind as many short ones."""


USUAL: Final = Extent()
QUICK: Final = Extent(messages=1_000, quarantined=200, others=2, each=50, workers=60, long=8)


@dataclass(slots=True)
class Crowd:
    """What the queue has: the first, middle and last id of each state."""

    extent: Extent
    ids: dict[State, tuple[str, ...]] = field(default_factory=dict)
    since: dict[State, tuple[float, float]] = field(default_factory=dict)
    """The times between which the middle half of a state lies."""

    async def survey(self, admin: Admin) -> None:
        """Read that from the queue."""
        stats = await admin.stats(TOPIC)
        for state in STATES:
            last = getattr(stats, state) - 1
            found = [await _at(admin, state, last * part // 4) for part in range(5)]
            times = [one.due or one.archived_at or one.created_at or 0.0 for one in found]
            self.ids[state] = (found[0].id, found[2].id, found[4].id)
            self.since[state] = (min(times[1], times[3]), max(times[1], times[3]))


async def _at(admin: Admin, state: State, place: int) -> MessageView:
    """Return the message at a place, or the next one before it that was not cancelled."""
    while True:
        page = await admin.list(TOPIC, state, limit=1, cursor=cursor(state, place))
        if page.messages:
            return page.messages[0]
        place = max(0, place * 9 // 10)


def cursor(state: State, passed: int) -> str | None:
    """Return the cursor of a page after this many messages."""
    if not passed:
        return None
    return f"0.{passed}.0" if state in (State.PENDING, State.DELAYED) else str(passed)


def queue(url: str, prefix: str) -> MessageQueue:
    """Return the queue, which trims nothing."""
    return MessageQueue(
        url,
        prefix=prefix,
        dlq_max=LIMITS.dlq_max,
        quarantine_max=LIMITS.quarantine_max,
    )


async def fill(url: str, prefix: str, extent: Extent, tell: Callable[[str], None]) -> None:
    """Fill a queue."""
    async with (
        queue(url, prefix) as mq,
        await Store.open(url, prefix=prefix, limits=LIMITS) as store,
    ):
        tell(f"{extent.messages:,} dead letters")
        await _archive(mq, store, TOPIC, extent.messages, _die)
        tell(f"{extent.quarantined:,} quarantined messages")
        await _archive(mq, store, TOPIC, extent.quarantined, _set_aside)
        tell(f"{extent.others} other topics")
        for number in range(extent.others):
            await _archive(mq, store, f"other.{number}", extent.each, _die)
        for number in range(extent.workers):
            name = f"shop-{number:04}-{WORKER[5:]}"
            await store.beat_worker(name, _about(number))
        tell(f"{extent.messages:,} delayed messages")
        for start in range(0, extent.messages, BATCH):
            count = min(BATCH, extent.messages - start)
            delay = 7 * 86_400 + start / 10
            await mq.produce_many(TOPIC, _payloads(start, count), delay=delay)
        tell(f"{extent.messages:,} pending messages")
        for start in range(0, extent.messages, 100 * BATCH):
            count = min(100 * BATCH, extent.messages - start)
            await mq.produce_many(TOPIC, _payloads(start, count))
        await mq.produce_many(LONG, _payloads(0, extent.long))
        await mq.produce_many(LONG, [{"text": "x" * 1_048_000}] * extent.long)


def _payloads(start: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "order": number,
            "customer": RARE if number % 20_000 == 11_111 else f"c-{number * 7919 % 1_000_003}",
            "amount": 49.5,
            "currency": "EUR",
            "note": "please ring twice, leave it with the neighbours if no one is in " * 2,
        }
        for number in range(start, start + count)
    ]


async def _archive(
    mq: MessageQueue,
    store: Store,
    topic: str,
    count: int,
    archive: Callable[[Store, str, Leased, int, int], Awaitable[Settled]],
) -> None:
    """Produce messages, dispatch them, and archive each."""
    for start in range(0, count, BATCH):
        await mq.produce_many(topic, _payloads(start, min(BATCH, count - start)))
        taken = await store.dispatch_message(topic, WORKER, count=BATCH, lease=LEASE)
        numbered = enumerate(taken.messages, start)

        async def work(
            numbered: Any = numbered, now: int = taken.now
        ) -> None:  # one at a time for each of these
            for number, leased in numbered:
                await archive(store, topic, leased, number, now)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))


def _die(store: Store, topic: str, leased: Leased, number: int, now: int) -> Awaitable[Settled]:
    type, text = (RARE_ERROR, "") if number % 20_000 == 7_777 else _ERRORS[number % len(_ERRORS)]
    traceback = _FRAME.format(line=100 + number % 50)
    failure = Failure(type=type, text=text, at=now, worker=WORKER, traceback=traceback)
    message = codec.decode(leased.record).failed(failure)
    final = msgspec.structs.replace(message, reason=f"1 attempt failed: {failure.summary}")
    return store.move_to_dlq(topic, WORKER, leased, final)


def _set_aside(
    store: Store, topic: str, leased: Leased, number: int, now: int
) -> Awaitable[Settled]:
    error = ValueError(f"expected `int`, got `str` - at `$.order` ({number}, {now})")
    about = QuarantineReason.of(
        id=leased.id, topic=topic, error=error, data=leased.record, worker=WORKER
    )
    return store.handle_parse_error(topic, WORKER, leased, about)


def _about(number: int) -> bytes:
    """Return the report of a worker that runs as many handlers as it reports."""
    doing = {"topic": TOPIC, "handler": "shop.orders.handlers.charge", "attempt": 1}
    return msgspec.json.encode(
        {
            "host": f"shop-{number:04}",
            "pid": 31_337,
            "started": 1_790_000_000.0,
            "topics": [f"other.{one}" for one in range(30)],
            "concurrency": 100,
            "running": 100,
            "held": 300,
            "doing": [{**doing, "id": f"k3v9m2x0qwz1t-{one}", "seconds": 1.5} for one in range(20)],
        }
    )


# the traffic


async def traffic(url: str, prefix: str) -> None:
    """Produce to the topic and handle its messages, until stopped."""
    mq = queue(url, prefix)

    @mq.handler(TOPIC, max_attempts=2, retry=[1])
    async def charge(payload: dict[str, Any]) -> None:
        await asyncio.sleep(0.01)
        if payload["order"] % 50 == 0:
            raise TimeoutError("the payment gateway did not answer within 10 s")

    async with mq, Worker(mq, concurrency=10):
        print("working", flush=True)
        start = 0
        while True:
            await mq.produce_many(TOPIC, _payloads(start, BATCH))
            start += BATCH
            await asyncio.sleep(0.25)


if __name__ == "__main__":
    logging.disable()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(traffic(*sys.argv[1:]))
