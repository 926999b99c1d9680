"""The consumer: runs handlers and decides what became of each message.

Consumers are long-lived tasks, one a running handler at the most. A handler that leaves something
behind in its task (a context variable, a cancellation) gets it retired, so no message sees
another's leftovers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

import msgspec

from mx_rmq.core import codec
from mx_rmq.core.delivery import Delivery
from mx_rmq.core.errors import DecodeError
from mx_rmq.core.middleware import around_handle
from mx_rmq.core.outcome import (
    Circumstances,
    Complete,
    DeadLetter,
    HandlerTimeout,
    Outcome,
    Quarantine,
    Release,
    after_error,
    expired,
)
from mx_rmq.core.text import text_of
from mx_rmq.runtime.slots import Stopped
from mx_rmq.runtime.threads import Interrupted, end_if_forked
from mx_rmq.runtime.timeouts import Timeouts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mx_rmq.core.handler import Handler
    from mx_rmq.core.message import Message
    from mx_rmq.core.middleware import Handle, Middleware
    from mx_rmq.runtime.clock import ServerClock
    from mx_rmq.runtime.slots import Held, Slots
    from mx_rmq.runtime.threads import Threads


logger = logging.getLogger(__name__)


class Consumer:
    """The consumers of one worker."""

    def __init__(
        self,
        slots: Slots,
        threads: Threads,
        clock: ServerClock,
        *,
        worker: str,
        lease: float,
        middleware: Sequence[Middleware],
        settle: Callable[[Held, Outcome | None], None],
    ) -> None:
        self._slots = slots
        self._threads = threads
        self._clock = clock
        self._worker = worker
        self._lease = lease
        self._settle = settle
        self._timeouts = Timeouts()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[asyncio.Task[None], Held] = {}
        self._call = {
            topic.topic: around_handle(middleware, self._innermost(topic.handler))
            for topic in slots.topics.values()
        }
        self._idle: list[asyncio.Future[Held]] = []
        self._clean = copy_context()
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()

    def start_ready(self) -> None:
        """Run everything that may start now."""
        while (held := self._slots.next()) is not None:
            while self._idle:
                waiter = self._idle.pop()
                if not waiter.done():
                    waiter.set_result(held)
                    break
            else:
                self._start(held)

    def running(self) -> list[Held]:
        """Return what runs now."""
        return list(self._running.values())

    def runs_in(self, task: asyncio.Task[Any] | None) -> Handler | None:
        """Return the handler that a task runs, if it is one of the consumers'."""
        held = self._running.get(task) if task is not None else None
        return None if held is None else held.topic.handler

    async def close(self) -> None:
        """End the consumers. Call it when nothing runs any more."""
        self._timeouts.close()
        tasks = [task for task in self._tasks if task not in self._running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _start(self, held: Held) -> None:
        task = self._clean.copy().run(
            lambda: asyncio.create_task(self._consume(held), name="mx-rmq consumer")
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _consume(self, held: Held) -> None:
        """Run one message after the other."""
        task = asyncio.current_task()
        if task is None:
            return
        before = copy_context()
        while True:
            self._running[task] = held
            outcome: Outcome | None = Release()
            try:
                outcome = await self._handle(held, task)
            except Exception as error:
                logger.exception("%s of %s cannot be handled", held.claim.id, held.topic.topic)
                outcome = _set_aside(held, error)
            finally:
                del self._running[task]
                self._slots.finished(held)
                if not self._loop.is_closed():
                    self._settle(held, outcome)
            more = None if _is_dirty(task, before) else self._slots.next()
            self.start_ready()
            if _is_dirty(task, before):
                return
            if more is None:
                waiter: asyncio.Future[Held] = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                more = await waiter
            held = more

    async def _handle(self, held: Held, task: asyncio.Task[None]) -> Outcome | None:
        """Return what became of a message; None: it is no longer this worker's."""
        held.started_at = time.monotonic()
        if held.settling or held.started_at - held.extended_at >= self._lease:
            return Release()  # we stood still, or were cut off: it may be somebody else's by now
        topic, handler = held.topic.topic, held.topic.handler
        try:
            message = held.message = codec.decode_as(held.record, topic, held.claim.id)
            dead = expired(message, self._clock.now())
            if dead is not None:
                return dead
            payload = handler.decode(message.payload) if handler.wants_payload else None
        except DecodeError as unreadable:
            return Quarantine(unreadable)
        delivery = self._delivery(held, message, payload)
        if handler.timeout is not None:
            self._timeouts.set(held, handler.timeout)
        held.interrupt = task.cancel
        error: BaseException | None = None
        try:
            await self._call[topic](delivery)
        except KeyboardInterrupt:
            raise  # it is meant for the whole process
        except BaseException as raised:
            if isinstance(raised, GeneratorExit) and self._loop.is_closed():
                raise
            error = raised  # the policy decides about it
        finally:
            end_if_forked(self._pid)
            held.interrupt = None
            self._timeouts.clear(held)
        return self._outcome(held, message, error)

    def _outcome(self, held: Held, message: Message, error: BaseException | None) -> Outcome | None:
        if held.stopped is Stopped.LEASE_LOST:
            return None
        if error is None:
            return Complete()
        handler = held.topic.handler
        interrupted = isinstance(error, asyncio.CancelledError | Interrupted)
        if held.stopped is Stopped.SHUTDOWN and interrupted:
            return Release()
        if held.stopped is Stopped.TIMEOUT and interrupted:
            timeout = HandlerTimeout(f"{handler.name} took longer than {handler.timeout:g} s")
            error = timeout.with_traceback(error.__traceback__)
        return after_error(message, handler, error, self.circumstances())

    def circumstances(self) -> Circumstances:
        """Return what a decision depends on."""
        chance = random.random()  # noqa: S311 - jitter
        return Circumstances(now=self._clock.now(), worker=self._worker, chance=chance)

    def _delivery(self, held: Held, message: Message, payload: Any) -> Delivery:
        timeout = held.topic.handler.timeout

        def extend(seconds: float) -> float | None:
            if timeout is None:
                return None
            self._loop.call_soon_threadsafe(self._extend, held, seconds)
            return self._clock.now() / 1000 + seconds

        return Delivery(
            id=message.id,
            topic=message.topic,
            payload=payload,
            attempt=message.attempts + 1,
            fence=held.claim.token,
            headers=message.headers,
            created_at=message.created_at / 1000,
            deadline=None if timeout is None else self._clock.now() / 1000 + timeout,
            extend=extend,
        )

    def _extend(self, held: Held, seconds: float) -> None:
        if held.interrupt is not None:  # else it has ended meanwhile
            self._timeouts.set(held, seconds)

    def _innermost(self, handler: Handler) -> Handle:
        function, arguments = handler.function, handler.arguments
        if handler.is_async:

            def call(delivery: Delivery) -> Any:
                return function(*arguments(delivery.payload, delivery))

            return call

        async def call_in_thread(delivery: Delivery) -> Any:
            held = self._slots.held[(delivery.topic, delivery.id, delivery.fence)]

            def on_start(interrupt: Callable[[], None]) -> None:
                held.interrupt = interrupt

            cancel = held.interrupt
            given = arguments(delivery.payload, delivery)
            result = await self._threads.run(function, given, on_start)
            held.interrupt = cancel  # the thread has left; what follows is in the loop
            return await result if asyncio.iscoroutine(result) else result

        return call_in_thread


def _is_dirty(task: asyncio.Task[None], before: Context) -> bool:
    """Say whether a handler has left something behind in its task."""
    try:
        return bool(task.cancelling()) or copy_context() != before
    except Exception:  # noqa: BLE001 - the values of context variables are anybody's
        return True


def _set_aside(held: Held, error: Exception) -> Outcome:
    """Return what becomes of a message about which nothing could be decided."""
    if held.message is None:
        return Quarantine(error)
    reason = f"undecided: {type(error).__name__}: {text_of(error)}"
    return DeadLetter(msgspec.structs.replace(held.message, reason=reason))
