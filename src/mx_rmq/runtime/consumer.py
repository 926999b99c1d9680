"""The consumer: decodes messages, runs their handlers and decides on the outcome.

Consumers are long-lived tasks that run one message after another, at most one task per slot. If a
handler leaves something behind in its task (a context variable, a cancellation), the task ends, so
that no message sees the leftovers of another.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextvars import Context, copy_context
from math import inf
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core import codec
from mx_rmq.core import steps as core_steps
from mx_rmq.core.errors import DecodeError, InvalidInput, NewerRecord
from mx_rmq.core.outcome import (
    Circumstances,
    Complete,
    Finish,
    Outcome,
    Quarantine,
    Release,
    after_error,
    check_was_awaited,
    expired,
    postponed,
    suspension,
    timed_out,
    undecided,
)
from mx_rmq.core.payload import unreadable
from mx_rmq.runtime import current
from mx_rmq.runtime.batches import Batches
from mx_rmq.runtime.held import HeldBatch, Stopped
from mx_rmq.runtime.loop import how_it_ended, spawn
from mx_rmq.runtime.steps import completion
from mx_rmq.runtime.threads import Forks, Interrupted
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from mx_rmq.core.handler import Handler
    from mx_rmq.core.message import Message
    from mx_rmq.net.server_clock import ServerClock
    from mx_rmq.runtime.dispatcher import Dispatcher
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.handler_calls import HandlerCall, HandlerCalls
    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.runtime.lifecycle import Lifecycle
    from mx_rmq.runtime.slots import Slots
    from mx_rmq.runtime.steps import StepKeeper

logger = get_logger(__name__)

WAKE: Final = 8
"""Wake at most this many consumers at once. If handlers never await, one consumer can run all
messages. Otherwise each consumer that starts a message wakes the next."""

WAIT_HERE: Final = 1.0  # seconds that a message may wait here for a slot

_COMPLETE: Final = Complete()
_RELEASE: Final = Release()


class Consumer:
    """The consumers of one worker."""

    name = "consumer"

    def __init__(
        self,
        slots: Slots,
        calls: HandlerCalls,
        dispatcher: Dispatcher,
        lifecycle: Lifecycle,
        steps: StepKeeper,
        bus: Events,
        *,
        worker: str,
        lease: float,
    ) -> None:
        self._slots = slots
        self._calls = calls
        dispatcher.consumer = self
        self._lifecycle = lifecycle
        self.steps = steps
        self._worker = worker
        self._lease = lease
        self._timeouts = calls.timeouts
        self.running: dict[asyncio.Task[None], HeldMessage | HeldBatch] = {}
        self._batches = Batches(self, slots, calls, lifecycle, bus)
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._starting: set[asyncio.Task[None]] = set()
        """Tasks whose first line has not run yet. One that is cancelled before that never runs."""
        self._woken = 0  # consumers that were woken and have not asked for a message yet
        self._died = ""  # how a consumer ended that should have kept running; empty: none did
        self._how_to_call: dict[Handler, HandlerCall | None] = {}
        self._hand_back_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._clean = copy_context()
        self._loop = asyncio.get_running_loop()
        self._forks = Forks.count

    # consumer tasks

    def start_ready(self) -> None:
        """Wake or start as many consumers as there are messages that may start now."""
        most = min(WAKE, self._slots.startable())
        while self._woken < most:
            waiter = self._idle.pop() if self._idle else None
            if waiter is None:
                self._start_consumer()
            elif waiter.done():  # its consumer was cancelled
                continue
            else:
                waiter.set_result(None)
            self._woken += 1
        if self._slots.lingering:
            self._batches.set_timer()
        if self._slots.waiting and self._hand_back_timer is None and not self._closed:
            self._hand_back_timer = self._loop.call_later(WAIT_HERE, self._hand_back_late)

    def _start_consumer(self) -> None:
        task = self._clean.copy().run(spawn, "consumer", self._consume)
        self._tasks.add(task)
        self._starting.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Update the counts when a consumer has ended, for any reason."""
        self._tasks.discard(task)
        if task in self._starting:
            self._starting.discard(task)
            self._woken -= 1
            self._died = how_it_ended(task)
        elif not task.cancelled() and task.exception() is not None:
            self._died = how_it_ended(task)

    async def _consume(self) -> None:
        """Run one message after another."""
        task = asyncio.current_task()
        if task is None:
            return
        slots, running = self._slots, self.running
        current.message.set(None)
        clean = copy_context()
        self._starting.discard(task)
        self._woken -= 1
        while True:
            held = slots.start_next()
            if held is None:
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                try:
                    await waiter
                except asyncio.CancelledError:  # by application code, or by `close`
                    if waiter.done() and not waiter.cancelled():
                        self._woken -= 1
                        self._died = "it was cancelled"  # after it was woken for a message
                    raise
                self._woken -= 1
                continue
            if held.topic.batch:
                await self._batches.run(slots.gathered.pop(held), task)
                self.start_ready()
                if self._closed or _is_dirty(task, clean):
                    return
                continue
            outcome: Outcome | None = _RELEASE
            try:  # from here on, `finally` must free the slot
                running[task] = held
                if self._woken < WAKE:
                    self.start_ready()
                outcome = await self._handle(held, task)
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:
                logger.exception("%s of %s cannot be handled", held.leased.id, held.topic.name)
                if held.started_at is not None:  # else it was not the message's fault: release it
                    outcome = undecided(held.message, error)
            finally:
                running.pop(task, None)
                slots.finished(held)
                if not self._loop.is_closed():
                    self._lifecycle.settle(held, outcome)
            if self._closed:  # the handler has outlived its worker
                return
            if _is_dirty(task, clean):
                self.start_ready()
                return

    # one message

    async def _handle(self, held: HeldMessage, task: asyncio.Task[None]) -> Outcome | None:
        """Decode a message, run its handler, and return the outcome; None: it is no longer ours."""
        held.started_at = time.monotonic()
        outcome = self.decode(held)
        message = held.message
        if outcome is not None or message is None:
            return outcome
        handler = held.topic.handler
        try:
            payload = handler.decode(message.payload) if handler.wants_payload else None
        except Exception as misfit:  # noqa: BLE001 - validators and __post_init__ are user code
            return Quarantine(unreadable(misfit, handler.payload_type, message.payload))
        if handler.timeout is not None:
            self._timeouts.set(held, handler.timeout)
        held.interrupt = task.cancel
        error: BaseException | None = None
        finish: Finish | None = None
        current.message.set(held)
        try:
            if message.steps and (outcome := await self.steps.before(held, message)) is not None:
                return outcome
            if handler not in self._how_to_call:
                self._how_to_call[handler] = self._calls.how_to_call(handler)
            call = self._how_to_call[handler]
            if call is None:
                result = await handler.function(payload)
            else:
                result = await call(held, message, payload)
            if result is not None:
                check_was_awaited(result, handler)
            if held.steps is not None:
                finish = await self.steps.after(held, held.message or message, result)
        except KeyboardInterrupt:
            raise  # it is meant for the whole process
        except BaseException as raised:
            if isinstance(raised, GeneratorExit) and self._loop.is_closed():
                raise
            error = raised  # `_outcome` decides
        finally:
            if Forks.count != self._forks:
                os._exit(0)  # a child that a handler has forked must not go on as a second worker
            current.message.set(None)  # not reset(): a closing loop may run this in another context
            held.interrupt = None
            if handler.timeout is not None:
                self._timeouts.clear(held)
        if held.stopped is Stopped.NO_THREAD:  # the handler never ran, whatever middleware did
            return _RELEASE
        if error is None and held.stopped is None and handler.result_ttl is None:
            return finish or _COMPLETE
        if error is None and not held.is_lost:
            if finish is not None:
                return finish
            outcome, error = self.keep(handler, message, result)
            if outcome is not None:
                return outcome
        return self._outcome(held, held.message or message, error)

    def decode(self, held: HeldMessage) -> Outcome | None:
        """Decode a message; return its outcome if no handler may get it."""
        if held.settling or time.monotonic() - held.extended_at >= self._lease:
            return _RELEASE  # we were frozen or cut off, and another worker may have it now
        handler, clock = held.topic.handler, held.topic.clock
        try:
            message = codec.decode(held.leased.record, handler.topic, held.leased.id)
            if message.steps:
                core_steps.read(message)  # else unreadable ones would fail each attempt
            if handler.ttl is not None:
                message = message.with_default_ttl(round(handler.ttl * 1000))
        except NewerRecord as newer:
            return postponed(newer, self.circumstances(clock))
        except DecodeError as undecodable:
            return Quarantine(undecodable)
        held.message = message
        return None if message.ttl is None else expired(message, clock.now())

    def keep(
        self, handler: Handler, message: Message, result: Any
    ) -> tuple[Complete | None, Exception | None]:
        """Return how a message completes with what was returned, or why it does not."""
        if handler.result_ttl is None:
            return _COMPLETE, None
        try:
            value = self.steps.encoded(f"the result of {handler.name}", result)
        except InvalidInput as error:
            return None, error
        return completion(handler, message, self._worker, bytes(value)), None

    def _outcome(
        self, held: HeldMessage, message: Message, error: BaseException | None
    ) -> Outcome | None:
        """Decide about a message whose handler failed or was interrupted."""
        if held.is_lost:
            return None
        if error is None:
            return _COMPLETE
        if (suspended := suspension(error)) is not None:
            return suspended.outcome_with(message)  # `finally` blocks may have noted steps since
        handler = held.topic.handler
        interrupted = isinstance(error, asyncio.CancelledError | Interrupted)
        if held.stopped is Stopped.SHUTDOWN and interrupted:
            return _RELEASE
        if held.stopped is Stopped.TIMEOUT and interrupted:
            error = timed_out(handler, error)
        return after_error(message, handler, error, self.circumstances(held.topic.clock))

    def circumstances(self, clock: ServerClock) -> Circumstances:
        chance = random.random()  # noqa: S311 - jitter
        return Circumstances(now=clock.now(), worker=self._worker, chance=chance)

    # handing back

    def hand_back(self, taken_before: float = inf) -> None:
        """Hand back messages that wait for a slot and were taken before a time."""
        if self._hand_back_timer is not None:
            self._hand_back_timer.cancel()
            self._hand_back_timer = None
        for held in self._slots.take_back(taken_before):
            self._lifecycle.settle(held, _RELEASE)

    def _hand_back_late(self) -> None:
        """Hand back what has waited too long for a slot: another worker may have one."""
        self.hand_back(time.monotonic() - WAIT_HERE)
        if self._slots.waiting:
            self._hand_back_timer = self._loop.call_later(WAIT_HERE, self._hand_back_late)

    # for the watchdog and the engine

    def handler_in(self, task: asyncio.Task[Any] | None) -> Handler | None:
        """Return the handler that a task runs, if it is one of our consumers."""
        held = self.running.get(task) if task is not None else None
        return None if held is None else held.topic.handler

    def unfinished(self) -> list[HeldMessage]:
        """Return the messages whose handlers run."""
        return [
            one
            for held in self.running.values()
            for one in (held.items if isinstance(held, HeldBatch) else (held,))
        ]

    def start_lingering(self) -> None:
        """Start batches that wait for more messages, if the server has none: for a drain."""
        self._slots.end_lingering(early=True)
        self.start_ready()

    def down(self) -> str:
        """Return how a consumer died that should have kept running; empty: none did."""
        return "" if self._closed else self._died

    def start(self) -> None:
        """Let other consumers take over the work of those that died."""
        self._died = ""
        self.start_ready()

    async def close(self) -> None:
        """End the idle consumers, when the worker stops."""
        self._closed = True
        self._timeouts.close()
        self._batches.close()
        tasks = [task for task in self._tasks if task not in self.running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _is_dirty(task: asyncio.Task[None], before: Context) -> bool:
    """Return whether a handler has left a cancellation or a context variable in its task."""
    try:
        return bool(task.cancelling()) or copy_context() != before
    except Exception:  # noqa: BLE001 - values of context variables may raise when compared
        return True
