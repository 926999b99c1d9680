"""The abort listener: stops the handlers of messages that an operator has aborted.

The server tells it at once. If that notice is lost, or this user may not listen to channels, the
lease keeper finds out when it next extends the leases.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mx_rmq.runtime.held import Stopped
from mx_rmq.runtime.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.net.subscription import Subscription
    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.runtime.lifecycle import Lifecycle
    from mx_rmq.runtime.slots import Slots, TopicSlots
    from mx_rmq.store import Store

CHECK_EVERY: Final = 10.0
"""Seconds after which a silent connection is checked, and channels that are not heard are tried
again. The lease keeper asks the server no more often, so a shorter time would gain little."""

LOOK_AGAIN: Final = 0.5
"""Seconds after which we look once more for a message that we do not hold: the news of its abort
may have overtaken the reply of the dispatch."""

MAX_DIGITS: Final = 20  # of a token


class AbortListener:
    """Listens to the aborts of all topics of one worker."""

    def __init__(self, store: Store, slots: Slots, lifecycle: Lifecycle) -> None:
        self._store = store
        self._slots = slots
        self._lifecycle = lifecycle
        self._topics: dict[str, TopicSlots] = {}  # by channel
        self._notices: dict[str, Callable[[], None]] = {}  # by channel
        self._subscription: Subscription | None = None
        self.loop = Loop("abort listener", self.listen)

    def add(self, topic: TopicSlots) -> None:
        """Also listen to this topic."""
        self._topics[self._store.aborts_channel_of(topic.name)] = topic
        self.loop.wake()

    def call_on_notice(self, channel: str, notice: Callable[[], None]) -> None:
        """Also listen to a channel of another part, which needs no connection of its own."""
        self._notices[channel] = notice
        self.loop.wake()

    async def listen(self) -> float:
        """Listen to every channel that is not heard yet."""
        if self._subscription is None:
            self._subscription = self._store.subscription(
                self._heard, self._missed, ping_every=CHECK_EVERY
            )
        channels = [*self._topics, *self._notices]
        await asyncio.gather(*map(self._subscription.add, channels))
        return CHECK_EVERY

    async def stop(self) -> None:
        """Stop listening."""
        await self.loop.stop()
        if self._subscription is not None:
            await self._subscription.close()

    def _missed(self, channel: str) -> None:
        if channel in self._notices:
            self._notices[channel]()

    def _heard(self, channel: str, data: bytes) -> None:
        if channel in self._notices:
            self._notices[channel]()
            return
        token, _, id = data.partition(b" ")
        if not token.isdigit() or len(token) > MAX_DIGITS:
            return  # not ours: any client may publish
        topic, claim = self._topics[channel], (int(token), id.decode("utf-8", "surrogateescape"))
        if not self._abort(topic, *claim):
            asyncio.get_running_loop().call_later(LOOK_AGAIN, self._abort, topic, *claim)

    def _abort(self, topic: TopicSlots, token: int, id: str) -> HeldMessage | None:
        """Stop a message if we hold it under this token; return it."""
        for held in self._slots.held:
            if held.leased.token == token and held.leased.id == id and held.topic is topic:
                self._lifecycle.lease_lost(held, Stopped.ABORTED)
                return held
        return None
