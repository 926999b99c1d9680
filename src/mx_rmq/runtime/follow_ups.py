"""What there is to do when a handler has returned: follow-ups, and telling those who wait.

First the record notes what there is to do; from then on the handler never runs again. Then the
messages are produced and the signals are sent, under names that make a repetition harmless. Last
the message completes. If a worker dies on the way, the next one goes on from the record.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import astuple, replace

from mx_rmq.core import steps as core_steps
from mx_rmq.core.duplicates import DuplicatePolicy
from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.core.names import check_topic
from mx_rmq.core.outcome import Result
from mx_rmq.core.steps import FOLLOW_UP_WINDOW, Planned, Prerequisite
from mx_rmq.runtime.partition_choice import PartitionChoice
from mx_rmq.runtime.producer import chunks
from mx_rmq.store.arguments import MAX_BATCH
from mx_rmq.store.producer_calls import check_size
from mx_rmq.store.results import Settled, Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mx_rmq.core.message import Message
    from mx_rmq.core.outcome import Finish
    from mx_rmq.core.steps import Steps
    from mx_rmq.store import Store
    from mx_rmq.store.results import Leased

COMPLETED: Final = b"="  # begins the signal of a completed message; its result follows
DIED: Final = b"!"  # begins the signal of a dead message; the reason follows

MAX_BYTES: Final = 4 * 1_048_576  # of signals in one call, unless a single one is larger

_ONCE: Final = DuplicatePolicy("ignore", FOLLOW_UP_WINDOW)


class FollowUps:
    """Does what is left to do after handlers have returned."""

    def __init__(self, store: Store, *, worker: str) -> None:
        self._store = store
        self._worker = worker
        self._partition = PartitionChoice(store)

    async def plan(self, messages: Iterable[Message]) -> list[Planned]:
        """Choose the partitions of messages, so that a repetition goes to the same ones.

        Refuse those that could never be produced: once they are noted, it is too late.
        """
        planned = []
        for message in messages:
            check_topic(message.topic)
            if message.topic not in self._store.partitions:
                await self._store.register(message.topic)
            ttl = self._store.ttls.get(message.topic)
            if ttl is not None and message.ttl is None:
                if message.delay >= ttl:
                    raise InvalidInput(
                        f"delay={message.delay / 1000:g}: the message would expire before it is "
                        f"due. The default of topic {message.topic!r} is ttl={ttl / 1000:g}; pass "
                        "a longer ttl"
                    )
                message = replace(message, ttl=ttl)  # noqa: PLW2901 - the same, completed
            check_size(self._store, message, message.topic)
            part = self._partition.choose(message.topic, message.id, message.key)
            planned.append(Planned(part, message))
        return planned

    async def produce(self, planned: Iterable[Planned], *, limited: bool = False) -> int:
        """Produce messages; return how many of their ids were not taken.

        `limited`: raise QueueFull if a topic has `max_pending`. What is produced before a message
        can complete is not: the worker that waits for room may be the one that has to make it.
        """
        stored = 0
        for part, messages in _in_order(planned):
            for places in chunks(messages, range(len(messages))):
                some = [messages[place] for place in places]
                script = f"produce_{'delay' if some[0].is_delayed else 'normal'}_message"
                call = self._store.prepare(script, part, some, [_ONCE] * len(some))
                produced = await self._store.produce(call, limited=limited)
                stored += sum(not one.placed.duplicate for one in produced)
        return stored

    async def finish(self, topic: str, batch: Sequence[tuple[Leased, Finish]]) -> list[Settled]:
        """Note, produce, tell and complete."""
        store, worker = self._store, self._worker
        answers = dict.fromkeys((claim for claim, _ in batch), Settled.DONE)
        unnoted = [(claim, one.message, "finished") for claim, one in batch if not one.noted]
        noted = await store.note_record(topic, worker, unnoted)
        answers.update(zip((claim for claim, *_ in unnoted), noted, strict=True))
        ours = [(claim, one) for claim, one in batch if answers[claim]]
        todo = [(one.message, core_steps.read(one.message)) for _, one in ours]
        await self.produce(planned for _, steps in todo for planned in steps.then or ())
        await self._tell(topic, todo)
        plain = [claim for claim, one in ours if not isinstance(one.completion, Result)]
        kept = [
            (claim, one.completion) for claim, one in ours if isinstance(one.completion, Result)
        ]
        if plain:
            done = await store.complete_message(topic, worker, plain)
            answers.update(zip(plain, done, strict=True))
        if kept:
            results = [(claim, result.kept) for claim, result in kept]
            done = await store.complete_with_result(topic, worker, results, ttl=kept[0][1].ttl)
            answers.update(zip((claim for claim, _ in kept), done, strict=True))
        return [answers[claim] for claim, _ in batch]

    async def _tell(self, topic: str, done: Iterable[tuple[Message, Steps]]) -> None:
        by_part: defaultdict[str, list[Signal]] = defaultdict(list)
        for message, steps in done:
            name, value = Prerequisite(topic, message.id).signal, bytes(steps.result) or b"null"
            for target in steps.tell:
                by_part[target.part].append(Signal(target.id, name, COMPLETED + value))
        for part, signals in by_part.items():
            await send_signals(self._store, part, signals, by=self._worker)

    async def tell_death(self, topic: str, message: Message, reason: str) -> None:
        """Tell those who wait for a message that it is dead, if they want to know.

        Errors do not matter: `waiting_check.py` finds out later.
        """
        dead, value = Prerequisite(topic, message.id), DIED + reason.encode()
        with suppress(MxRmqError):
            for target in core_steps.read(message).tell:
                if target.on_dead != "wait":
                    signal = signal_of_death(dead, target.id, value, target.on_dead)
                    await self._store.signal_message(target.part, [signal], by=self._worker)


def _in_order(planned: Iterable[Planned]) -> Iterator[tuple[str, list[Message]]]:
    """Group messages by partition, but none before one that waits for it and was planned first.

    It could complete before the other one exists, which then would never be told.
    """
    groups: dict[str, list[Message]] = {}
    numbers: dict[str, int] = {}  # partition -> which group it is
    number_of: dict[tuple[str, str], int] = {}  # partition and id -> which group it is in
    for part, message in map(astuple, planned):
        own = numbers.get(part, len(groups))
        targets = core_steps.read(message).tell
        if any(number_of.get((one.part, one.id), own) > own for one in targets):
            yield from groups.items()
            groups, numbers, number_of, own = {}, {}, {}, 0
        groups.setdefault(part, []).append(message)
        numbers[part] = number_of[part, message.id] = own
    yield from groups.items()


async def send_signals(store: Store, part: str, signals: Iterable[Signal], *, by: str = "") -> None:
    """Send signals from messages, in as many calls as they need."""
    for some in _that_fit(signals):
        await store.signal_message(part, some, by=by)


def _that_fit(signals: Iterable[Signal]) -> Iterator[list[Signal]]:
    some: list[Signal] = []
    size = 0
    for one in signals:
        size += len(one.value)
        if some and (size > MAX_BYTES or len(some) == MAX_BATCH):
            yield some
            some, size = [], len(one.value)
        some.append(one)
    if some:
        yield some


def signal_of_death(dead: Prerequisite, id: str, value: bytes, on_dead: str) -> Signal:
    """Return what a message that waits for a dead one is told."""
    dies = on_dead == "die"
    return Signal(id, dead.death if dies else dead.signal, value, wake=dies)
