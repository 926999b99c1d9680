"""A past and a bustle for the scene: pictures shall not take an hour."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis.asyncio import Redis

from mx_rmq import Worker
from mx_rmq.dashboard.sampler import EVERY, KEPT, _total
from tests.dashboard.scene import Scene, shop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mx_rmq.dashboard import Dashboard
    from mx_rmq.dashboard.sampler import Point

HERE: Final = str(Path(__file__).with_name("scene.py")).encode()

RATE: Final = {"orders": 40.0, "mails": 20.0, "payments": 5.0, "invoices": 0.23, "reports": 0.01}
"""Messages a second, about."""

SLOW: Final = (-2100, -1500)
"""Seconds from now between which mails were slow."""
TROUBLE: Final = (-1300, -900)
"""When the bank was away."""
PAUSED: Final = -360
"""When somebody paused the invoices."""


@asynccontextmanager
async def bustle(one: Scene, server_url: str) -> AsyncIterator[None]:
    """Let the shop be in full swing, with a second worker, and one that has died."""
    raw = Redis.from_url(server_url)
    async with raw, shop(server_url) as mq:
        await _age(raw, "payments", ("dlq", "error:parse:queue"), but=one.ids["dead"])
        await _age(raw, "invoices", ())
        about = {"host": "shop-3", "pid": 4112, "topics": ["orders", "mails"]}
        seen = int((time.time() - 1240) * 1000)
        await raw.hset("mx-rmq:workers", "shop-03de", f"{seen} {json.dumps(about)}")
        async with Worker(mq, name="shop-91b2", topics=["orders", "mails"], grace=0):
            sells = asyncio.create_task(_sell(one))
            await asyncio.sleep(3 * EVERY)  # so that rates are those of the bustle
            make_up_an_hour(one.board)
            yield
            sells.cancel()


async def _sell(one: Scene) -> None:
    number, due = 20_000, time.monotonic()
    while True:
        for topic in ("orders", "mails", "payments"):
            many = round(RATE[topic] / 5)
            numbers = range(number, number + many)
            payloads = [{"order": order, "card": "visa", "amount": 19.9} for order in numbers]
            await one.mq.produce_many(topic, payloads)
            number += many
        due += 0.2
        await asyncio.sleep(max(0, due - time.monotonic()))


async def _age(raw: Redis, topic: str, archives: tuple[str, ...], but: str = "") -> None:
    """Make messages older than they are: each by some seconds more than the next."""
    base = f"mx-rmq:{{{topic}}}:"
    first = -PAUSED if not archives else -TROUBLE[0]
    for archive in archives or ("",):
        hash = base + {"dlq": "dlq:payload", "": "payload"}.get(archive, "error:parse:payload")
        records: dict[bytes, bytes] = await raw.hgetall(hash)  # type: ignore[assignment]
        for place, (id, record) in enumerate(sorted(records.items(), key=_number)):
            share = 1 - place / len(records)
            older = 0 if id.decode() == but else int(1000 * (40 + (first - 40) * share))
            await raw.hset(hash, id, _aged(record, older))
            if archive:
                await raw.zincrby(base + archive, -older, id)


def _number(entry: tuple[bytes, bytes]) -> tuple[int, bytes]:
    return len(entry[0]), entry[0]


def _aged(record: bytes, older: int) -> bytes:
    """Return a record as if it were so many ms older, and of a shop that was deployed."""

    def earlier(found: re.Match[bytes]) -> bytes:
        return found[1] + b"%d" % (int(found[2]) - older)

    text = record.replace(HERE, b"/srv/shop/payments.py")
    return re.sub(rb'("(?:created_at|at)": ?)(\d{13})', earlier, text)


def make_up_an_hour(board: Dashboard) -> None:
    """Put a plausible hour into the memory of the charts."""
    chance, now, sampler = random.Random(7), time.time(), board.parts.sampler
    assert sampler.latest is not None
    topics = list(sampler.latest.stats)
    everything = {topic: sampler.series(topic) for topic in (None, *topics)}
    for series in everything.values():
        del series._numbers[:]
    backlog = dict.fromkeys(topics, 0.0)
    for second in range(-int(KEPT), -1, 2):
        points = {topic: _point(topic, second, backlog, chance) for topic in topics}
        for topic, point in points.items():
            everything[topic].add(now + second, point)
        everything[None].add(now + second, _total(points.values()))


def _point(topic: str, second: int, backlog: dict[str, float], chance: random.Random) -> Point:
    """Return what one topic might have been like so many seconds ago."""
    bank_away = topic == "payments" and TROUBLE[0] < second < TROUBLE[1]
    paused = topic == "invoices" and second > PAUSED
    slow = topic == "mails" and SLOW[0] < second < SLOW[1]
    size = RATE.get(topic, 0.1)
    hour = {"orders": 1900, "mails": 1300}.get(topic, 2600)
    came = size * (1 + 0.3 * math.sin(2 * math.pi * second / hour) + chance.uniform(-0.06, 0.06))
    done = came * (0 if paused else 0.93 if slow else 0.4 if bank_away else 1)
    drained = 0 if paused or slow else min(backlog[topic] / 150, size * 0.2)
    backlog[topic] += 2 * (came - done - drained) * (0 if bank_away else 1)
    through = min(1.0, max(0.0, (second - TROUBLE[0]) / (TROUBLE[1] - TROUBLE[0])))
    is_bank = topic == "payments"
    waits = backlog[topic] / max(done, 0.1) if not paused else float(second - PAUSED)
    return {
        "pending": float(round(backlog[topic] + size * chance.uniform(0, 0.06))),
        "processing": float(round(done * {"orders": 0.2, "mails": 0.4}.get(topic, 0.05))),
        "waiting": 0.0,
        "delayed": float(round(size * 5 * chance.uniform(0.8, 1.2)) if bank_away else 0),
        "dead": float(round(16 * through)) if is_bank else 0.0,
        "quarantined": float(2 * (second > -1000)) if is_bank else 0.0,
        "oldest": waits if waits > 0.5 else None,
        "produced": came,
        "completed": done + drained,
        "failed": size * chance.uniform(0.5, 0.7) if bank_away else 0.0,
    }
