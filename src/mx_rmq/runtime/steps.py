"""Work in several steps: what `delivery.step`, `sleep`, `wait`, `produce` and `results` do.

What a handler has finished is noted in the record of its message, under its lease. A handler that
sleeps or waits is ended by `Suspended`. Later it runs again from its beginning, and finished steps
return what was noted.
"""

from __future__ import annotations

import asyncio
import inspect
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from mx_rmq.core import codec
from mx_rmq.core import steps as core_steps
from mx_rmq.core.durations import Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput, PayloadTooLarge, ScriptFailed
from mx_rmq.core.middleware import as_sent
from mx_rmq.core.names import check_topic
from mx_rmq.core.outcome import Complete, DeadLetter, Finish, Park, Result, SnoozeLater, Suspended
from mx_rmq.core.outgoing import Outgoing
from mx_rmq.core.payload import decoder, unreadable
from mx_rmq.core.status import Kept
from mx_rmq.core.steps import (
    ALL_STEPS,
    MAX_FLOW_BYTES,
    MAX_FOLLOW_UPS,
    NOTHING,
    check_name,
    follow_up_id,
)
from mx_rmq.core.text import named
from mx_rmq.in_thread import in_thread
from mx_rmq.runtime.follow_ups import COMPLETED
from mx_rmq.runtime.loop import AWAY, Backoff, FailureLog
from mx_rmq.runtime.waiting_check import look_for_sources
from mx_rmq.store.results import Settled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextvars import Context

    from mx_rmq.core.handler import Handler
    from mx_rmq.core.message import Message
    from mx_rmq.core.middleware import Middleware
    from mx_rmq.core.outcome import Outcome
    from mx_rmq.core.outgoing import ProduceOptions
    from mx_rmq.runtime.lifecycle import Lifecycle
    from mx_rmq.runtime.slots import HeldMessage
    from mx_rmq.store import Store

T = TypeVar("T")

_COMPLETE: Final = Complete()


class StepKeeper:
    """Keeps the steps of all messages that one worker handles.

    `on_untold` gets the topic of a message that is about to wait for one that may not know of it.
    """

    def __init__(
        self,
        store: Store,
        lifecycle: Lifecycle,
        middleware: Sequence[Middleware],
        *,
        worker: str,
        on_untold: Callable[[str], None],
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self.middleware = middleware
        self._on_untold = on_untold
        self._follow_ups = lifecycle.follow_ups
        self._worker = worker
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
                self._on_untold(name)
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
        produced = work.follow_ups if work is not None else []
        if not produced and not steps.tell:
            return None
        value = NOTHING
        if steps.tell or held.topic.handler.result_ttl is not None:
            value = self.encoded(f"the result of {held.topic.handler.name}", result)
        if work is not None and produced and self.middleware:
            produced = await self._as_sent(work)
        planned = await self.insist(lambda: self._follow_ups.plan(produced))
        message = core_steps.write(message, replace(steps, then=planned, result=value))
        message = replace(message, ttl=None)  # it cannot expire any more
        return Finish(message, self._completion(held, message, value))

    async def _as_sent(self, work: MessageSteps) -> list[Message]:
        """Pass follow-ups to middleware, in the context of the handler."""
        passing = as_sent(self.middleware, work.outgoing)
        sent = await asyncio.create_task(passing, name="mx-rmq follow-ups", context=work.context)
        if any(one.id is None for one in sent):
            raise InvalidInput("middleware has passed on a follow-up without an id")
        return [one.message(self.max_payload) for one in sent]

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
        try:
            return codec.encode_payload(value, self.max_payload)
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


class MessageSteps:
    """The steps of one message, while its handler runs."""

    def __init__(self, keeper: StepKeeper, held: HeldMessage, signals: dict[str, bytes]) -> None:
        self._keeper = keeper
        self._held = held
        self._signals = signals
        self._late: dict[str, None] = {}  # waits that timed out in this call
        self._noting = asyncio.Lock()
        self._unnoted: dict[str, None] = {}  # finished steps that the server may not have
        self.follow_ups: list[Message] = []
        self.outgoing: list[Outgoing] = []  # the same, if there is middleware
        self.context: Context | None = None  # of the handler, when it produced the last of these
        self._follow_up_bytes = 0
        self.suspended = False

    @property
    def _message(self) -> Message:
        message = self._held.message
        if message is None:
            raise InvalidInput("the message is not being handled")
        return message

    async def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function, unless it has finished before; return its value as JSON holds it."""
        self._refuse_in_batch("step")
        check_name("step", name)
        _check_function(name, function)
        steps = core_steps.read(self._message)
        if name in steps.done:
            await self._note(name)
            return msgspec.json.decode(steps.done[name])
        if name in steps.until:
            raise InvalidInput(f"step {name!r} has the name of a sleep or a wait")
        self._stop_if_ended()
        if inspect.iscoroutinefunction(function):
            value = await function(*args)
        else:
            value = await in_thread(function, *args)
            if inspect.isawaitable(value):
                value = await value
        self._stop_if_ended()
        encoded = self._keeper.encoded(f"the value of step {name!r}", value)
        steps = core_steps.read(self._message)
        done = {**steps.done, name: encoded}
        size, most = sum(map(len, done.values())), ALL_STEPS * self._keeper.max_payload
        if size > most:
            raise InvalidInput(
                f"step {name!r}: the values of all steps take {size:,} bytes; "
                f"the limit is {most:,} ({ALL_STEPS} times max_payload)"
            )
        self._check_names([*done, *steps.until])
        # Set before it is noted: a step or a suspension that runs at the same time builds on it.
        self._held.message = core_steps.write(
            self._message, replace(steps, done=done, late=self._all_late(steps))
        )
        self._unnoted[name] = None
        await self._note(name)
        return msgspec.json.decode(encoded)

    async def _note(self, name: str) -> None:
        """Return when a finished step is noted, with all that have finished meanwhile."""
        async with self._noting:  # one after the other: an older record must not arrive last
            if name in self._unnoted:
                names = list(self._unnoted)
                await self._keeper.note(self._held, self._message, f"step {', '.join(names)}")
                for one in names:
                    del self._unnoted[one]

    async def sleep(self, name: str, seconds: Seconds) -> None:
        """Return when the time has passed; until then, hold no slot and no lease."""
        self._refuse_in_batch("sleep")
        check_name("sleep", name)
        until, now = self._until(name, as_seconds(f"sleep {name!r}: ", seconds)), self._now()
        if now < until:
            delay = until - now
            message = replace(self._message, due=until)
            raise self._suspended(SnoozeLater(message, delay, f"sleep {name}"))

    async def wait(self, name: str, timeout: Seconds | None, type: Any) -> Any:  # noqa: ASYNC109 - it raises TimeoutError
        """Return the value of a signal; until it comes, hold no slot and no lease."""
        self._refuse_in_batch("wait")
        check_name("signal", name)
        decode = decoder(type, f"wait({name!r})")
        value, is_late = self._signals.get(name), name in core_steps.read(self._message).late
        if value is not None and not is_late:
            try:
                return decode(value)
            except Exception as error:
                raise unreadable(error, type, value, f"the signal {name!r}") from error
        seconds = None if timeout is None else as_seconds(f"wait {name!r}: timeout=", timeout)
        begins = name not in core_steps.read(self._message).until  # it may have come already
        until, now, delay = self._until(name, seconds), self._now(), None
        if until:
            delay = max(0, until - now)
            if (not delay and not begins) or is_late:
                self._late[name] = None
                raise TimeoutError(f"the signal {name!r} did not come in time")
        raise self._suspended(Park(self._message, (name,), delay, f"for signal {name}"))

    def produce(
        self, topic: str, payload: Any, options: ProduceOptions, *, id: str | None, key: str | None
    ) -> str:
        """Plan a message that is produced when this one completes; return its id."""
        check_topic(topic)
        if self._held.settling:
            raise InvalidInput("delivery.produce: the handler has already ended")
        if len(self.follow_ups) >= MAX_FOLLOW_UPS:
            raise InvalidInput(f"a handler may produce {MAX_FOLLOW_UPS:,} follow-ups")
        for name in ("on_duplicate", "dedup", "confirm"):
            if options.get(name) not in (None, "ignore"):
                raise InvalidInput(f"{name}: a follow-up does not take this option")
        if id == self._message.id and topic == self._held.topic.handler.topic:
            raise InvalidInput(
                f"id={id!r}: this message has the id until it completes, so the follow-up would "
                "be ignored; pass another id, or none"
            )
        id = id or follow_up_id(self._held.topic.topic, self._message, len(self.follow_ups) + 1)
        outgoing = Outgoing.of(topic, payload, options, id=id, key=key)
        message = outgoing.message(self._keeper.max_payload)
        size = self._follow_up_bytes + len(message.payload)
        if size > MAX_FLOW_BYTES:
            raise InvalidInput(
                f"the follow-ups take {size:,} bytes; the limit is {MAX_FLOW_BYTES:,}"
            )
        self._follow_up_bytes = size
        self.follow_ups.append(message)
        if self._keeper.middleware:
            self.outgoing.append(outgoing.copy())
            self.context = copy_context()
        return id

    @property
    def results(self) -> list[Any]:
        """What the messages returned that this one waited for; None for a dead one."""
        steps = core_steps.read(self._message)
        found = []
        for source in steps.after:
            value = self._signals.get(source.signal, b"")
            found.append(msgspec.json.decode(value[1:]) if value[:1] == COMPLETED else None)
        return found

    def _refuse_in_batch(self, what: str) -> None:
        if self._held.topic.handler.batch is not None:
            raise InvalidInput(
                f"delivery.{what}: a batch handler has no steps of a single message; "
                "use a handler without batch="
            )

    def _stop_if_ended(self) -> None:
        """Cancel a task that the handler has left behind: its outcome has the steps until then.

        It is on its way to the server, and would undo a step that is noted now.
        """
        if self._held.settling:
            raise asyncio.CancelledError

    def _until(self, name: str, seconds: float | None) -> int:
        """Return when a sleep or a wait ends, 0 if never; the first call decides."""
        steps = core_steps.read(self._message)
        if name in steps.done:
            raise InvalidInput(f"{name!r} is also the name of a step")
        until = steps.until.get(name)
        if until is None:
            until = 0 if seconds is None else self._now() + round(seconds * 1000)
            until_of = {**steps.until, name: until}
            self._check_names([*steps.done, *until_of])
            steps = replace(steps, until=until_of, late=self._all_late(steps))
            self._held.message = core_steps.write(self._message, steps)
        return until

    def _check_names(self, names: list[str]) -> None:
        """Refuse one name too many: a handler that sleeps in a loop would never stop growing."""
        size, most = sum(map(len, names)), self._keeper.max_payload
        if size > most:
            raise InvalidInput(
                f"{len(names):,} steps, sleeps and waits of a message have names of {size:,} "
                f"characters; the limit is {most:,} (setting max_payload)"
            )

    def _all_late(self, steps: core_steps.Steps) -> list[str]:
        return list(dict.fromkeys((*steps.late, *self._late)))

    def _suspended(self, outcome: SnoozeLater | Park) -> Suspended:
        self.suspended = True
        return Suspended(outcome)

    def _now(self) -> int:
        return self._held.topic.clock.now()


def _check_function(name: str, function: Any) -> None:
    """Refuse what cannot be called, such as a coroutine."""
    if inspect.iscoroutine(function):
        function.close()  # or Python warns that it was never awaited
    if not callable(function):
        raise InvalidInput(
            f"step {name!r}: {type(function).__name__} is not a function; "
            "pass the function and its arguments: step(name, function, *args)"
        )
