"""Calls handlers: inside middleware, with a Delivery, with their dependencies, or in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from mx_rmq.core.delivery import Delivery
from mx_rmq.core.errors import AlreadyDone
from mx_rmq.core.middleware import around_handle
from mx_rmq.core.outcome import NotAwaited, check_was_awaited
from mx_rmq.runtime.slots import Stopped
from mx_rmq.runtime.threads import Call
from mx_rmq.runtime.timeouts import Timeouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.handler import Handler
    from mx_rmq.core.message import Message
    from mx_rmq.core.middleware import Handle, Middleware
    from mx_rmq.runtime.batches import HeldBatch
    from mx_rmq.runtime.dispatcher import Dispatcher
    from mx_rmq.runtime.injection import Injection
    from mx_rmq.runtime.progress import ProgressSender
    from mx_rmq.runtime.slots import HeldMessage
    from mx_rmq.runtime.steps import StepKeeper
    from mx_rmq.runtime.threads import Threads

HandlerCall = Callable[["HeldMessage", "Message", Any], Awaitable[Any]]
"""Calls a handler with a message and its decoded payload."""


class HandlerCalls:
    """Calls the handlers of one worker, for its consumers."""

    def __init__(
        self,
        threads: Threads,
        dispatcher: Dispatcher,
        *,
        middleware: Sequence[Middleware],
        progress: ProgressSender,
        injection: Injection,
        steps: StepKeeper,
    ) -> None:
        self.timeouts = Timeouts()
        self._threads = threads
        self._dispatcher = dispatcher
        self.middleware = middleware
        self._progress = progress
        self.injection = injection
        self._steps = steps
        self._delivered: dict[tuple[str, str | None, str, int], HeldMessage] = {}
        self._not_awaited: dict[HeldMessage, Coroutine[Any, Any, Any]] = {}
        """Handlers that middleware has called and not awaited yet."""
        self._loop = asyncio.get_running_loop()

    def how_to_call(self, handler: Handler) -> HandlerCall | None:
        """Return the cheapest way to call a handler; None: it is a coroutine function that needs
        only its payload, as most are."""
        function, arguments = handler.function, handler.arguments
        innermost = self._innermost(handler)
        handle = around_handle(self.middleware, innermost)
        if handle is not innermost or handler.wants_delivery or handler.dependencies is not None:
            return lambda held, message, payload: self._deliver(held, message, payload, handle)
        if not handler.is_async:
            return lambda held, _, payload: self.in_thread(
                held, Call(function, arguments(payload, None))
            )
        return None if handler.wants_payload else lambda *_: function()

    async def _deliver(
        self, held: HeldMessage, message: Message, payload: Any, handle: Handle
    ) -> Any:
        """Call middleware and handler with a Delivery."""
        timeout, clock = held.topic.handler.timeout, held.topic.clock
        deadline = None if timeout is None else clock.now() / 1000 + timeout
        delivery = self.delivery(held, message, payload, deadline, partial(self.extend, held))
        # middleware may pass on a copy
        key = (message.topic, held.topic.subscription, message.id, held.leased.token)
        self._delivered[key] = held
        try:
            result = await handle(delivery)
        finally:
            del self._delivered[key]
            not_awaited = self._not_awaited.pop(held, None)
            if not_awaited is not None:
                not_awaited.close()
        if not_awaited is not None:
            raise NotAwaited(f"middleware called {held.topic.handler.name} and did not await it")
        return result

    def delivery(
        self,
        held: HeldMessage,
        message: Message,
        payload: Any,
        deadline: float | None,
        extend: Callable[[float], float | None],
    ) -> Delivery:
        return Delivery(
            id=message.id,
            topic=message.topic,
            payload=payload,
            attempt=message.attempts + 1,
            fence=held.leased.token,
            headers=message.headers,
            created_at=message.created_at / 1000,
            deadline=deadline,
            extend=extend,
            key=message.key,
            progress=partial(self._progress.report, held),
            steps=partial(self._steps.of, held),
            subscription=held.topic.subscription,
        )

    def extend(self, held: HeldMessage | HeldBatch, seconds: float) -> float | None:
        """Give a handler this much time from now; return its deadline. From any thread."""
        if held.topic.handler.timeout is None:
            return None
        self._loop.call_soon_threadsafe(self._set_timeout, held, seconds)
        return held.topic.clock.now() / 1000 + seconds

    def _innermost(self, handler: Handler) -> Handle:
        """Return the function inside all middleware, which calls the handler."""

        def call(delivery: Delivery) -> Any:
            held = self._delivered[
                delivery.topic, delivery.subscription, delivery.id, delivery.fence
            ]
            running = self._not_awaited[held] = self._run(held, delivery)
            return running

        return call

    async def _run(self, held: HeldMessage, delivery: Delivery) -> Any:
        """Run a handler inside middleware, which may drop its result."""
        self._not_awaited.pop(held, None)
        handler = held.topic.handler
        try:
            if handler.dependencies is not None:
                return await self.injection.run(
                    handler, delivery.payload, delivery, lambda call: self.in_thread(held, call)
                )
            given = handler.arguments(delivery.payload, delivery)
            if handler.is_async:
                result = await handler.function(*given)
            else:
                result = await self.in_thread(held, Call(handler.function, given))
        except AlreadyDone:
            return None
        if result is not None:
            check_was_awaited(result, handler)
        return result

    async def in_thread(self, held: HeldMessage | HeldBatch, call: Call) -> Any:
        """Run a call in a thread, in which it can be interrupted."""
        if (timeout := held.topic.handler.timeout) is not None:

            def wait() -> None:  # the timeout starts only when the call gets a thread
                self.timeouts.clear(held)
                call.on_begin = lambda: self._set_timeout(held, timeout)

            call.on_wait = wait
        cancel, held.interrupt = held.interrupt, call.interrupt
        if held.stopped is Stopped.NO_THREAD:  # middleware tries again
            held.stopped = None
        try:
            result = await self._threads.run(call)
        finally:
            held.interrupt = cancel  # the thread is done; what follows runs in the event loop
            if not call.began and held.stopped in (None, Stopped.TIMEOUT):
                held.stopped = Stopped.NO_THREAD
                self._dispatcher.pause(held.topic, self._threads.backoff.next())
        return await result if isinstance(result, Coroutine) else result

    def _set_timeout(self, held: HeldMessage | HeldBatch, seconds: float) -> None:
        if held.interrupt is not None:  # else the handler has ended
            self.timeouts.set(held, seconds)
