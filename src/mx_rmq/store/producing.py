"""The transitions that make messages, and the topics that they go to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq.core import codec
from mx_rmq.core.errors import (
    InvalidInput,
    NotConfirmed,
    OutcomeUnknown,
    PayloadTooLarge,
    ProduceUnknown,
    QueueFull,
    ServerFull,
)
from mx_rmq.core.message import Draft, Priority
from mx_rmq.core.names import check_id
from mx_rmq.core.partition import topic_of
from mx_rmq.store.answers import Placed, Produced, Ticked
from mx_rmq.store.call import RECEIPT_MS
from mx_rmq.store.lane import maker_of
from mx_rmq.store.script import load
from mx_rmq.store.scripted import check_batch, check_range, to_ms
from mx_rmq.store.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.confirm import Confirm
    from mx_rmq.store.keys import TopicKeys
    from mx_rmq.store.lane import Lane
    from mx_rmq.store.script import Value
    from mx_rmq.store.wire import Check

MAX_ENVELOPE: Final = 65_536
"""Bytes of a record beside its payload."""

_CLOSED: Final = b"9007199254740992 full 9007199254740992"
"""The receipt of a lane that made nothing and never will: no call has a higher number, and all of
its messages were refused."""

_PLACED: Final = {ord(placed): placed for placed in Placed}
"""Answers by the letter that the scripts give for each message."""


class Prepared(NamedTuple):
    """A produce that is ready to be sent."""

    name: str
    keys: TopicKeys
    lane: Lane
    ids: list[str]
    items: list[Value]
    makers: list[str]
    """The receipts of the lanes that made ids which callers give as their own."""


class Producing(Topics):
    """New messages: pending, delayed, or of a cron's tick."""

    def draft(self, payload: Any, **fields: Any) -> Draft:
        """Make a message to produce, its payload encoded within the store's limit."""
        return Draft(payload=codec.encode_payload(payload, self.limits.max_payload), **fields)

    # new -> pending, new -> delayed

    async def produce_normal_message(self, topic: str, drafts: Sequence[Draft]) -> list[Produced]:
        """Store new messages and put them behind those that are pending."""
        return await self.produce(self.prepare("produce_normal_message", topic, drafts))

    async def produce_delay_message(self, topic: str, drafts: Sequence[Draft]) -> list[Produced]:
        """Store new messages that wait for their due time."""
        return await self.produce(self.prepare("produce_delay_message", topic, drafts))

    def prepare(self, name: str, topic: str, drafts: Sequence[Draft]) -> Prepared:
        """Get a call of one of the two scripts above ready; the server need not be waited for."""
        keys = self.keys.of(topic)
        check_batch(drafts)
        script = load(name)
        delayed = "delay_ms" in script.each
        makers: list[str] = []
        ids: list[str] = []
        items: list[Value] = []
        lane = self._lanes.lane(topic)
        try:
            for offset, draft in enumerate(drafts, 1):
                if not delayed and (draft.delay or draft.at is not None):
                    raise InvalidInput("a draft with delay or at goes to produce_delay_message")
                id, how, maker = draft.id, "", 0  # how: see produce_normal_message.lua
                if id is None:
                    id = lane.id_at(offset)
                    if draft.priority != Priority.NORMAL or draft.ttl is not None:
                        how = f"0 0 {draft.priority}"
                else:
                    if lane_name := maker_of(check_id(id)):
                        makers.append(keys.receipt(lane_name))
                        maker = len(script.keys) + len(makers)
                    how = f"1 {maker} {draft.priority}"
                if draft.ttl is not None:
                    how = f"{how} {draft.ttl}"
                ids.append(id)
                items += (id, how, self._record(draft, topic, id))
                if delayed:
                    items += (draft.delay, "" if draft.at is None else draft.at)
        except BaseException:
            lane.give_back()
            raise
        lane.number += len(drafts)
        return Prepared(name, keys, lane, ids, items, makers)

    async def produce(
        self, call: Prepared, confirm: Confirm | None = None, check: Check | None = None
    ) -> list[Produced]:
        """Make a prepared call; with `confirm`, wait until the messages have come that far.

        The check may raise Withdrawn, until the call is sent for the first time.
        """
        name, keys, lane, ids, items, makers = call
        with lane:
            if not ids:
                return []
            try:
                if topic_of(keys.topic) not in self.partitions:
                    await self.register(topic_of(keys.topic))
                script, names, args = self._call(
                    name,
                    keys,
                    {
                        "now_ms": self._now(),
                        "call": lane.number,
                        "dedup_ms": to_ms(self.limits.dedup),
                        "max_pending": self._share(keys.topic, self.limits.max_pending),
                    },
                    items,
                    lane=lane,
                    extra_keys=makers,
                )
                missing = ""
                if confirm is None:
                    answer = await self._caller.run(script, names, args, check)
                else:
                    run = self._caller.run_confirmed
                    answer, missing = await run(script, names, args, confirm, check)
            except OutcomeUnknown as error:
                raise ProduceUnknown(str(error), ids) from error
            except ServerFull as error:
                why = await self.memory.explain(keys.topic, self.partitions)
                raise ServerFull(f"{name}: {why}") from error
            if answer.startswith(b"full"):
                raise QueueFull(topic_of(keys.topic), self.limits.max_pending)
        if missing and confirm is not None:
            raise NotConfirmed(missing, confirm.level, confirm.within, ids)
        return [Produced(id, _PLACED[code]) for id, code in zip(ids, answer, strict=True)]

    async def has_made_ids(self, topic: str, lane: str) -> bool:
        """Say whether a lane has made ids for a topic or partition in the last ten minutes.

        If not, it never will: a first call that is still on its way is refused from now on.
        """
        receipt = self.keys.of(topic).receipt(lane)
        if await self._caller.command("SET", receipt, _CLOSED, "NX", "PX", RECEIPT_MS):
            return False
        return bool(await self._caller.command("GET", receipt) != _CLOSED)

    async def produce_cron_message(
        self, topic: str, tick: int, draft: Draft | None = None
    ) -> Ticked:
        """Make the message of a tick, if it is due and nobody has; without a draft, only look.

        Repeat it as you like, also when its outcome is unknown: a tick fires once.
        """
        keys = self.keys.of(topic)
        check_range("tick", tick, 0)
        id, record, priority, ttl = f"cron-{tick}", b"", Priority.NORMAL, None
        if draft is not None:
            if draft.delay or draft.at is not None:
                raise InvalidInput("a tick says when its message is due, not delay or at")
            id = id if draft.id is None else check_id(draft.id)
            record, priority, ttl = self._record(draft, topic, id), draft.priority, draft.ttl
        if topic not in self.partitions:
            await self.register(topic)
        now, last, fired = await self._run(
            "produce_cron_message",
            keys,
            {
                "now_ms": self._now(),
                "id": id,
                "tick_ms": tick,
                "record": record,
                "priority": priority,
                "live_ms": "" if ttl is None else ttl,
            },
        )
        return Ticked(int(now), int(last) if last else None, id if fired else None)

    def _record(self, draft: Draft, topic: str, id: str) -> bytes:
        """Return a new record as scripts take it: its first brace comes with the server's time."""
        record = codec.encode(draft.message(topic_of(topic), id))
        if len(record) > min(self.limits.max_payload, MAX_ENVELOPE):  # else it breaks no limit
            size = len(draft.payload)
            if size > self.limits.max_payload:
                raise PayloadTooLarge(size, self.limits.max_payload)
            if len(record) - size > MAX_ENVELOPE:
                raise InvalidInput(
                    f"headers and settings take {len(record) - size:,} bytes; "
                    f"the limit is {MAX_ENVELOPE:,}"
                )
        return record[1:]
