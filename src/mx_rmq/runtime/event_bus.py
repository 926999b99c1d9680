"""Hands events to subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

from mx_rmq.core.events import Event
from mx_rmq.safe_log import defer_exit, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

logger = get_logger(__name__)

_ALL: Final[tuple[type, ...]] = get_args(Event)


class Events:
    """Subscribers of events. They are called at once, one after the other, and must not block."""

    def __init__(self) -> None:
        self._subscribers: tuple[tuple[tuple[type, ...], Callable[[Any], None]], ...] = ()
        self.wanted: frozenset[type] = frozenset()
        """The kinds of events that have a subscriber. The frequent others need not be made."""
        self.counters: tuple[Callable[[str, list[float]], None], ...] = ()
        """Who counts completed messages: far cheaper than an event for each."""

    def subscribe(self, callback: Callable[[Any], None], *kinds: type) -> Callable[[], None]:
        """Call back with each event of these kinds, or of all; return how to end that."""
        entry = (kinds or (object,), callback)
        self._change((*self._subscribers, entry))

        def unsubscribe() -> None:
            self._change(tuple(one for one in self._subscribers if one is not entry))

        return unsubscribe

    def count_completed(self, callback: Callable[[str, list[float]], None]) -> None:
        """Call back for each call that completed messages: with the topic, and how many seconds
        each handler took. Comes before the events of these messages."""
        self.counters = (*self.counters, callback)

    def _change(
        self, subscribers: tuple[tuple[tuple[type, ...], Callable[[Any], None]], ...]
    ) -> None:
        self._subscribers = subscribers
        kinds = tuple(kind for kinds, _ in subscribers for kind in kinds)
        self.wanted = frozenset(one for one in _ALL if issubclass(one, kinds))

    def emit(self, event: Event) -> None:
        """Call the subscribers. What one of them raises is logged and goes no further.

        That holds for every exception, `CancelledError` included. SystemExit and KeyboardInterrupt
        end the event loop afterwards, and with it the program.
        """
        for kinds, callback in self._subscribers:
            if isinstance(event, kinds):
                try:
                    callback(event)
                except BaseException as error:
                    logger.exception("a subscriber failed on %s", type(event).__name__)
                    defer_exit(error)

    def emit_completed(self, topic: str, seconds: list[float]) -> None:
        """Call those who count, as `emit` calls subscribers."""
        for callback in self.counters:
            try:
                callback(topic, seconds)
            except BaseException as error:
                logger.exception("a subscriber failed on completed messages")
                defer_exit(error)
