"""A batch: the messages that one call of a batch handler gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mx_rmq.core.durations import SHORTEST, Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mx_rmq.core.delivery import Delivery


class ItemFailed(Exception):
    """A message that a batch handler failed with a text: `batch.fail(3, "no such account")`."""


class Batch:
    """What a batch handler can know besides its payloads, and how it fails single messages.

    Message number `index` is the one whose payload is `events[index]`.
    """

    __slots__ = (
        "_deliver",
        "_deliveries",
        "_extend",
        "_is_lost",
        "_payloads",
        "deadline",
        "ended",
        "failed",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        payloads: Sequence[Any],
        *,
        deliver: Callable[[int], Delivery],
        is_lost: Callable[[int], bool],
        deadline: float | None,
        extend: Callable[[float], float | None],
    ) -> None:
        self.topic = topic
        self.deadline = deadline
        """When the call times out, in server time; None: it has no timeout."""
        self.failed: dict[int, BaseException] = {}
        """The messages that the handler failed with `fail`, and why."""
        self.ended = False
        """Whether the call is over: then no message can be failed any more."""
        self._payloads = tuple(payloads)
        self._deliver = deliver
        self._deliveries: tuple[Delivery, ...] | None = None
        self._is_lost = is_lost
        self._extend = extend

    def __len__(self) -> int:
        return len(self._payloads)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries)

    @property
    def deliveries(self) -> tuple[Delivery, ...]:
        """One per message: its id, key, attempt, headers, fence, and when it was produced."""
        if self._deliveries is None:
            self._deliveries = tuple(map(self._deliver, range(len(self))))
        return self._deliveries

    @property
    def payloads(self) -> list[Any]:
        """The payloads that the handler gets, in a new list."""
        if self._deliveries is None:
            return list(self._payloads)
        return [delivery.payload for delivery in self._deliveries]  # middleware may change them

    @property
    def lost(self) -> frozenset[int]:
        """Messages that are no longer ours: their lease is lost, or they were aborted.

        What the handler does with them does not count. It is interrupted only if all are lost.
        """
        return frozenset(filter(self._is_lost, range(len(self))))

    def fail(self, index: int, error: BaseException | str) -> None:
        """Fail one message, as if its handler had raised this error. The last error counts.

        Retry, Reject and Snooze work as if they were raised. May be called in any thread.
        """
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(self):
            raise InvalidInput(
                f"batch.fail: index {shown(index)} is not one of this batch, "
                f"which has the messages 0 to {len(self) - 1}"
            )
        if isinstance(error, str):
            error = ItemFailed(error)
        if not isinstance(error, BaseException):
            raise InvalidInput(f"batch.fail: {shown(error)} is neither an exception nor a text")
        if self.ended:
            raise InvalidInput("batch.fail: the handler of this batch has already ended")
        self.failed[index] = error

    def errors(self, raised: BaseException | None) -> Mapping[int, BaseException]:
        """Return the error of each failed message. `raised`: what the handler itself raised."""
        if raised is None:
            return self.failed
        return {**dict.fromkeys(range(len(self)), raised), **self.failed}

    def extend(self, seconds: Seconds) -> None:
        """Give the call this much time from now. The worker extends its leases in any case."""
        self.deadline = self._extend(as_seconds("extend: ", seconds, SHORTEST))

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} from {self.topic}>"
