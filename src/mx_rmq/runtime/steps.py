"""Work in several steps: what happens before and after the handler, and how progress is noted.

Progress is noted in the record of the message, under its lease. A handler that sleeps or waits ends
with `Suspended`. Later it runs again from the start, and finished steps return their noted values.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from mx_rmq.core import codec
from mx_rmq.core import steps as core_steps
from mx_rmq.core.errors import InvalidInput, PayloadTooLarge, ScriptFailed
from mx_rmq.core.middleware import Middleware, around_produce
from mx_rmq.core.outcome import Complete, DeadLetter, Finish, Park, Result
from mx_rmq.core.status import Kept
from mx_rmq.core.steps import NOTHING
from mx_rmq.core.text import named
from mx_rmq.runtime.loop import AWAY, Backoff, FailureLog
from mx_rmq.runtime.message_steps import MessageSteps
from mx_rmq.runtime.waiting_check import look_for_sources
from mx_rmq.store.results import Settled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import msgspec

    from mx_rmq.core.handler import Handler
    from mx_rmq.core.message import Message
    from mx_rmq.core.outcome import Outcome
    from mx_rmq.core.outgoing import Outgoing
    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.runtime.lifecycle import Lifecycle
    from mx_rmq.runtime.message_steps import FollowUp
    from mx_rmq.store import Store

T = TypeVar("T")

_COMPLETE: Final = Complete()


class StepKeeper:
    """Keeps the steps of all messages that one worker handles.

    `on_uninformed` gets the topic of a message that is about to wait for one that may not know of
    it.
    """

    def __init__(
        self,
        store: Store,
        lifecycle: Lifecycle,
        *,
        worker: str,
        on_uninformed: Callable[[str], None],
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._on_uninformed = on_uninformed
        self._follow_ups = lifecycle.follow_ups
        self._worker = worker
        self._middleware = [
            one for one in middleware if type(one).produce is not Middleware.produce
        ]
        self.max_payload = store.limits.max_payload
        self._failures = FailureLog("steps")

    def of(self, held: HeldMessage) -> MessageSteps:
        """Return the steps of a message whose handler runs."""
        if held.steps is None:
            held.steps = MessageSteps(self, held, {})
        return held.steps

    async def before(self, held: HeldMessage, message: Message) -> Outcome | None:
        """Do what comes before the handler; None: it can run now."""
        steps = core_steps.read(message)
        if steps.then is not None:
            return Finish(message, self._completion(held, message, steps.result), noted=True)
        if steps.before:
            await self.insist(lambda: self._follow_ups.produce(steps.before))
            steps = replace(steps, before=[])
            message = held.message = core_steps.write(message, steps)
            await self.note(held, message, "flow started")
        name = held.topic.name
        signals: dict[str, bytes] = {}
        if steps.after or steps.until:
            signals = await self.insist(lambda: self._store.signals_of(name, message.id))
        if any(not source.told and source.signal not in signals for source in steps.after):
            found = await self.insist(lambda: look_for_sources(self._store, name, message))
            if found.sent:
                signals = await self.insist(lambda: self._store.signals_of(name, message.id))
        dead = [one for one in steps.after if one.death in signals and one.signal not in signals]
        if dead:
            why = signals[dead[0].death][1:].decode("utf-8", "replace")
            reason = f"message {dead[0].id} of {dead[0].part}, which it waits for, is dead: {why}"
            return DeadLetter(replace(message, reason=reason))
        missing = tuple(one.signal for one in steps.after if one.signal not in signals)
        if missing:
            if any(not one.told and one.signal not in signals for one in steps.after):
                self._on_uninformed(name)
            why = f"for {len(missing)} of {len(steps.after)} messages"
            return Park(message, missing, None, why)
        held.steps = MessageSteps(self, held, signals)
        return None

    async def after(self, held: HeldMessage, message: Message, result: Any) -> Finish | None:
        """Return what is left to do after the handler has returned; None: nothing."""
        work = held.steps
        steps = core_steps.read(message)
        if work is not None and work.suspended:
            raise InvalidInput(
                f"{held.topic.handler.name} caught Suspended and went on; "
                "let it pass: catch Exception instead of BaseException"
            )
        follow_ups = work.close() if work is not None else []
        produced = [made for one in follow_ups for made in await self._passed(one)]
        if not produced and not steps.tell:
            return None
        value = NOTHING
        if steps.tell or held.topic.handler.result_ttl is not None:
            value = self.encoded(f"the result of {held.topic.handler.name}", result)
        planned = await self.insist(lambda: self._follow_ups.plan(produced))
        message = core_steps.write(message, replace(steps, then=planned, result=value))
        message = replace(message, ttl=None)  # it cannot expire any more
        return Finish(message, self._completion(held, message, value))

    async def _passed(self, follow_up: FollowUp) -> list[Message]:
        """Return a follow-up as middleware has changed it; none if middleware has stopped it."""
        planned = follow_up.message
        if not self._middleware:
            return [planned]
        made: list[Message] = []

        async def take(outgoing: Sequence[Outgoing]) -> list[str]:
            made.extend(one.message(self.max_payload) for one in outgoing)
            return [one.id for one in made]

        async def run() -> None:
            await around_produce(self._middleware, take)([follow_up.outgoing.as_sent(planned)])

        # In the context of the call: a trace goes on from there.
        await asyncio.create_task(run(), context=follow_up.context)
        if any((one.topic, one.id) != (planned.topic, planned.id) for one in made) or len(made) > 1:
            raise InvalidInput(
                f"middleware changed the topic or the id of a follow-up to {planned.topic}, or "
                "sent it twice: it may change its payload, headers and options"
            )
        return made

    def _completion(self, held: HeldMessage, message: Message, result: msgspec.Raw) -> Complete:
        return completion(held.topic.handler, message, self._worker, bytes(result) or b"null")

    async def note(self, held: HeldMessage, message: Message, about: str) -> None:
        """Note a new record; the handler is cancelled if the message is no longer ours."""
        notes = [(held.leased, message, about)]
        (answer,) = await self.insist(
            lambda: self._store.note_record(held.topic.name, self._worker, notes)
        )
        if not answer and answer is not Settled.REPLACED:
            self._lifecycle.lease_lost(held)
            raise asyncio.CancelledError

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until it is answered. If the lease is lost meanwhile, we are cancelled."""
        backoff = Backoff()
        while True:
            try:
                return await call()
            except (*AWAY, ScriptFailed) as error:
                self._failures.log(error)
            await asyncio.sleep(backoff.next())

    def encoded(self, what: str, value: Any) -> msgspec.Raw:
        """Encode a value to be kept, or refuse it."""
        return encode_kept(what, value, self.max_payload)


def encode_kept(what: str, value: Any, limit: int) -> msgspec.Raw:
    """Encode a value to be kept, or refuse it by the name of what it is."""
    try:
        return codec.encode_payload(value, limit)
    except PayloadTooLarge as error:
        raise InvalidInput(
            f"{what} cannot be kept: it takes {error.size:,} bytes; "
            f"the limit is {error.limit:,} (setting max_payload)"
        ) from error
    except Exception as error:  # serializers are user code
        why = str(error) if isinstance(error, InvalidInput) else named(error)
        raise InvalidInput(f"{what} cannot be kept: {why}") from error


def completion(handler: Handler, message: Message, worker: str, result: bytes) -> Complete:
    """Return how a message completes with an encoded result."""
    ttl = handler.result_ttl_ms
    if ttl is None:
        return _COMPLETE
    kept = Kept(attempt=message.attempts + 1, created_at=message.created_at, ttl=ttl, worker=worker)
    return Result(kept.with_result(result), ttl)
