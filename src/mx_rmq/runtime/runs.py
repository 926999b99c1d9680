"""Runs: the messages of one `produce_many`, by topic; and what is told if not all are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mx_rmq.core.errors import MxRmqError, NotConfirmed, PartlyProduced, ProduceUnknown
from mx_rmq.core.names import check_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.confirm import Confirm
    from mx_rmq.core.message import Draft
    from mx_rmq.runtime.producer import Producer, Stored


class Outbound(NamedTuple):
    """One message, ready to go."""

    topic: str
    draft: Draft
    key: str | None
    confirm: Confirm | None


class Run(NamedTuple):
    """Messages that go out together: of one topic, all with a key or none."""

    topic: str
    drafts: Sequence[Draft]
    keys: Sequence[str] | None
    confirm: Confirm | None


def runs_of(messages: Sequence[Outbound]) -> list[Run]:
    """Part messages into runs; their order stays."""
    runs: list[Run] = []
    alike: list[Outbound] = []
    for one in messages:
        if alike and _kind(one) != _kind(alike[0]):
            runs.append(_run(alike))
            alike = []
        alike.append(one)
    return [*runs, _run(alike)] if alike else runs


async def produce_runs(producer: Producer, runs: Sequence[Run]) -> list[str]:
    """Produce runs one after the other; return the ids of all messages, in order.

    PartlyProduced: a call failed after others had stored something. NotConfirmed: all are stored,
    but some did not come as far as was asked for.
    """
    for run in runs:
        check_topic(run.topic)
    ledger = _Ledger(sum(len(run.drafts) for run in runs))
    first = 0
    for run in runs:
        produced = producer.produce_all(run.topic, run.drafts, keys=run.keys, confirm=run.confirm)
        try:
            async for stored in produced:
                ledger.note(first, stored)
        except MxRmqError as error:
            if not ledger.stored:
                raise
            raise ledger.partly(error) from error
        first += len(run.drafts)
    if ledger.unconfirmed is not None:
        raise ledger.unconfirmed.of(ledger.short)
    return ledger.stored


class _Ledger:
    """What has become of the messages of some runs."""

    def __init__(self, count: int) -> None:
        self._ids: list[str | None] = [None] * count
        self._short: set[str] = set()
        self.unconfirmed: NotConfirmed | None = None
        """The last call whose messages did not come as far as was asked for."""

    def note(self, first: int, stored: Stored) -> None:
        """Note what a call stored of the run that begins at this place."""
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


def _kind(one: Outbound) -> tuple[str, Confirm | None, bool]:
    return one.topic, one.confirm, one.key is None


def _run(alike: list[Outbound]) -> Run:
    keys = [one.key for one in alike if one.key is not None]
    first = alike[0]
    return Run(first.topic, [one.draft for one in alike], keys or None, first.confirm)
