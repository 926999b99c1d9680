"""What only the head of a flow has: messages of the flow that may not have been produced yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mx_rmq.core import codec
from mx_rmq.core import steps as core_steps
from mx_rmq.core.errors import DecodeError
from mx_rmq.core.message import FAILED, State
from mx_rmq.core.partition import topic_of
from mx_rmq.store import quarantine

if TYPE_CHECKING:
    from mx_rmq.core.steps import Prerequisite
    from mx_rmq.store.store import Store
    from mx_rmq.store.waiter_calls import RawStatus


@dataclass(frozen=True, slots=True)
class Carried:
    """The messages that the head of a flow carries."""

    head: Prerequisite | None = None
    ids: frozenset[tuple[str, str]] | None = frozenset()
    """Partition and id of each. None: its record cannot be read, so any message may be among them,
    except the head itself."""
    failed: RawStatus | None = None
    """The head if it is dead or quarantined: its flow goes on when it is requeued."""

    def __contains__(self, source: Prerequisite) -> bool:
        if self.ids is None:
            return self.head is not None and source.signal != self.head.signal
        return (source.part, source.id) in self.ids


async def read_carried(store: Store, head: Prerequisite | None) -> Carried:
    """Read what the head of a flow carries. `head` None: the message is in no flow."""
    if head is None:
        return Carried()
    (status,) = await store.read_status(head.part, [head.id], live=True)
    if status is None or status.state is State.COMPLETED:
        return Carried()
    failed = status if status.state in FAILED else None
    try:
        record = status.data
        if status.state is State.QUARANTINED:
            _, record = quarantine.read(record)
        before = core_steps.read(codec.decode(record, topic_of(head.part), head.id)).before
    except DecodeError:  # a newer worker can read it, or it is or will be quarantined
        return Carried(head, None, failed)
    return Carried(head, frozenset((one.part, one.message.id) for one in before), failed)
