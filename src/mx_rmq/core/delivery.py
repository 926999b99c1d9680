"""A delivery: one message in the hands of a handler."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

from mx_rmq.core.durations import SHORTEST, Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.status import ProgressNote

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from mx_rmq.core.outgoing import ProduceOptions


class Delivery:
    """What a handler can know apart from its payload. Times are server time, seconds since 1970."""

    __slots__ = (
        "_extend",
        "_once",
        "_progress",
        "_steps",
        "attempt",
        "created_at",
        "deadline",
        "fence",
        "headers",
        "id",
        "key",
        "payload",
        "subscription",
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
        steps: Callable[[], Any] | None = None,
        subscription: str | None = None,
    ) -> None:
        self.id = id
        self.topic = topic
        self.subscription = subscription
        """Which subscription of the topic got this copy; None: the handler has none."""
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
        self._once = False  # whether the block of `once` has begun, and has not failed
        self._progress = progress
        self._steps = steps

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

    def once(self, session: Any = None, *, using: str | None = None) -> Any:
        """Commit the work of this message once: `async with delivery.once(session):`.

        The block is a transaction, which also records the message. It commits at the end of the
        block. If the message is recorded already, the block does not run: this raises AlreadyDone,
        and the message completes. `session`: of SQLAlchemy, or a connection; `with` for a sync one.
        `using`: a database of Django, instead.
        """
        # imported when it is called: it needs SQLAlchemy or Django, and the core knows neither
        return import_module("mx_rmq.outbox.inbox").once(self, session, using=using)

    # more than one step

    def step(self, name: str, function: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        """Call a function once per message, and return its value. Await this.

        The value is kept with the message: when the handler runs again, it is returned without a
        call. It must have a JSON form, in which it is returned every time. A plain function is
        called in a thread. Two steps of a message need different names.
        """
        made: Coroutine[Any, Any, Any] = self._work("step").step(name, function, *args)
        return made

    def sleep(self, name: str, seconds: Seconds) -> Coroutine[Any, Any, None]:
        """Sleep without holding a slot or a lease, and without counting an attempt. Await this.

        The handler ends here. When the time has passed it runs again from the start; finished
        steps return what was kept.
        """
        made: Coroutine[Any, Any, None] = self._work("sleep").sleep(name, seconds)
        return made

    def wait(
        self, name: str, timeout: Seconds | None = None, type: Any = Any
    ) -> Coroutine[Any, Any, Any]:
        """Wait for `mq.signal(topic, id, name, value)`, and return the value as `type`. Await this.

        Like `sleep`, this ends the handler; it runs again when the signal has arrived, or raises
        TimeoutError here when the timeout has passed. A signal that arrived earlier is not lost.
        """
        made: Coroutine[Any, Any, Any] = self._work("wait").wait(name, timeout, type)
        return made

    def produce(
        self,
        topic: str,
        payload: Any,
        *,
        id: str | None = None,
        key: str | None = None,
        **options: Unpack[ProduceOptions],
    ) -> str:
        """Produce a message when this one completes, and return its id. Not awaited.

        Nothing is produced if the handler fails. However often the handler runs, the message is
        produced once: its id is made of this message's id.
        """
        made: str = self._work("produce").produce(topic, payload, options, id=id, key=key)
        return made

    @property
    def results(self) -> list[Any]:
        """What the messages in `after` returned, in their order; None for a dead one."""
        found: list[Any] = self._work("results").results
        return found

    def _work(self, what: str) -> Any:
        if self._steps is None:
            raise InvalidInput(f"delivery.{what} works only while a worker runs the handler")
        return self._steps()

    def __repr__(self) -> str:
        return f"<Delivery {self.id} of {self.topic}, attempt {self.attempt}, fence {self.fence}>"
