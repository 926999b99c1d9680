"""What a worker holds: messages that are leased to it, and batches of them while a handler runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.core.message import Message
    from mx_rmq.core.outcome import Outcome
    from mx_rmq.runtime.message_steps import MessageSteps
    from mx_rmq.runtime.slots import TopicSlots
    from mx_rmq.store.results import Leased


class Stopped(Enum):
    """Why a handler was interrupted."""

    TIMEOUT = "it took longer than its timeout"
    LEASE_LOST = "its lease is lost"
    ABORTED = "an operator aborted it"
    SHUTDOWN = "the worker stops"
    NO_THREAD = "no thread could be started for it"


@dataclass(slots=True, eq=False, repr=False)  # a repr would put payloads into logs
class HeldMessage:
    """A message that is leased to this worker. Times are monotonic."""

    topic: TopicSlots
    leased: Leased
    taken_at: float
    extended_at: float  # when the lease was last known to have its full length
    message: Message | None = None  # None until it is decoded
    started_at: float | None = None
    ended_at: float | None = None
    interrupt: Callable[[], object] | None = None  # interrupts the handler while it runs
    stopped: Stopped | None = None
    outcome: Outcome | None = None  # None until it is decided
    settling: bool = False  # the outcome is on its way to the server
    unsure: bool = False  # a settling call was sent and never answered
    steps: MessageSteps | None = None  # None: it has none so far

    @property
    def is_lost(self) -> bool:
        """Whether its handler was interrupted because the message is no longer ours."""
        return self.stopped in (Stopped.LEASE_LOST, Stopped.ABORTED)

    def stop(self, why: Stopped, *, again: bool = False) -> None:
        """Interrupt the handler if it runs: once, for the first reason, or `again`."""
        if self.interrupt is not None and (again or self.stopped is None):
            self.stopped = self.stopped or why
            self.interrupt()


class HeldBatch:
    """The messages of one call, while it runs."""

    def __init__(self, topic: TopicSlots, messages: list[HeldMessage]) -> None:
        self.topic = topic
        self.started_at = time.monotonic()
        self.unsettled: dict[HeldMessage, None] = dict.fromkeys(messages)
        self.items: list[HeldMessage] = []  # those that the handler gets, in order
        self.interrupt: Callable[[], object] | None = None  # interrupts the call while it runs
        self.stopped: Stopped | None = None  # why the whole call was interrupted
        self._lost = 0  # messages that were lost while it runs

    def stop(self, why: Stopped, *, again: bool = False) -> None:
        """Interrupt the call if it runs: once, for the first reason, or `again`."""
        if self.interrupt is not None and (again or self.stopped is None):
            self.stopped = self.stopped or why
            for held in self.items:
                held.stopped = held.stopped or why
            self.interrupt()

    def item_lost(self) -> None:
        """Interrupt the call if no message is ours any more; called once for each that is lost."""
        self._lost += 1
        if self._lost >= len(self.items):
            self.stop(Stopped.LEASE_LOST)
