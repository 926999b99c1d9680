"""`mx-rmq demo`: the life of a few messages, told step by step on a server of its own."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time

import click
import msgspec
from rich.console import Console

from mx_rmq.core import codec
from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.message import Draft, Failure, Message, Priority, State
from mx_rmq.store.answers import Leased, Retried, Settled
from mx_rmq.store.quarantine import Quarantined, read
from mx_rmq.store.store import Store

TOPIC = "order.created"
LEASE = 30_000
SHORT_LEASE = 200


@click.command()
def demo() -> None:
    """Tell the life of a few messages, on a server that is started for it."""
    logging.basicConfig(level=logging.WARNING)
    try:
        with tempfile.TemporaryDirectory(prefix="mx-rmq-demo-") as directory:
            asyncio.run(_tell(directory))
    except MxRmqError as error:
        raise click.ClickException(str(error)) from error


async def _tell(directory: str) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print("[bold]mx-rmq: the life of a message[/bold]")
    console.print("Every arrow below is one atomic script on a real Valkey server, started here.")
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
        drafts = [_draft({"order": number}) for number in (1, 2, 3)]
        drafts.append(_draft({"order": 4}, priority=Priority.HIGH))
        for id, _ in await self._store.produce_normal_message(TOPIC, drafts):
            self._say(f"(new) -> pending      {id}")
        reminder = [_draft({"remind": 1}, delay=300, id="reminder-1")]
        for id, _ in await self._store.produce_delay_message(TOPIC, reminder):
            self._say(f"(new) -> delayed      {id}, due in 0.3 s")
        ((_, again),) = await self._store.produce_delay_message(TOPIC, reminder)
        self._say(f"the same id once more: nothing stored, it is {again.name.lower()}")
        await self._show()

    async def _complete(self) -> None:
        self._title("Dispatch and complete: the urgent order goes first")
        (one,) = await self._dispatch("worker-a", 1)
        self._say(f"pending -> processing {one.id}, {_payload(one)}, token {one.token}")
        await self._store.complete_message(TOPIC, "worker-a", [one.claim])
        self._say(f"processing -> (gone)  {one.id}")
        await self._show()

    async def _retry(self) -> None:
        self._title("Retry: a handler fails; the message waits for another attempt")
        (one,) = await self._dispatch("worker-a", 1)
        failed = _decode(one).failed(_failure("TimeoutError", "the shop did not answer"))
        await self._store.retry_message(TOPIC, "worker-a", [Retried(one.claim, failed, 100)])
        self._say(f"processing -> delayed {one.id}, attempt {failed.attempts} failed, 0.1 s to go")
        moved = await self._due()
        self._say(f"delayed -> pending    {', '.join(moved)}: due now")
        await self._show()

    async def _dead_letter(self) -> None:
        self._title("Dead letter: no attempt is left; an operator may send it round again")
        (one,) = await self._dispatch("worker-a", 1)
        failed = _decode(one).failed(_failure("ValueError", "no such product"))
        final = msgspec.structs.replace(failed, reason="attempts exhausted")
        await self._store.move_to_dlq(TOPIC, "worker-a", one.claim, final)
        self._say(f"processing -> dead    {one.id}: {final.reason} ({failed.errors[-1].text})")
        await self._show()
        letter = await self._store.views.archived(TOPIC, State.DEAD, one.id)
        if letter is not None:
            again = codec.decode(letter.data).revived()
            await self._store.requeue_message(
                TOPIC, State.DEAD, one.id, archived=letter.at, message=again
            )
            self._say(f"dead -> pending       {one.id}, by an operator")

    async def _quarantine(self) -> None:
        self._title("Quarantine: what no handler can read is set aside, byte for byte")
        broken = _draft({"order": "seven"}, priority=Priority.HIGH)
        await self._store.produce_normal_message(TOPIC, [broken])
        (one,) = await self._dispatch("worker-a", 1)
        self._say(f"pending -> processing {one.id}, {_payload(one)}")
        try:
            msgspec.json.decode(_decode(one).payload, type=Order)
        except msgspec.ValidationError as error:
            about = Quarantined.of(id=one.id, topic=TOPIC, error=error, data=one.record)
            await self._store.handle_parse_error(TOPIC, "worker-a", one.claim, about)
        kept = await self._store.views.archived(TOPIC, State.QUARANTINED, one.id)
        if kept is not None:
            about, data = read(kept.data)
            self._say(f"processing -> quarantined {one.id}: {about.error}")
            self._say(f"kept: {data.decode()}")
        await self._show()

    async def _recover(self) -> None:
        self._title("Time-out: worker-b takes a message and dies; its lease runs out")
        (one,) = await self._dispatch("worker-b", 1, lease=SHORT_LEASE)
        self._say(f"pending -> processing {one.id}, lease of {SHORT_LEASE} ms, then silence")
        taken = await self._store.handle_timeout_message(TOPIC, "monitor", count=10, recovery=5000)
        while not taken.messages:
            await asyncio.sleep(0.02)
            taken = await self._store.handle_timeout_message(
                TOPIC, "monitor", count=10, recovery=5000
            )
        (found,) = taken.messages
        self._say(f"taken over by the monitor, token {one.token} -> {found.token}")
        (late,) = await self._store.complete_message(TOPIC, "worker-b", [one.claim])
        outcome = "refused: no longer its message" if late is Settled.LOST else "accepted?!"
        self._say(f"worker-b wakes up and completes: {outcome}")
        crashed = _decode(one).failed(_failure("LeaseLost", f"{found.lost_by} went silent"))
        await self._store.retry_message(TOPIC, "monitor", [Retried(found.claim, crashed, 0)])
        self._say(f"processing -> delayed {one.id}, the crash counted as an attempt")
        await self._show()

    async def _finish(self) -> None:
        self._title("Drain: another worker does the rest")
        while True:
            await self._store.process_delay_message(TOPIC, count=100)
            messages = await self._dispatch("worker-c", 100)
            if messages:
                claims = [one.claim for one in messages]
                await self._store.complete_message(TOPIC, "worker-c", claims)
                for one in messages:
                    self._say(f"processing -> (gone)  {one.id}, {_payload(one)}")
            wait = await self._store.get_next_delay_task(TOPIC)
            if wait is None:
                break
            await asyncio.sleep(wait / 1000)
        await self._show()
        violations = await self._store.audit.topic(TOPIC)
        self._console.print()
        if violations:
            raise MxRmqError("; ".join(map(str, violations)))
        self._console.print("[bold green]Audit: every message is in exactly one state.[/]")
        self._console.print("Six messages came in: five were completed, one is in quarantine.")
        self._console.print("Nothing was lost.")

    async def _dispatch(self, worker: str, count: int, *, lease: int = LEASE) -> list[Leased]:
        return (
            await self._store.dispatch_message(TOPIC, worker, count=count, lease=lease)
        ).messages

    async def _due(self) -> list[str]:
        while True:
            wait = await self._store.get_next_delay_task(TOPIC)
            await asyncio.sleep((wait or 0) / 1000)
            moved = await self._store.process_delay_message(TOPIC, count=100)
            if moved:
                return moved

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


def _draft(payload: object, **fields: object) -> Draft:
    raw = codec.encode_payload(payload, 1_000)
    return msgspec.structs.replace(Draft(payload=raw), **fields)


def _decode(one: Leased) -> Message:
    return codec.decode_as(one.record, TOPIC, one.id)


def _payload(one: Leased) -> str:
    return bytes(_decode(one).payload).decode()


def _failure(kind: str, text: str) -> Failure:
    return Failure(type=kind, text=text, at=round(time.time() * 1000))
