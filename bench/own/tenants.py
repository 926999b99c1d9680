"""What tenants get: limits that hold, rates that are kept, and fair turns.

Every handler runs in its own worker process. The noisy tenant fills the queue before the worker
starts.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from bench.own.crew import Crew, until_begun
from bench.own.figure import Figure, at_least, at_most, share
from bench.own.load import PAYLOAD, TOPIC, payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.own.place import Place
    from bench.own.size import Size

KEYS: Final = 100
AT_A_TIME: Final = 2
RATE: Final = 50
NOISY: Final = 0
QUIET: Final = 1
BACKLOG: Final = 5_000
"""At least this many messages of the noisy tenant wait when a quiet one's message arrives."""
HANDLED: Final = 2_000
"""Messages per second that ten handlers of 5 ms can handle."""
EVERY: Final = 0.02
"""At least this many seconds between two messages of the quiet tenant: one at a time."""
TENANTS: Final = 11
SKEW: Final = 1_000
CHUNK: Final = 5_000


async def measure(place: Place, size: Size) -> list[Figure]:
    """Measure all four."""
    waits = await quiet_waits(place, size.quiet, keys=True)
    return [
        await _two_at_a_time(place, size),
        *await _rate(place, size),
        Figure(
            name="tenants.quiet-p99",
            what=f"a quiet tenant behind {BACKLOG:,} messages of a noisy one, p99",
            value=share([late for _, late in waits], 0.99) * 1000,
            unit="ms",
            goal=at_most(60),
            note="handlers of 5 ms, concurrency 10",
        ),
        await _fairness(place, size),
    ]


async def _two_at_a_time(place: Place, size: Size) -> Figure:
    each = size.drained // KEYS
    async with place.queue() as mq, Crew(mq) as crew:
        keys = [f"tenant-{number}" for number in range(KEYS)] * each
        await mq.produce_many(TOPIC, [PAYLOAD] * len(keys), keys=keys)
        hand = await crew.hire([TOPIC], running=AT_A_TIME)
        await hand.go()
        await until_begun(len(keys), hand)
        report = await hand.report()
        await hand.stop()
    return Figure(
        name="tenants.two-at-a-time",
        what=f"drain over {KEYS} keys, {AT_A_TIME} at a time per key",
        value=len(keys) / (report.last - report.first),
        unit="/s",
        goal=at_least(20_000),
        note=f"worker CPU {report.cpu / len(keys) * 1e6:.0f} ms per 1,000",
    )


async def _rate(place: Place, size: Size) -> list[Figure]:
    messages = int(RATE * size.limited * 1.2) + 1
    async with place.queue() as mq, Crew(mq) as crew:
        await mq.produce_many(TOPIC, [PAYLOAD] * messages)
        hand = await crew.hire([TOPIC], rate=f"{RATE}/s")
        await hand.go()
        await until_begun(1, hand)
        before = await hand.cpu()
        await asyncio.sleep(size.limited)
        after, report = await hand.cpu(), await hand.report()
        await hand.stop()
    first = report.first
    # The bucket is full at the start; its first burst is not the rate.
    times = [began for began in report.noted if 0.5 <= began - first < size.limited]
    mean = (len(times) - 1) / (times[-1] - times[0])
    note = f"{RATE}/s for {size.limited:g} s"
    return [
        Figure(
            name="tenants.rate-off",
            what="a rate: how far the mean is off",
            value=abs(mean / RATE - 1) * 100,
            unit="%",
            goal=at_most(1),
            note=f"{mean:.2f}/s; {note}",
        ),
        Figure(
            name="tenants.rate-most",
            what="a rate: the most in any one second",
            value=most_in(report.noted, 1.0),
            unit="",
            goal=at_most(RATE * 1.1 + 1),
            note=note,
        ),
        Figure(
            name="tenants.rate-cpu",
            what="a rate: CPU time of the worker",
            value=after.cpu - before.cpu,
            unit="s",
            goal=at_most(0.5),
            note=note,
        ),
    ]


async def quiet_waits(place: Place, messages: int, *, keys: bool) -> list[tuple[float, float]]:
    """Return when each message of a quiet tenant started, and how long it waited, in seconds.

    Without keys, all of them wait behind the noisy one's, so they are produced without waiting.
    """
    noisy = BACKLOG + int(HANDLED * EVERY * 2 * messages if keys else 0)
    async with place.queue() as mq, Crew(mq) as crew:
        names = {NOISY: "noisy", QUIET: "quiet"} if keys else dict.fromkeys((NOISY, QUIET))
        for start in range(0, noisy, CHUNK):
            some = [payload(tenant=NOISY, due=time.monotonic())] * min(CHUNK, noisy - start)
            await mq.produce_many(TOPIC, some, keys=[names[NOISY]] * len(some))
        hand = await crew.hire([TOPIC], handler="tenant", concurrency=10)
        await hand.go()
        await until_begun(1, hand)
        for _ in range(messages):
            await asyncio.sleep(EVERY)
            due = time.monotonic()
            await mq.produce(TOPIC, payload(tenant=QUIET, due=due), key=names[QUIET])
        await until_begun(noisy + messages, hand)
        report = await hand.report()
        await hand.stop()
    handled = zip(report.noted, report.late, report.tenants, strict=True)
    return [(began - report.first, late) for began, late, tenant in handled if tenant == QUIET]


async def _fairness(place: Place, size: Size) -> Figure:
    async with place.queue() as mq, Crew(mq) as crew:
        due = time.monotonic()
        crowd = [(NOISY, size.skew * SKEW), *((one, size.skew) for one in range(1, TENANTS))]
        for tenant, count in crowd:
            for start in range(0, count, CHUNK):
                some = [payload(tenant=tenant, due=due)] * min(CHUNK, count - start)
                await mq.produce_many(TOPIC, some, keys=[f"tenant-{tenant}"] * len(some))
        hand = await crew.hire([TOPIC], handler="tenant", concurrency=10)
        await hand.go()
        await until_begun(size.skew * TENANTS * 2, hand)
        report = await hand.report()
        await hand.stop()
    return Figure(
        name="tenants.fairness",
        what=f"Jain's index over {TENANTS} tenants, {SKEW:,}:1, while all wait",
        value=jain(while_all_wait(report.tenants, dict(crowd)).values()),
        unit="",
        goal=at_least(0.99),
    )


def while_all_wait(handled: Sequence[int], waiting: dict[int, int]) -> Counter[int]:
    """Return how many messages of each tenant were handled before one tenant had none left."""
    counts: Counter[int] = Counter(dict.fromkeys(waiting, 0))
    for tenant in handled:
        counts[tenant] += 1
        if counts[tenant] == waiting[tenant]:
            break
    return counts


def jain(counts: Iterable[int]) -> float:
    """Return Jain's index: 1 if all have the same, 1/n if one has everything."""
    some = list(counts)
    return sum(some) ** 2 / (len(some) * sum(one**2 for one in some))


def most_in(times: Iterable[float], seconds: float) -> int:
    """Return the most of these times that lie within any window of this length."""
    ordered, most, start = sorted(times), 0, 0
    for end, at in enumerate(ordered):
        while ordered[start] <= at - seconds:
            start += 1
        most = max(most, end - start + 1)
    return most
