"""Calls handlers: inside middleware, with a Delivery, with their dependencies, or in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mx_rmq.core.batch import Batch
from mx_rmq.core.delivery import Delivery
from mx_rmq.core.errors import AlreadyDone
from mx_rmq.core.middleware import around_handle, around_handle_batch
from mx_rmq.core.outcome import NotAwaited, check_was_awaited
from mx_rmq.runtime.held import Stopped
from mx_rmq.runtime.threads import Call
from mx_rmq.runtime.timeouts import Timeouts

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from mx_rmq.core.handler import Handler
    from mx_rmq.core.message import Message
    from mx_rmq.core.middleware import Middleware
    from mx_rmq.runtime.dispatcher import Dispatcher
    from mx_rmq.runtime.held import HeldBatch, HeldMessage
    from mx_rmq.runtime.injection import Injection
    from mx_rmq.runtime.progress import ProgressSender
    from mx_rmq.runtime.steps import StepKeeper
    from mx_rmq.runtime.threads import Threads

HandlerCall = Callable[["HeldMessage", "Message", Any], Awaitable[Any]]
"""Calls a handler with a message and its decoded payload."""

Given = TypeVar("Given", Delivery, Batch)
"""What middleware and handlers get."""


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
        innermost = self._begin
        self._handle = around_handle(middleware, innermost)
        self._handle_batch = around_handle_batch(middleware, innermost)
        self._has_middleware = self._handle is not innermost
        self._progress = progress
        self._injection = injection
        self._steps = steps
        self._delivered: dict[Hashable, HeldMessage | HeldBatch] = {}
        self._not_awaited: dict[HeldMessage | HeldBatch, Coroutine[Any, Any, Any]] = {}
        """Handlers that middleware has called and not awaited yet."""
        self._loop = asyncio.get_running_loop()

    def how_to_call(self, handler: Handler) -> HandlerCall | None:
        """Return the cheapest way to call a handler; None: it is a coroutine function that needs
        only its payload, as most are."""
        function, arguments = handler.function, handler.arguments
        if self._has_middleware or handler.wants_delivery or handler.dependencies is not None:
            return self._deliver
        if not handler.is_async:
            return lambda held, _, payload: self.in_thread(
                held, Call(function, arguments(payload, None))
            )
        return None if handler.wants_payload else lambda *_: function()

    async def _deliver(self, held: HeldMessage, message: Message, payload: Any) -> Any:
        """Call middleware and handler with a Delivery."""
        timeout, clock = held.topic.handler.timeout, held.topic.clock
        deadline = None if timeout is None else clock.now() / 1000 + timeout
        delivery = self.delivery(held, message, payload, deadline, partial(self.extend, held))
        return await self._call(held, delivery, self._handle)

    async def call_batch(self, held: HeldBatch, batch: Batch) -> Any:
        """Call middleware and a batch handler."""
        return await self._call(held, batch, self._handle_batch)

    async def _call(
        self,
        held: HeldMessage | HeldBatch,
        given: Given,
        handle: Callable[[Given], Awaitable[Any]],
    ) -> Any:
        key = _key_of(given)
        self._delivered[key] = held
        try:
            result = await handle(given)
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

    def _begin(self, given: Delivery | Batch) -> Coroutine[Any, Any, Any]:
        """Return the call of a handler, for the innermost middleware to await."""
        held = self._delivered[_key_of(given)]
        running = self._not_awaited[held] = self._run(held, given)
        return running

    async def _run(self, held: HeldMessage | HeldBatch, given: Delivery | Batch) -> Any:
        """Run a handler inside middleware, which may drop its result."""
        self._not_awaited.pop(held, None)
        handler = held.topic.handler
        payload = given.payloads if isinstance(given, Batch) else given.payload
        try:
            if handler.dependencies is not None:
                return await self._injection.run(
                    handler, payload, given, lambda call: self.in_thread(held, call)
                )
            arguments = handler.arguments(payload, given)
            if handler.is_async:
                result = await handler.function(*arguments)
            else:
                result = await self.in_thread(held, Call(handler.function, arguments))
        except AlreadyDone:
            if isinstance(given, Batch):
                raise  # it is about one message of many
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


def _key_of(given: Delivery | Batch) -> Hashable:
    """Return the key of what is delivered; middleware may pass on a copy of a Delivery."""
    if isinstance(given, Batch):
        return given
    return given.topic, given.subscription, given.id, given.fence
