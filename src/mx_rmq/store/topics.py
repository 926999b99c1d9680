"""The registry of topics, and how many partitions each has."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from mx_rmq.core.errors import OutcomeUnknown, ScriptFailed, ServerUnavailable
from mx_rmq.core.names import TOPIC, check_topic, check_worker
from mx_rmq.core.partition import check_partitions, partitions, partitions_of
from mx_rmq.store.keys import LAYOUT
from mx_rmq.store.operating import Operating
from mx_rmq.store.script import load
from mx_rmq.store.scripted import MAX_TOPICS, check_range, id_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mx_rmq.store.script import Value


class Topics(Operating):
    """What topics there are, as producers and workers tell it."""

    async def register_topics(self, topics: Mapping[str, int]) -> None:
        """List topics, whether they hold anything or not, and how many partitions each shall have.

        What the server knows then is in `partitions`: the largest number that anybody asked for.
        """
        wanted = [(check_topic(topic), check_partitions(topics[topic])) for topic in topics]
        script = load("register_topics")
        for start in range(0, len(wanted), MAX_TOPICS):
            chunk = wanted[start : start + MAX_TOPICS]
            args = script.arguments({}, [word for one in chunk for word in one])
            counts = await self._caller.run(script, [self.keys.topics], args)
            self.partitions.update(zip((topic for topic, _ in chunk), counts, strict=True))

    async def tend_topics(self, worker: str, *, turn: int) -> dict[str, int] | None:
        """Ask for the turn to look after other workers' topics, for `turn` ms.

        Returns every topic and its number of partitions, or None: another worker has the turn.
        """
        script = load("tend_topics")
        named: dict[str, Value] = {
            "worker": check_worker(worker),
            "turn_ms": check_range("turn", turn, 1),
        }
        keys = [self.keys.caretaker, self.keys.topics]
        reply = await self._caller.run(script, keys, script.arguments(named))
        if reply is None:
            return None
        fields = iter(reply)
        found = ((id_of(name), count) for name, count in zip(fields, fields, strict=True))
        return {name: partitions_of(count) for name, count in found if TOPIC.fullmatch(name)}

    async def grow(self, topic: str, count: int) -> None:
        """Give a topic so many partitions at the least. If it is paused, so are the new ones.

        They are looked at again once everybody knows of them: whoever paused or resumed the topic
        a moment before did not.
        """
        known = await self._caller.command("HGET", self.keys.topics, check_topic(topic)) or b""
        new = partitions(topic, check_partitions(count))[int(known) if known.isdigit() else count :]
        await self._pause_alike(topic, new)
        await self.register_topics({topic: count})
        await self._pause_alike(topic, new)

    async def _pause_alike(self, topic: str, new: Sequence[str]) -> None:
        """Let new partitions be paused if the topic is, and not if not: a grower may have died."""
        if not new:
            return
        paused = await self._is_paused(topic)
        for name in new:
            if await self._is_paused(name) != paused:
                await (self.pause_topic(name) if paused else self.resume_topic(name))

    async def _is_paused(self, name: str) -> bool:
        return bool(await self._caller.command("HEXISTS", self.keys.of(name).meta, "paused"))

    async def claim_layout(self) -> None:
        """Store the layout number, unless it is set: a later release can tell old keys by it."""
        with suppress(ScriptFailed):  # without the right: then another worker does
            await self._caller.command("SET", self.keys.layout, LAYOUT, "NX")

    async def register(self, topic: str, count: int = 1) -> None:
        """List a topic before it holds anything, with so many partitions at the least."""
        try:
            await (self.grow(topic, count) if count > 1 else self.register_topics({topic: count}))
        except OutcomeUnknown as error:
            raise ServerUnavailable(
                f"the server did not answer, and no message was sent to it: {error.__cause__}"
            ) from error
