"""One `produce_many`: in which calls its messages go out, and the error if some are not stored."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import (
    DuplicateMessage,
    MxRmqError,
    NotConfirmed,
    PartlyProduced,
    ProduceUnknown,
)
from mx_rmq.core.names import check_topic
from mx_rmq.runtime.producer import Stored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mx_rmq.core.confirm import Confirm
    from mx_rmq.core.duplicates import DuplicatePolicy
    from mx_rmq.core.message import Message
    from mx_rmq.runtime.producer import Producer

MAX_REPLACING: Final = 50  # calls at a time, if each replaces a message


async def produce_many(
    producer: Producer,
    messages: Sequence[Message],
    confirms: Sequence[Confirm | None],
    policies: Sequence[DuplicatePolicy | None],
) -> list[str]:
    """Produce messages in order, each with its confirmation and policy; return their ids.

    Consecutive messages of one topic go out together. PartlyProduced: a call failed after others
    had stored something. NotConfirmed: all are stored, but some were not confirmed in time. If an
    id must be free and is not, all other messages are stored first; then DuplicateMessage is
    raised, or PartlyProduced with that cause.
    """
    kinds = [
        (one.topic, confirm, policy is not None and policy.replaces)
        for one, confirm, policy in zip(messages, confirms, policies, strict=True)
    ]
    for topic in {topic for topic, *_ in kinds}:
        check_topic(topic)
    ids: list[str | None] = [None] * len(messages)
    late: set[str] = set()  # the ids that were not confirmed in time
    not_confirmed: NotConfirmed | None = None
    duplicates: dict[str, str] = {}
    try:
        for (topic, confirm, replaces), run in groupby(range(len(messages)), kinds.__getitem__):
            places = [*run]
            first, end = places[0], places[-1] + 1
            batch = messages[first:end]
            send = partial(_replace_all, producer) if replaces else producer.produce_all
            calls = send(topic, batch, confirm=confirm, policies=policies[first:end])
            async for stored in calls:
                duplicates.update(stored.duplicates)
                for place, id in zip(stored.places, stored.ids, strict=True):
                    ids[first + place] = id
                if stored.unconfirmed is not None:
                    not_confirmed = stored.unconfirmed
                    late.update(stored.ids)
        if duplicates:
            raise DuplicateMessage(duplicates)
    except MxRmqError as error:
        known = [id for id in ids if id is not None]
        if not known:
            raise
        raise PartlyProduced(
            str(error),
            known,
            error.ids if isinstance(error, ProduceUnknown) else (),
            len(messages),
            places=[place for place, id in enumerate(ids) if id is not None],
            unconfirmed=[id for id in known if id in late],
        ) from error
    produced = [id for id in ids if id is not None]  # all of them
    if not_confirmed is not None:
        raise not_confirmed.of([id for id in produced if id in late])
    return produced


async def _replace_all(
    producer: Producer,
    topic: str,
    messages: Sequence[Message],
    *,
    confirm: Confirm | None,
    policies: Sequence[DuplicatePolicy | None],
) -> AsyncIterator[Stored]:
    """Replace messages, one call each; yield what each call stored.

    Calls for different ids overlap. Of messages with the same id, the last one wins.
    """
    left = deque(range(len(messages)))
    while left:
        batch: dict[str, int] = {}
        while left and len(batch) < MAX_REPLACING and messages[left[0]].id not in batch:
            place = left.popleft()
            batch[messages[place].id] = place
        calls = [
            producer.produce(topic, messages[place], confirm=confirm, policy=policies[place])
            for place in batch.values()
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        failed: BaseException | None = None
        for (id, place), answer in zip(batch.items(), answers, strict=True):
            if isinstance(answer, NotConfirmed):
                yield Stored([place], [id], answer)
            elif isinstance(answer, BaseException):
                failed = failed or answer
            else:
                yield Stored([place], [id])
        if failed is not None:
            raise failed
