"""A delivery: one message in the hands of a handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mx_rmq.core.durations import SHORTEST, Seconds, as_seconds
from mx_rmq.core.status import ProgressNote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Delivery:
    """What a handler can know apart from its payload. Times are server time, seconds since 1970."""

    __slots__ = (
        "_extend",
        "_progress",
        "attempt",
        "created_at",
        "deadline",
        "fence",
        "headers",
        "id",
        "key",
        "payload",
        "topic",
    )

    def __init__(
        self,
        *,
        id: str,
        topic: str,
        payload: Any,
        attempt: int,
        fence: int,
        headers: Mapping[str, str],
        created_at: float,
        deadline: float | None,
        extend: Callable[[float], float | None],
        key: str | None = None,
        progress: Callable[[ProgressNote], None] | None = None,
    ) -> None:
        self.id = id
        self.topic = topic
        self.key = key
        """As produced; None: the message has no key."""
        self.payload = payload
        """The decoded payload, of the type that the handler asks for."""
        self.attempt = attempt
        """1 for the first attempt; failed attempts and crashes count."""
        self.fence = fence
        """Grows with every delivery of the message, so a resource can refuse an older one."""
        self.headers = headers
        self.created_at = created_at
        self.deadline = deadline
        """When the handler times out; None: it has no timeout."""
        self._extend = extend
        self._progress = progress

    def extend(self, seconds: Seconds) -> None:
        """Give the handler this much time from now. The worker extends its lease in any case."""
        self.deadline = self._extend(as_seconds("extend: ", seconds, SHORTEST))

    def progress(self, share: float | None = None, note: str = "") -> None:
        """Report how far the handler is: a share from 0 to 1 (None: as before), and a note.

        Never blocks; may be called in any thread. `mq.status` and `mq.watch` show the latest report
        of this attempt within a second.
        """
        report = ProgressNote.of(share, note)
        if self._progress is not None:
            self._progress(report)

    def __repr__(self) -> str:
        return f"<Delivery {self.id} of {self.topic}, attempt {self.attempt}, fence {self.fence}>"
