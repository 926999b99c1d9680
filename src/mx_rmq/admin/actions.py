"""What operators do to single messages: requeue, edit, discard, cancel, abort and repair.

An archived message is requeued as it was, or with another payload. With another payload, even an
unreadable record can be requeued: it keeps the fields that can be read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.admin.fanout import ask_for
from mx_rmq.admin.models import Cancelled, Repair
from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError, InvalidInput, NewerRecord
from mx_rmq.core.message import MAX_COST, VERSION, Failure, Message, State
from mx_rmq.core.names import check_key
from mx_rmq.core.partition import topic_of
from mx_rmq.core.text import shown, storable
from mx_rmq.store.quarantine import read
from mx_rmq.store.results import Settled
from mx_rmq.store.wait_faults import WaitFault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.store import Store
    from mx_rmq.store.messages import Found
    from mx_rmq.store.quarantine import QuarantineReason

EDITED: Final = "with another payload"  # what the history says about an edited message

_KEPT: Final = (
    *("created_at", "priority", "max_attempts", "retry", "headers", "errors"),
    *("key", "cost"),
)
_TYPES: Final = {one.name: one.type for one in msgspec.structs.fields(Message) if one.name in _KEPT}
"""Fields to keep of a record that cannot be read as a whole, each on its own."""


@dataclass(frozen=True, slots=True)
class Actions:
    """The actions of one operator, whose name (`by`) the history shows."""

    store: Store
    by: str

    async def find_archived(
        self, parts: Sequence[str], id: str, states: Sequence[State], seen: float | None
    ) -> tuple[str, Found] | None:
        """Return a message of these archives and its partition.

        Refuse it if it was not archived at `seen`, seconds; None: whenever that was.
        """

        async def find(part: str) -> Found | None:
            for state in states:
                if found := await self.store.views.pages.find_archived(part, state, id):
                    return found
            return None

        archived = await ask_for(id, parts, find)
        if archived and seen is not None and archived[1].archived != round(seen * 1000):
            raise InvalidInput(
                f"message {id!r:.80} is no longer the one you saw: "
                "another message with this id was archived since"
            )
        return archived

    async def requeue(self, part: str, found: Found) -> bool:
        """Requeue an archived message; refuse one that no worker could read."""
        try:
            message = _decode(part, found)
        except DecodeError as error:
            raise _refused(found.id, "requeued", error) from error
        return await self._requeue(part, found, message.revived())

    async def edit(self, part: str, found: Found, payload: Any) -> bool:
        """Requeue an archived message with another payload; refuse one that produce refuses."""
        encoded = codec.encode_payload(payload, self.store.limits.max_payload)
        try:
            message = _decode(part, found)
        except NewerRecord as error:  # the fields that we do not know would be lost
            raise _refused(found.id, "requeued", error) from error
        except DecodeError:
            message = _salvaged(topic_of(part), found)
        message = msgspec.structs.replace(message.revived(), payload=encoded)
        return await self._requeue(part, found, message, why=EDITED)

    async def _requeue(self, part: str, found: Found, message: Message, why: str = "") -> bool:
        if not _can_stand_in_line(message.key, message.cost):
            raise InvalidInput(
                f"message {found.id!r:.80} cannot be requeued: key={shown(message.key)} or "
                f"cost={shown(message.cost)} is not one that produce accepts"
            )
        at, by = found.archived or 0, self.by
        done = await self.store.requeue_message(
            part, found.state, found.id, archived=at, message=message, why=why, by=by
        )
        return bool(done)

    async def discard(self, part: str, found: Found) -> bool:
        """Delete an archived message."""
        at, by = found.archived or 0, self.by
        return bool(
            await self.store.discard_message(part, found.state, found.id, archived=at, by=by)
        )

    async def cancel(self, part: str, id: str) -> Cancelled:
        """Remove a pending or delayed message."""
        answer = await self.store.cancel_message(part, id, by=self.by)
        if answer is Settled.PROCESSING:
            return Cancelled.PROCESSING
        return Cancelled.DONE if answer else Cancelled.ABSENT

    async def abort(self, part: str, id: str, reason: str) -> bool:
        """Dead-letter a pending, delayed or processing message; refuse one that cannot be read."""
        return await self.dead_letter(part, id, f"aborted: {storable(reason) or 'no reason given'}")

    async def dead_letter(self, part: str, id: str, reason: str) -> bool:
        """Dead-letter a live message for a reason; refuse one that cannot be read."""

        async def apply(message: Message, seen: bytes) -> Settled:
            message = msgspec.structs.replace(message, reason=reason)
            return await self.store.abort_message(part, message=message, seen=seen, by=self.by)

        return await self._as_seen(part, id, "aborted", apply)

    async def reschedule(self, part: str, id: str, *, delay: int, at: int | None) -> bool:
        """Give a pending or delayed message another due time; refuse one that cannot be read."""

        async def apply(message: Message, seen: bytes) -> Settled:
            return await self.store.reschedule_message(
                part, message=message, seen=seen, delay=delay, at=at
            )

        return await self._as_seen(part, id, "rescheduled", apply)

    async def _as_seen(
        self,
        part: str,
        id: str,
        done: str,
        apply: Callable[[Message, bytes], Awaitable[Settled]],
    ) -> bool:
        """Apply a change to a live message; try again if its record changed meanwhile."""
        while (seen := await self.store.views.record(part, id)) is not None:
            try:
                message = codec.decode(seen, topic_of(part), id)
            except DecodeError as error:
                raise _refused(id, done, error) from error
            answer = await apply(message, seen)
            if answer is not Settled.CHANGED:
                return bool(answer)
        return False

    async def repair(self, part: str, *, dry_run: bool) -> list[Repair]:
        """Bring every message of a partition into exactly one state."""
        found = await self.store.audit.examine(part)
        if found.wrong_types:
            return [
                Repair(part, "", f"not repaired: {one.what}. Rename or delete that key")
                for one in found.violations
            ]
        done = await self.store.repair_topic(
            part, least=found.token, recount=found.miscounted, dry_run=dry_run
        )
        repairs = [Repair(part, "", words) for words in done]
        for id in found.ids:
            shown = id.decode("utf-8", "backslashreplace")
            done = await self.store.repair_message(part, id, dry_run=dry_run, by=self.by)
            repairs += [Repair(part, shown, words) for words in done]
        suspects = [one.suspect for one in found.lines]
        codes = await self.store.repair_lines(part, suspects, dry_run=dry_run)
        for one, code in zip(found.lines, codes, strict=True):
            if code:  # not right by now
                repairs.append(Repair(part, one.id, one._replace(code=code).repair))
        # A message that was brought back into one state may wait no longer.
        ids = list(dict.fromkeys((*(one.id for one in found.waits), *found.ids)))
        codes = await self.store.repair_waits(part, ids, dry_run=dry_run)
        for id, code in zip(ids, codes, strict=True):
            shown = id.decode("utf-8", "backslashreplace")
            repairs += [Repair(part, shown, words) for words in WaitFault(id, code).repairs]
        return repairs


def readable(part: str, found: Found) -> Message | None:
    """Return a message whose record can be read, else None."""
    with suppress(DecodeError):
        return _decode(part, found)
    return None


def _decode(part: str, found: Found) -> Message:
    return codec.decode(split(found)[1], topic_of(part), found.id)


def _refused(id: str, done: str, error: DecodeError) -> InvalidInput:
    cannot = f"message {id!r:.80} cannot be {done}"
    if isinstance(error, NewerRecord):
        return InvalidInput(f"{cannot} by this release: {error.reason}. Upgrade it, then try again")
    then = "discard it" if done == "requeued" else "cancel it"
    return InvalidInput(
        f"{cannot}, because no worker could read it: {error.reason}. Check its bytes, then {then}"
    )


def _salvaged(topic: str, found: Found) -> Message:
    """Return a message with what can be read of its broken record."""
    about, data = split(found)
    fields = _readable_fields(data)
    if about is not None:
        error = Failure(
            type=about.error_type, text=about.error, at=found.archived or 0, worker=about.worker
        )
        fields["errors"] = [*fields.get("errors", []), error]
    fields.setdefault("created_at", found.archived or 0)
    message = Message(v=VERSION, id=found.id, topic=topic, payload=msgspec.Raw(b"null"), **fields)
    codec.encode(message)  # refuses an id that no record can hold
    return message


def _readable_fields(data: bytes) -> dict[str, Any]:
    try:
        record = msgspec.json.decode(data)
    except (ValueError, RecursionError, MemoryError):
        return {}
    fields: dict[str, Any] = {}
    for name, type in _TYPES.items() if isinstance(record, dict) else ():
        with suppress(KeyError, msgspec.ValidationError):
            fields[name] = msgspec.convert(record[name], type)
    if not _can_stand_in_line(fields.get("key"), fields.get("cost", 1)):
        fields.pop("key", None)
        fields.pop("cost", None)
    return fields


def _can_stand_in_line(key: str | None, cost: int) -> bool:
    """Return whether produce would accept them: a record may come from another program."""
    try:
        return (key is None or bool(check_key(key))) and 1 <= cost <= MAX_COST
    except InvalidInput:
        return False


def split(found: Found) -> tuple[QuarantineReason | None, bytes]:
    """Return why a message is quarantined (None if it is not) and its record."""
    if found.state is State.QUARANTINED:
        with suppress(DecodeError):  # then all of it counts as the record
            return read(found.data)
    return None, found.data
