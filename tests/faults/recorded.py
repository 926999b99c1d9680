"""A store that records which messages its process got and how it settled them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mx_rmq.store import Store
from tests.faults.history import Journal, What

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from mx_rmq.core.message import Message
    from mx_rmq.store.quarantine import QuarantineReason
    from mx_rmq.store.results import (
        Claim,
        Dispatched,
        HandedBack,
        Held,
        RetryRequest,
        Settled,
        TimedOut,
    )

T = TypeVar("T", "list[Settled]", "Settled")


class RecordedStore(Store):
    """The store of a worker of the lab; its process sets the journal."""

    journal: ClassVar[Journal]
    extends_after: ClassVar[float] = 0.0
    """Seconds that each extension of leases is held up."""

    async def extend_lease(
        self, topic: str, worker: str, held: Sequence[Held], *, lease: int
    ) -> list[Claim]:
        await asyncio.sleep(self.extends_after)
        return await super().extend_lease(topic, worker, held, lease=lease)

    async def dispatch_message(self, topic: str, worker: str, **named: Any) -> Dispatched:
        asked_at = time.monotonic()
        taken = await super().dispatch_message(topic, worker, **named)
        if taken.messages:
            self.journal.note(
                What.LEASED,
                ids=[one.id for one in taken.messages],
                tokens=[one.token for one in taken.messages],
                since=asked_at,
            )
        return taken

    async def handle_timeout_message(self, topic: str, monitor: str, **named: Any) -> TimedOut:
        asked_at = time.monotonic()
        taken = await super().handle_timeout_message(topic, monitor, **named)
        if taken.messages:
            self.journal.note(
                What.TAKEN_OVER,
                ids=[one.id for one in taken.messages],
                tokens=[one.token for one in taken.messages],
                words=[one.lost_by for one in taken.messages],
                since=asked_at,
            )
        return taken

    async def complete_message(
        self, topic: str, worker: str, held: Sequence[Held]
    ) -> list[Settled]:
        call = super().complete_message(topic, worker, held)
        return await self._recorded("complete_message", held, call)

    async def retry_message(
        self, topic: str, worker: str, retries: Sequence[RetryRequest]
    ) -> list[Settled]:
        call = super().retry_message(topic, worker, retries)
        return await self._recorded("retry_message", [one.claim for one in retries], call)

    async def release_message(
        self, topic: str, worker: str, handed_back: Sequence[HandedBack]
    ) -> list[Settled]:
        call = super().release_message(topic, worker, handed_back)
        return await self._recorded("release_message", [one.claim for one in handed_back], call)

    async def move_to_dlq(self, topic: str, worker: str, claim: Held, message: Message) -> Settled:
        call = super().move_to_dlq(topic, worker, claim, message)
        return await self._recorded("move_to_dlq", [claim], call)

    async def handle_parse_error(
        self, topic: str, worker: str, claim: Held, error: QuarantineReason
    ) -> Settled:
        call = super().handle_parse_error(topic, worker, claim, error)
        return await self._recorded("handle_parse_error", [claim], call)

    async def _recorded(self, script: str, held: Sequence[Held], answer: Awaitable[T]) -> T:
        ids, tokens = [one.id for one in held], [one.token for one in held]
        call = self.journal.next_call()
        self.journal.note(What.CALL, call=call, script=script, ids=ids, tokens=tokens)
        found = await answer
        words = [str(one) for one in found] if isinstance(found, list) else [str(found)]
        self.journal.note(
            What.ANSWER, call=call, script=script, ids=ids, tokens=tokens, words=words
        )
        return found
