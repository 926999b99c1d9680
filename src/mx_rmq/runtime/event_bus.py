"""Hands events to subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mx_rmq.safe_log import defer_exit, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.core.events import Event

logger = get_logger(__name__)


class Events:
    """Subscribers of events. They are called at once, one after the other, and must not block."""

    def __init__(self) -> None:
        self._subscribers: tuple[tuple[tuple[type, ...], Callable[[Any], None]], ...] = ()

    def subscribe(self, callback: Callable[[Any], None], *kinds: type) -> Callable[[], None]:
        """Call back with each event of these kinds, or of all; return how to end that."""
        entry = (kinds or (object,), callback)
        self._subscribers = (*self._subscribers, entry)

        def unsubscribe() -> None:
            self._subscribers = tuple(one for one in self._subscribers if one is not entry)

        return unsubscribe

    def wants(self, kind: type) -> bool:
        """Return whether this kind has a subscriber; without one, no event need be made."""
        return any(issubclass(kind, kinds) for kinds, _ in self._subscribers)

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
