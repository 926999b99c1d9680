"""The transitions that an operator makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import brief
from mx_rmq.store.answers import Settled
from mx_rmq.store.lane import maker_of
from mx_rmq.store.script import load
from mx_rmq.store.scripted import Scripted, check_level, check_same

if TYPE_CHECKING:
    from mx_rmq.core.message import Message, State
    from mx_rmq.store.script import Value

WALK: Final = 10_000
"""How far from the ends of a list a cancelled message is taken out of it at once: about 0.2 ms of
the server's time."""


class Operating(Scripted):
    """Requeue, discard, cancel; pause and resume; repair. `by` says in the history who it was."""

    async def requeue_message(
        self,
        topic: str,
        state: State,
        id: str,
        *,
        archived: int,
        message: Message,
        why: str = "",
        by: str = "",
    ) -> Settled:
        """Send an archived message round again, if it is still the one archived at that time."""
        check_same(message, topic, id)
        unstamped = codec.encode(msgspec.structs.replace(message, due=None))[1:]
        return await self._operate(
            "requeue_message",
            topic,
            by,
            archive=state,
            id=id,
            archived_ms=archived,
            priority=check_level(message.priority),
            record=unstamped,
            expires_ms="" if message.expires_at is None else message.expires_at,
            why=why,
            now_ms=self._now(),
        )

    async def discard_message(
        self, topic: str, state: State, id: str, *, archived: int, by: str = ""
    ) -> Settled:
        """Delete an archived message, if it is still the one archived at that time.

        Its id can be produced again at once.
        """
        return await self._operate(
            "discard_message",
            topic,
            by,
            archive=state,
            maker=maker_of(id),
            id=id,
            archived_ms=archived,
            now_ms=self._now(),
        )

    async def cancel_message(self, topic: str, id: str, *, by: str = "") -> Settled:
        """Remove a pending or delayed message. Its id can be produced again at once."""
        if not isinstance(id, str):
            raise InvalidInput(f"message id {id!r} is not a str")
        return await self._operate(
            "cancel_message",
            topic,
            by,
            maker=maker_of(id),
            id=id,
            walk=WALK,
            now_ms=self._now(),
        )

    async def pause_topic(self, topic: str, *, by: str = "") -> bool:
        """Let dispatch give nothing; return whether that is new."""
        return bool(await self._operate("pause_topic", topic, by))

    async def resume_topic(self, topic: str, *, by: str = "") -> bool:
        """Let dispatch give messages again; return whether that is new."""
        return bool(await self._operate("resume_topic", topic, by))

    async def repair_message(
        self, topic: str, id: bytes, *, dry_run: bool = False, by: str = ""
    ) -> list[str]:
        """Bring a message back into exactly one state; return what was done, in words.

        Nothing is done if it is in one by now. `dry_run`: only say what would be.
        """
        keys = self.keys.of(topic)
        record = await self._caller.command("HGET", keys.payload, id)
        created_at, priority, ttl = codec.glance(record or b"")
        named: dict[str, Value] = {
            "now_ms": self._now(),
            "id": id,
            "priority": priority,
            "expires_ms": "" if ttl is None else created_at + ttl,
            "dry": int(dry_run),
            "by": brief(by),
        }
        return [words.decode() for words in await self._run("repair_message", keys, named)]

    async def repair_topic(
        self, topic: str, *, least: int, recount: bool = False, dry_run: bool = False
    ) -> list[str]:
        """Fix the token counter, to `least` or above, the doorbells, and the bytes of archives."""
        named: dict[str, Value] = {
            "now_ms": self._now(),
            "least": least,
            "recount": int(recount),
            "dry": int(dry_run),
        }
        return [
            words.decode() for words in await self._run("repair_topic", self.keys.of(topic), named)
        ]

    async def _operate(
        self,
        name: str,
        topic: str,
        by: str,
        archive: State | None = None,
        maker: str | None = None,
        **named: Value,
    ) -> Settled:
        keys = self.keys.of(topic)
        if "made" in load(name).args:
            named["made"] = int(maker is not None)
        with self._lanes.lane(topic) as lane:
            lane.number += 1
            answer = await self._run(
                name,
                keys,
                {"call": lane.number, "by": brief(by), **named},
                lane=lane,
                archive=archive,
                maker=maker,
            )
        return Settled(answer.decode())
