"""The processes of the lab: real workers and producers that write down what they do.

They are forked from a server that has imported everything, so each costs only milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import random
import sqlite3
import threading
import time
from collections import deque
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import mx_rmq.queue
from mx_rmq import (
    Batch,
    Delivery,
    InvalidInput,
    MessageQueue,
    MxRmqError,
    PartlyProduced,
    ProduceUnknown,
    Worker,
)
from tests.faults.bugs import switch_on
from tests.faults.errand import TOPICS, End, Errand, Mix, Payload, batch
from tests.faults.history import Journal, What
from tests.faults.recorded import RecordedStore

if TYPE_CHECKING:
    from pathlib import Path

RETRY: Final = 0.05
LINGER: Final = 0.02
"""Seconds that a batch waits until it is full."""
DEAD_AFTER: Final = 2
"""Attempts of a message that must die."""

FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.faults.member"])


class Place(NamedTuple):
    """The URL and files that the processes of a scene share."""

    url: str
    history: Path
    log: Path
    lease: float
    patience: float = 10.0
    fences: Path | None = None
    """An SQLite file in which every run leaves its fence; None: runs leave none."""
    batch: int = 0
    """Messages per call, at most; 0: they are handled one by one."""


class Hired(NamedTuple):
    """How a worker works."""

    name: str
    concurrency: int = 10
    prefetch: int = 10
    bug: str = ""
    """A bug of tests/faults/bugs.py, to test the checker."""
    extends_after: float = 0.0
    """Seconds that it holds up each extension of leases. So when it wakes up past its lease, it
    settles messages before it notices that they are lost."""


class Order(NamedTuple):
    """What a producer must produce."""

    name: str
    seed: str
    messages: int
    allowed: Any
    """A number that all processes share: how many messages each producer may have made by now.

    Infinity: it makes the rest, and ends.
    """
    mix: Mix = Mix()
    most: int = 50
    """Messages per call."""
    backlog: int = 1_000
    """It pauses while more messages than this wait; 0: it never pauses."""

    @property
    def is_paced(self) -> bool:
        return bool(self.allowed.value < math.inf)


def start(program: Any, *args: Any) -> Any:
    """Fork a process; return its handle."""
    process = FORKS.Process(target=program, args=args, daemon=True)
    process.start()
    return process


# workers


def work(place: Place, hired: Hired) -> None:
    """Run a worker until it is killed or told to stop."""
    begin(place.log)
    asyncio.run(_work(place, hired))


async def _work(place: Place, hired: Hired) -> None:
    journal = Journal(place.history, hired.name)
    RecordedStore.extends_after = hired.extends_after
    mq = make(place, journal)
    if hired.bug:
        switch_on(hired.bug)
    worker = Worker(
        mq, name=hired.name, concurrency=hired.concurrency, prefetch=hired.prefetch, grace=5.0
    )
    while True:
        try:
            await worker.run()
            return
        except MxRmqError as error:  # the server is away: a supervisor would restart us
            journal.note(What.GAVE_UP, words=[repr(error)])
            await asyncio.sleep(0.1)


def make(place: Place, journal: Journal) -> MessageQueue:
    """Return the queue of a worker; its handlers do what the label says."""
    RecordedStore.journal = journal
    threading.Thread(target=_watch, args=(journal, place.lease), daemon=True).start()
    vars(mx_rmq.queue)["Store"] = RecordedStore
    mq = MessageQueue(place.url, lease=place.lease, patience=place.patience)
    settings: dict[str, Any] = {"retry": RETRY, "max_attempts": 1_000, "max_crashes": 1_000}

    def begin(payload: Payload, delivery: Delivery) -> Errand:
        what = What.START if payload.is_whole else What.SPOILT
        _note(journal, what, delivery, payload.label, str(delivery.attempt))
        return Errand.of(payload.label)

    def finish(errand: Errand, delivery: Delivery) -> None:
        if place.fences is not None:
            leave_fence(place.fences, delivery)
        if errand.end is End.DEAD or delivery.attempt <= errand.fails:
            _note(journal, What.FAIL, delivery, errand.label)
            raise ValueError("as planned")
        _note(journal, What.END, delivery, errand.label)

    def finish_all(errands: list[Errand], batch: Batch) -> None:
        for index, (errand, delivery) in enumerate(zip(errands, batch, strict=True)):
            try:
                finish(errand, delivery)
            except ValueError as error:
                batch.fail(index, error)

    if place.batch:
        settings |= {"batch": place.batch, "linger": LINGER}

        @mq.handler(TOPICS[0], **settings)
        async def async_batch(payloads: list[Payload], batch: Batch) -> None:
            errands = [begin(*one) for one in zip(payloads, batch, strict=True)]
            await asyncio.sleep(max(errand.work for errand in errands) / 1000)
            await asyncio.to_thread(finish_all, errands, batch)

        @mq.handler(TOPICS[1], **settings)
        def plain_batch(payloads: list[Payload], batch: Batch) -> None:
            errands = [begin(*one) for one in zip(payloads, batch, strict=True)]
            time.sleep(max(errand.work for errand in errands) / 1000)
            finish_all(errands, batch)

        return mq

    @mq.handler(TOPICS[0], **settings)
    async def async_work(payload: Payload, delivery: Delivery) -> None:
        errand = begin(payload, delivery)
        await asyncio.sleep(errand.work / 1000)
        if place.fences is None:
            finish(errand, delivery)
        else:
            await asyncio.to_thread(finish, errand, delivery)

    @mq.handler(TOPICS[1], **settings)
    def plain_work(payload: Payload, delivery: Delivery) -> None:
        errand = begin(payload, delivery)
        time.sleep(errand.work / 1000)
        finish(errand, delivery)

    return mq


def _watch(journal: Journal, lease: float) -> None:
    """Note when this process had no CPU for a third of the last lease.

    Then it may lose a lease: too little time is left to extend it.
    """
    step = lease / 20
    late: deque[tuple[float, float]] = deque()
    while True:
        began = time.monotonic()
        time.sleep(step)
        now = time.monotonic()
        late.append((began, now - began - step))
        while late[0][0] < now - lease and len(late) > 1:
            late.popleft()
        if sum(overslept for _, overslept in late) > lease / 3:
            journal.note(What.STARVED, since=late[0][0])


def _note(journal: Journal, what: What, delivery: Delivery, *words: str) -> None:
    journal.note(what, ids=[delivery.id], tokens=[delivery.fence], words=words)


# the side effect


def make_fences(path: Path) -> None:
    """Make the file in which handlers leave their fences."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE effects (id TEXT PRIMARY KEY, fence INTEGER)")
        db.execute("CREATE TABLE attempts (id TEXT, fence INTEGER, accepted INTEGER)")


def leave_fence(path: Path, delivery: Delivery) -> None:
    """Write as a handler should: only over an older fence.

    This may block as long as a frozen worker holds the file's lock, so it must not run in the event
    loop.
    """
    with closing(sqlite3.connect(path, timeout=30)) as db, db:
        accepted = db.execute(
            "INSERT INTO effects VALUES (?, ?) ON CONFLICT (id) DO UPDATE "
            "SET fence = excluded.fence WHERE excluded.fence > fence",
            (delivery.id, delivery.fence),
        ).rowcount
        db.execute("INSERT INTO attempts VALUES (?, ?, ?)", (delivery.id, delivery.fence, accepted))


# producers


def produce(place: Place, order: Order) -> None:
    """Run a producer until everything is produced."""
    begin(place.log)
    asyncio.run(_produce(place, order))


async def _produce(place: Place, order: Order) -> None:
    journal = Journal(place.history, order.name)
    plan = random.Random(order.seed)
    async with MessageQueue(place.url, patience=place.patience) as mq:
        number = 0
        while number < order.messages or order.is_paced:
            if not await _may_go_on(mq, order, number):
                await asyncio.sleep(0.01)
                continue
            errands = batch(order.mix, plan, order.name, number, order.most)
            await _produce_batch(mq, journal, errands, own=plan.random() < 0.2)
            number += len(errands)


async def _produce_batch(
    mq: MessageQueue, journal: Journal, errands: list[Errand], *, own: bool
) -> None:
    """Produce; if it is unknown what was stored, again: a custom id makes no second message."""
    one = errands[0]
    labels = [errand.label for errand in errands]
    ids = [f"{errand.producer}.{errand.number}" for errand in errands] if own else None
    options: dict[str, Any] = {"priority": one.priority, "delay": one.delay / 1000 or None}
    if one.end is End.DEAD:
        options["max_attempts"] = DEAD_AFTER
    call = journal.next_call()
    payloads = [errand.payload for errand in errands]
    while True:
        journal.note(What.PRODUCE, call=call, words=labels)
        try:
            if len(errands) == 1:
                own_id = ids[0] if ids else None
                found = [await mq.produce(one.topic, payloads[0], id=own_id, **options)]
            else:
                found = await mq.produce_many(one.topic, payloads, ids=ids, **options)
        except PartlyProduced as error:
            stored = [labels[place] for place in error.places]
            journal.note(What.PRODUCED, call=call, ids=error.ids, words=stored)
            rest = [label for label in labels if label not in stored]
            journal.note(What.UNKNOWN if error.unknown else What.REFUSED, call=call, words=rest)
            return
        except ProduceUnknown:
            journal.note(What.UNKNOWN, call=call, words=labels)
            if ids is None:
                return
        except InvalidInput:
            raise
        except MxRmqError:
            journal.note(What.REFUSED, call=call, words=labels)
            return
        else:
            journal.note(What.PRODUCED, call=call, ids=found, words=labels)
            return


async def _may_go_on(mq: MessageQueue, order: Order, number: int) -> bool:
    if number >= order.allowed.value:
        return False
    if not order.backlog:
        return True
    try:
        found = [await mq.admin.stats(topic) for topic in await mq.admin.topics()]
    except MxRmqError:
        return True
    return sum(stats.pending for stats in found) <= order.backlog


def begin(log_file: Path) -> None:
    """Start as a process of the lab: it ends with the lab, and logs errors to this file."""
    threading.Thread(target=_end_with_the_lab, daemon=True).start()
    log = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.ERROR, format="%(created)f %(process)d %(message)s")
    with suppress(OSError):
        os.nice(1)


def _end_with_the_lab() -> None:
    """Leave nothing behind if the lab itself is killed."""
    lab = multiprocessing.parent_process()
    assert lab is not None
    lab.join()
    os._exit(1)
