"""What one `produce_many` sends, and what is told if not everything is stored."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from mx_rmq.core.errors import MxRmqError, NotConfirmed, PartlyProduced, ProduceUnknown
from mx_rmq.core.names import check_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.confirm import Confirm
    from mx_rmq.core.message import Message
    from mx_rmq.runtime.producer import Producer, Stored


async def produce_many(
    producer: Producer,
    messages: Sequence[Message],
    keys: Sequence[str | None],
    confirms: Sequence[Confirm | None],
) -> list[str]:
    """Produce messages in order, each with its key and its confirmation; return their ids.

    Messages of one topic that follow each other go out together. PartlyProduced: a call failed
    after others had stored something. NotConfirmed: all are stored, but some did not come as far
    as was asked for.
    """
    kinds = [
        (one.topic, key is None, confirm)
        for one, key, confirm in zip(messages, keys, confirms, strict=True)
    ]
    for topic in {topic for topic, _, _ in kinds}:
        check_topic(topic)
    ledger = _Ledger(len(messages))
    for (topic, keyless, confirm), run in groupby(range(len(messages)), kinds.__getitem__):
        places = [*run]
        first, end = places[0], places[-1] + 1
        own = None if keyless else [key for key in keys[first:end] if key is not None]
        produced = producer.produce_all(topic, messages[first:end], keys=own, confirm=confirm)
        try:
            async for stored in produced:
                ledger.note(first, stored)
        except MxRmqError as error:
            if not ledger.stored:
                raise
            raise ledger.partly(error) from error
    if ledger.unconfirmed is not None:
        raise ledger.unconfirmed.of(ledger.short)
    return ledger.stored


class _Ledger:
    """What has become of the messages."""

    def __init__(self, count: int) -> None:
        self._ids: list[str | None] = [None] * count
        self._short: set[str] = set()
        self.unconfirmed: NotConfirmed | None = None
        """The last call whose messages did not come as far as was asked for."""

    def note(self, first: int, stored: Stored) -> None:
        """Note what a call stored of the messages from this place on."""
        places = stored.places
        if isinstance(places, range):
            self._ids[first + places.start : first + places.stop] = stored.ids
        else:
            for place, id in zip(places, stored.ids, strict=True):
                self._ids[first + place] = id
        if stored.unconfirmed is not None:
            self.unconfirmed = stored.unconfirmed
            self._short.update(stored.ids)

    @property
    def stored(self) -> list[str]:
        """The ids of all that is stored, in order."""
        return [id for id in self._ids if id is not None]

    @property
    def short(self) -> list[str]:
        """The ids of those that did not come as far as was asked for, in order."""
        return [id for id in self.stored if id in self._short]

    def partly(self, error: MxRmqError) -> PartlyProduced:
        """Say what is stored and what is not, after an error."""
        return PartlyProduced(
            str(error),
            self.stored,
            error.ids if isinstance(error, ProduceUnknown) else (),
            len(self._ids),
            places=[place for place, id in enumerate(self._ids) if id is not None],
            unconfirmed=self.short,
        )
