"""Batches: calls batch handlers when it is time, and settles each message on its own.

A batch has one slot, one call and one timeout. Everything else belongs to its messages: each has
its own lease, outcome and events. A message that is lost while the call runs is left out. The call
is interrupted only if all of them are lost.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core.batch import Batch
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.events import BatchHandled
from mx_rmq.core.message import Failure
from mx_rmq.core.middleware import Middleware
from mx_rmq.core.outcome import (
    Complete,
    Outcome,
    Quarantine,
    Release,
    after_error,
    check_was_awaited,
    timed_out,
    undecided,
)
from mx_rmq.core.payload import type_name, unreadable
from mx_rmq.runtime import current
from mx_rmq.runtime.held import HeldBatch, Stopped
from mx_rmq.runtime.threads import Forks, Interrupted
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.handler import Handler
    from mx_rmq.core.message import Message
    from mx_rmq.runtime.consumer import Consumer
    from mx_rmq.runtime.event_bus import Events
    from mx_rmq.runtime.handler_calls import HandlerCalls
    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.runtime.lifecycle import Lifecycle
    from mx_rmq.runtime.slots import Slots

logger = get_logger(__name__)

_COMPLETE: Final = Complete()
_RELEASE: Final = Release()


class Batches:
    """Runs the batch handlers of one worker, for its consumers."""

    def __init__(
        self,
        consumer: Consumer,
        slots: Slots,
        calls: HandlerCalls,
        lifecycle: Lifecycle,
        bus: Events,
    ) -> None:
        self._consumer = consumer
        self._slots = slots
        self._calls = calls
        self._lifecycle = lifecycle
        self._bus = bus
        self._warned: set[Handler] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._forks = Forks.count

    # when to start

    def set_timer(self) -> None:
        """Start the next lingering batch when its time has come."""
        at = min(self._slots.lingering.values())
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - time.monotonic()), self._lingered)

    def _lingered(self) -> None:
        self._timer = None
        self._slots.end_lingering()
        self._consumer.start_ready()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # one batch

    async def run(self, messages: list[HeldMessage], task: asyncio.Task[None]) -> None:
        """Handle messages in one call, and settle each of them."""
        held = HeldBatch(messages[0].topic, messages)
        failed: BaseException | None = None
        try:  # from here on, `finally` must free the slot
            self._consumer.running[task] = held
            self._consumer.start_ready()
            payloads = self._read(held)
            if any(one.message is not None and one.message.steps for one in held.items):
                payloads = await self._before(held, payloads)
            if held.items:
                await self._handle(held, payloads, task)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            logger.exception(
                "a batch of %d messages of %s cannot be handled", len(messages), held.topic.name
            )
            failed = error
        finally:
            self._consumer.running.pop(task, None)
            self._slots.finished(messages[0])
            if not self._loop.is_closed():
                for one in list(held.unsettled):
                    outcome: Outcome = _RELEASE
                    if failed is not None and one.started_at is not None:
                        outcome = undecided(one.message, failed)
                    self._settle(held, one, outcome)

    def _settle(self, held: HeldBatch, one: HeldMessage, outcome: Outcome | None) -> None:
        held.unsettled.pop(one, None)
        one.ended_at = time.monotonic()
        one.settling = True
        self._lifecycle.settle(one, outcome)

    def _read(self, held: HeldBatch) -> list[Any]:
        """Decode the payloads. Settle the messages that the handler must not get."""
        decode = held.topic.handler.decode
        payloads: list[Any] = []
        for one in list(held.unsettled):
            one.started_at = held.started_at
            outcome = self._consumer.decode(one)
            if outcome is None and one.message is not None:
                data = one.message.payload
                try:
                    payloads.append(decode(data))
                except Exception as misfit:  # noqa: BLE001 - validators are user code
                    wanted = held.topic.handler.payload_type
                    outcome = Quarantine(unreadable(misfit, wanted, data))
            if outcome is None:
                held.items.append(one)
            else:
                self._settle(held, one, outcome)
        return payloads

    async def _before(self, held: HeldBatch, payloads: list[Any]) -> list[Any]:
        """Do what comes before the handler for messages of flows; return the payloads that stay."""
        kept: list[tuple[HeldMessage, Any]] = []
        for one, payload in zip(held.items, payloads, strict=True):
            outcome: Outcome | None = None
            if one.message is not None and one.message.steps:
                try:
                    outcome = await self._consumer.steps.before(one, one.message)
                except asyncio.CancelledError:
                    if not one.is_lost:
                        raise
                except Exception as error:  # noqa: BLE001 - it fails this message only
                    outcome = self._after_error(one, one.message, error, {})
            if outcome is None and not one.is_lost:
                kept.append((one, payload))
            else:
                self._settle(held, one, outcome)
        held.items[:] = [one for one, _ in kept]
        return [payload for _, payload in kept]

    async def _handle(self, held: HeldBatch, payloads: list[Any], task: asyncio.Task[None]) -> None:
        """Call the handler, and decide about each message."""
        handler = held.topic.handler
        batch = self._batch(held, payloads)
        if handler.timeout is not None:
            self._calls.timeouts.set(held, handler.timeout)
        held.interrupt = task.cancel
        for one in held.items:
            one.interrupt = held.item_lost
        error: BaseException | None = None
        result = None
        current.message.set(held)
        try:
            self._warn(handler)
            result = await self._calls.call_batch(held, batch)
            if result is not None:
                check_was_awaited(result, handler)
        except KeyboardInterrupt:
            raise  # it is meant for the whole process
        except BaseException as raised:
            if isinstance(raised, GeneratorExit) and self._loop.is_closed():
                raise
            error = raised  # `_decide` decides
        finally:
            if Forks.count != self._forks:
                os._exit(0)  # a child that a handler has forked must not go on as a second worker
            batch.ended = True
            current.message.set(None)
            held.interrupt = None
            for one in held.items:
                one.interrupt = None
            if handler.timeout is not None:
                self._calls.timeouts.clear(held)
        await self._decide(held, batch, result, error)

    async def _decide(
        self, held: HeldBatch, batch: Batch, result: Any, error: BaseException | None
    ) -> None:
        """Settle every message: by its own error, else by how the call ended."""
        handler = held.topic.handler
        interrupted = isinstance(error, asyncio.CancelledError | Interrupted)
        goes_back = held.stopped is Stopped.NO_THREAD or (  # the handler never ran
            held.stopped is Stopped.SHUTDOWN and interrupted
        )
        results: Sequence[Any] = ()
        if error is None:
            results, error = _results(handler, result, len(batch))
        elif held.stopped is Stopped.TIMEOUT and interrupted:
            error = timed_out(handler, error)
        failures: dict[int, Failure] = {}  # by the error's id(); once each: tracebacks are slow
        failed = 0
        for index, one in enumerate(held.items):
            outcome: Outcome | None = None
            own = batch.failed.get(index)
            if one.is_lost or one.message is None:
                pass
            elif own is not None:
                outcome = self._after_error(one, one.message, own, failures)
            elif goes_back:
                outcome = _RELEASE
            elif error is not None:
                outcome = self._after_error(one, one.message, error, failures)
            else:
                outcome = await self._complete(one, one.message, results[index])
            failed += not isinstance(outcome, Complete)
            self._settle(held, one, outcome)
        seconds = time.monotonic() - held.started_at
        self._bus.emit(BatchHandled(handler.topic, len(batch), failed, seconds))

    async def _complete(self, one: HeldMessage, message: Message, result: Any) -> Outcome:
        if one.steps is not None:
            try:
                finish = await self._consumer.steps.after(one, message, result)
            except Exception as refused:  # noqa: BLE001 - middleware is user code
                return self._after_error(one, message, refused, {})
            if finish is not None:
                return finish
        if one.topic.handler.result_ttl is None:
            return _COMPLETE
        kept, error = self._consumer.keep(one.topic.handler, message, result)
        if error is not None:
            return self._after_error(one, message, error, {})
        return kept or _COMPLETE

    def _after_error(
        self,
        one: HeldMessage,
        message: Message,
        error: BaseException,
        failures: dict[int, Failure],
    ) -> Outcome:
        at = self._consumer.circumstances(one.topic.clock)
        failure = failures.get(id(error))
        if failure is None:
            failure = failures[id(error)] = Failure.of(error, at=at.now, worker=at.worker)
        return after_error(message, one.topic.handler, error, at, failure)

    def _warn(self, handler: Handler) -> None:
        """Name the middleware that does nothing for a batch handler: it may be a mistake."""
        if handler in self._warned:
            return
        self._warned.add(handler)
        for one in self._calls.middleware:
            kind = type(one)
            single = kind.handle is not Middleware.handle
            if single and kind.handle_batch is Middleware.handle_batch:
                logger.warning(
                    "middleware %s has handle, but no handle_batch: it is not called around %s",
                    kind.__qualname__,
                    handler.name,
                )

    def _batch(self, held: HeldBatch, payloads: list[Any]) -> Batch:
        timeout, clock = held.topic.handler.timeout, held.topic.clock
        deadline = None if timeout is None else clock.now() / 1000 + timeout
        extend = partial(self._calls.extend, held)

        def deliver(index: int) -> Delivery:
            one = held.items[index]
            assert one.message is not None  # noqa: S101 - it is decoded
            return self._calls.delivery(one, one.message, payloads[index], deadline, extend)

        return Batch(
            held.topic.topic,
            payloads,
            deliver=deliver,
            is_lost=lambda index: held.items[index].is_lost,
            deadline=deadline,
            extend=extend,
        )


def _results(
    handler: Handler, returned: Any, count: int
) -> tuple[Sequence[Any], InvalidInput | None]:
    """Return one result per message, or why what the handler returned is not that."""
    if returned is None:
        return [None] * count, None
    if isinstance(returned, list | tuple) and len(returned) == count:
        return returned, None
    if handler.result_ttl is None:
        return [None] * count, None
    what = type_name(type(returned))
    if isinstance(returned, list | tuple):
        what = "1 result" if len(returned) == 1 else f"{len(returned)} results"
    return [None] * count, InvalidInput(
        f"{handler.name} returned {what} for {count} messages: with result_ttl, a batch handler "
        "returns None or a list with one result per message"
    )
