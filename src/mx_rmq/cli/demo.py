"""`mx-rmq demo`: the life of a few messages, told step by step on a server of its own."""

from __future__ import annotations

import asyncio
import logging
import tempfile

import click
import msgspec
from rich.console import Console

from mx_rmq.core import codec
from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.message import Draft, Failure, Message, Priority, State
from mx_rmq.store import Store
from mx_rmq.store.answers import Leased, Placed, Retried, Settled, TakenOver
from mx_rmq.store.quarantine import Quarantined, read

TOPIC = "order.created"
LEASE = 30_000
SHORT_LEASE = 200


@click.command()
def demo() -> None:
    """Tell the life of a few messages, step by step."""
    logging.basicConfig(level=logging.WARNING)
    try:
        with tempfile.TemporaryDirectory(prefix="mx-rmq-demo-") as directory:
            asyncio.run(_tell(directory))
    except MxRmqError as error:
        raise click.ClickException(str(error)) from error


async def _tell(directory: str) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print("[bold]mx-rmq: the life of a message[/bold]")
    console.print("Every arrow below is one atomic script on a real server, started for this demo.")
    async with await Store.open(f"embedded://{directory}") as store:
        await Story(store, console).tell()


class Order(msgspec.Struct):
    """What a handler of this topic expects."""

    order: int


class Story:
    """The steps. Each says what it does, does it, and shows where the messages are."""

    def __init__(self, store: Store, console: Console) -> None:
        self._store = store
        self._console = console
        self._step = 0
        self._now = 0
        self._produced: set[str] = set()
        self._completed: set[str] = set()

    async def tell(self) -> None:
        """Tell all of it."""
        await self._produce()
        await self._complete()
        await self._retry()
        await self._dead_letter()
        await self._quarantine()
        await self._recover()
        await self._finish()

    async def _produce(self) -> None:
        self._title("Produce: three orders, an urgent one, and a reminder for later")
        orders = [self._draft(f"order-{number}", {"order": number}) for number in (1, 2, 3)]
        orders.append(self._draft("order-4", {"order": 4}, priority=Priority.HIGH))
        for id, placed in await self._store.produce_normal_message(TOPIC, orders):
            self._came_in(id, placed, "pending", f"{'urgent' if id == 'order-4' else ''}")
        reminder = [self._draft("reminder-1", {"remind": 1}, delay=300)]
        for id, placed in await self._store.produce_delay_message(TOPIC, reminder):
            self._came_in(id, placed, "delayed", "due in 0.3 s")
        ((_, again),) = await self._store.produce_delay_message(TOPIC, reminder)
        self._say(f"the same id once more: nothing is stored, for it is {again.name.lower()}")
        await self._show()

    async def _complete(self) -> None:
        self._title("Dispatch and complete: the urgent order goes first")
        (one,) = await self._dispatch("worker-a", 1)
        await self._finished("worker-a", [one])
        await self._show()

    async def _retry(self) -> None:
        self._title("Retry: a handler fails; the message waits for another attempt")
        (one,) = await self._dispatch("worker-a", 1)
        failed = _decode(one).failed(self._failure("TimeoutError", "the shop did not answer"))
        retried = await self._store.retry_message(
            TOPIC, "worker-a", [Retried(one.claim, failed, 100)]
        )
        self._arrow(retried[0], "processing", "delayed", one.id, "attempt 1 failed, 0.1 s to go")
        for id in await self._due():
            self._arrow(Settled.DONE, "delayed", "pending", id, "due now")
        await self._show()

    async def _dead_letter(self) -> None:
        self._title("Dead letter: a message is given up; an operator sends it round again")
        (one,) = await self._dispatch("worker-a", 1)
        failed = _decode(one).failed(self._failure("ValueError", "no such product"))
        final = msgspec.structs.replace(failed, reason="rejected: no such product")
        dead = await self._store.move_to_dlq(TOPIC, "worker-a", one.claim, final)
        self._arrow(dead, "processing", "dead", one.id, final.reason)
        await self._show()
        letter = await self._store.views.archived(TOPIC, State.DEAD, one.id)
        if letter is None:
            raise MxRmqError(f"the dead letter {one.id} is not there")
        again = codec.decode(letter.data).revived()
        requeued = await self._store.requeue_message(
            TOPIC, State.DEAD, one.id, archived=letter.at, message=again
        )
        self._arrow(requeued, "dead", "pending", one.id, "by an operator")
        await self._show()

    async def _quarantine(self) -> None:
        self._title("Quarantine: what no handler can read is set aside, byte for byte")
        broken = self._draft("order-seven", {"order": "seven"}, priority=Priority.HIGH)
        for id, placed in await self._store.produce_normal_message(TOPIC, [broken]):
            self._came_in(id, placed, "pending", "its order is no number")
        (one,) = await self._dispatch("worker-a", 1)
        try:
            msgspec.json.decode(_decode(one).payload, type=Order)
        except msgspec.ValidationError as error:
            about = Quarantined.of(id=one.id, topic=TOPIC, error=error, data=one.record)
            aside = await self._store.handle_parse_error(TOPIC, "worker-a", one.claim, about)
            self._arrow(aside, "processing", "quarantined", one.id, about.error)
        kept = await self._store.views.archived(TOPIC, State.QUARANTINED, one.id)
        if kept is None or read(kept.data)[1] != one.record:
            raise MxRmqError(f"the quarantine does not hold the exact bytes of {one.id}")
        self._say(f"kept: {one.record.decode()}")
        await self._show()

    async def _recover(self) -> None:
        self._title("Time-out: worker-b takes a message and dies; its lease runs out")
        (one,) = await self._dispatch("worker-b", 1, lease=SHORT_LEASE)
        self._say(f"its lease is {SHORT_LEASE} ms, and worker-b falls silent")
        found = await self._timed_out()
        self._arrow(Settled.DONE, "processing", "processing", one.id, "taken over by the monitor")
        self._say(f"the token grew: {one.token} -> {found.token}")
        (late,) = await self._store.complete_message(TOPIC, "worker-b", [one.claim])
        if late is not Settled.LOST:
            raise MxRmqError(f"a worker without a lease has completed {one.id}")
        self._say("worker-b wakes up and completes: refused, no longer its message")
        crashed = _decode(one).failed(self._failure("LeaseLost", f"{found.lost_by} fell silent"))
        retried = await self._store.retry_message(
            TOPIC, "monitor", [Retried(found.claim, crashed, 0)]
        )
        self._arrow(retried[0], "processing", "delayed", one.id, "the crash counts as an attempt")
        await self._show()

    async def _finish(self) -> None:
        self._title("Drain: another worker does the rest")
        while True:
            for id in await self._store.process_delay_message(TOPIC, count=100):
                self._arrow(Settled.DONE, "delayed", "pending", id, "due now")
            await self._finished("worker-c", await self._dispatch("worker-c", 100))
            wait = await self._store.get_next_delay_task(TOPIC)
            if wait is None:
                break
            await asyncio.sleep(wait / 1000)
        await self._show()
        await self._account()

    async def _account(self) -> None:
        violations = await self._store.audit.topic(TOPIC)
        if violations:
            raise MxRmqError("; ".join(map(str, violations)))
        kept = {found.id for found in await self._store.views.archive(TOPIC, State.QUARANTINED)}
        if self._produced != self._completed | kept:
            raise MxRmqError(f"lost: {self._produced - self._completed - kept}")
        self._console.print("\n[bold green]Audit: every message is in exactly one state.[/]")
        self._console.print(
            f"{len(self._produced)} messages came in, {len(self._completed)} were completed, "
            f"{len(kept)} is in quarantine. Nothing was lost."
        )

    async def _timed_out(self) -> TakenOver:
        while True:
            taken = await self._store.handle_timeout_message(
                TOPIC, "monitor", count=10, recovery=5000
            )
            if taken.messages:
                return taken.messages[0]
            await asyncio.sleep(0.02)

    async def _finished(self, worker: str, messages: list[Leased]) -> None:
        settled = await self._store.complete_message(TOPIC, worker, [m.claim for m in messages])
        for one, done in zip(messages, settled, strict=True):
            self._arrow(done, "processing", "(gone)", one.id, _payload(one))
            self._completed.add(one.id)

    async def _dispatch(self, worker: str, count: int, *, lease: int = LEASE) -> list[Leased]:
        taken = await self._store.dispatch_message(TOPIC, worker, count=count, lease=lease)
        self._now = taken.now
        for one in taken.messages:
            self._arrow(Settled.DONE, "pending", "processing", one.id, f"held by {worker}")
        return taken.messages

    async def _due(self) -> list[str]:
        while True:
            wait = await self._store.get_next_delay_task(TOPIC)
            await asyncio.sleep((wait or 0) / 1000)
            moved = await self._store.process_delay_message(TOPIC, count=100)
            if moved:
                return moved

    def _draft(self, id: str, payload: object, **fields: object) -> Draft:
        return self._store.draft(payload, id=id, **fields)

    def _failure(self, kind: str, text: str) -> Failure:
        return Failure(type=kind, text=text, at=self._now)

    def _came_in(self, id: str, placed: Placed, state: str, note: str) -> None:
        if placed is not Placed.STORED:
            raise MxRmqError(f"{id} was not stored but is {placed.name}")
        self._produced.add(id)
        self._arrow(Settled.DONE, "(new)", state, id, note)

    def _arrow(self, done: Settled, origin: str, target: str, id: str, note: str) -> None:
        if not done:
            raise MxRmqError(f"{origin} -> {target} of {id} was refused: {done.name}")
        self._say(f"{origin:>10} -> {target:<12} {id:<12} {note}".rstrip())

    def _title(self, text: str) -> None:
        self._step += 1
        self._console.print(f"\n[bold cyan]{self._step}. {text}[/]")

    def _say(self, text: str) -> None:
        self._console.print(f"   {text}", markup=False)

    async def _show(self) -> None:
        counts = await self._store.views.counts(TOPIC)
        states = ("pending", "delayed", "processing", "dead", "quarantined")
        line = "  ".join(f"{state} {getattr(counts, state)}" for state in states)
        self._console.print(f"   [dim]now: {line}[/]")


def _decode(one: Leased) -> Message:
    return codec.decode_as(one.record, TOPIC, one.id)


def _payload(one: Leased) -> str:
    return bytes(_decode(one).payload).decode()
