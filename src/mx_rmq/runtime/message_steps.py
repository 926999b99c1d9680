"""What `delivery.step`, `sleep`, `wait`, `produce` and `results` do while a handler runs."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from mx_rmq.core import steps as core_steps
from mx_rmq.core.durations import Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.names import check_topic
from mx_rmq.core.outcome import NotAwaited, Park, SnoozeLater, Suspended
from mx_rmq.core.outgoing import Outgoing
from mx_rmq.core.payload import decoder, unreadable
from mx_rmq.core.steps import (
    ALL_STEPS,
    MAX_FLOW_BYTES,
    MAX_FOLLOW_UPS,
    check_name,
    follow_up_id,
)
from mx_rmq.core.text import shown
from mx_rmq.in_thread import in_thread
from mx_rmq.runtime.follow_ups import COMPLETED

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mx_rmq.core.message import Message
    from mx_rmq.core.outgoing import ProduceOptions
    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.runtime.steps import StepKeeper

T = TypeVar("T")


class FollowUp(NamedTuple):
    """A message that a handler wants to produce when its own completes."""

    outgoing: Outgoing
    message: Message
    context: Context


class MessageSteps:
    """The steps of one message, while its handler runs."""

    def __init__(self, keeper: StepKeeper, held: HeldMessage, signals: dict[str, bytes]) -> None:
        self._keeper = keeper
        self._held = held
        self._signals = signals
        self._late: dict[str, None] = {}  # waits that timed out in this call
        self._noting = asyncio.Lock()
        self._unnoted: dict[str, None] = {}  # finished steps that the server may not have
        self._used: set[str] = set()  # steps and sleeps that have begun in this call
        self._calls: deque[tuple[str, Coroutine[Any, Any, Any]]] = deque()
        self._follow_ups: list[FollowUp] = []
        self._returned = False
        self._follow_up_bytes = 0
        self.suspended = False

    @property
    def _message(self) -> Message:
        message = self._held.message
        if message is None:
            raise InvalidInput("the message is not being handled")
        return message

    def step(self, name: str, function: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        """Run a function, unless it has finished before; return its value as JSON holds it."""
        return self._called("step", name, self._step(name, function, *args))

    def sleep(self, name: str, seconds: Seconds) -> Coroutine[Any, Any, None]:
        """Return when the time has passed; until then, hold no slot and no lease."""
        return self._called("sleep", name, self._sleep(name, seconds))

    def wait(self, name: str, timeout: Seconds | None, type: Any) -> Coroutine[Any, Any, Any]:
        """Return the value of a signal; until it comes, hold no slot and no lease."""
        return self._called("wait", name, self._wait(name, timeout, type))

    def _called(self, what: str, name: str, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return what the handler must await, or refuse a call that it could not."""
        why = ""
        if self._held.topic.handler.batch is not None:
            why = "a batch handler has no steps of a single message; use a handler without batch="
        else:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                why = "needs an `async def` handler, which can await it"
        if why:
            work.close()
            raise InvalidInput(f"delivery.{what}: {why}")
        while self._calls and _has_begun(self._calls[0][1]):
            self._calls.popleft()
        self._calls.append((f"delivery.{what}({shown(name)}, …)", work))
        return work

    def close(self) -> list[FollowUp]:
        """Return what to produce: the handler has returned, and cannot add to it any more."""
        self._returned = True
        self._check_awaited()
        return self._follow_ups

    def _check_awaited(self) -> None:
        """Fail the attempt if its handler has not awaited a step, a sleep or a wait."""
        forgotten = [one for one in self._calls if not _has_begun(one[1])]
        for _, work in forgotten:
            work.close()  # or Python warns, too
        if forgotten:
            raise NotAwaited(
                f"{self._held.topic.handler.name} has not awaited {forgotten[0][0]}: "
                "put `await` before it"
            )

    def _use(self, what: str, name: str) -> None:
        if name in self._used:
            raise InvalidInput(
                f"{what} {name!r}: this run of the handler has used the name before; two steps or "
                'sleeps need different names: in a loop, f"page {number}"'
            )
        self._used.add(name)

    async def _step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        check_name("step", name)
        _check_function(name, function)
        self._use("step", name)
        try:
            return await self._run(name, function, *args)
        except BaseException:
            self._used.discard(name)  # the handler may try again
            raise

    async def _run(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
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

    async def _sleep(self, name: str, seconds: Seconds) -> None:
        check_name("sleep", name)
        until, now = self._until(name, as_seconds(f"sleep {name!r}: ", seconds)), self._now()
        self._use("sleep", name)
        if now < until:
            delay = until - now
            message = replace(self._message, due=until)
            raise self._suspended(SnoozeLater(message, delay, f"sleep {name}"))

    def skip_sleep(self, sleeping: SnoozeLater) -> SnoozeLater:
        """Return a sleep as if its time had passed, for tests."""
        steps, now = core_steps.read(self._message), self._now()
        until = {
            name: now if end == sleeping.message.due else end for name, end in steps.until.items()
        }
        self._held.message = core_steps.write(self._message, replace(steps, until=until))
        return SnoozeLater(replace(sleeping.message, due=now), 0, sleeping.reason)

    async def _wait(self, name: str, timeout: Seconds | None, type: Any) -> Any:  # noqa: ASYNC109 - it raises TimeoutError
        check_name("signal", name)
        decode = decoder(type, f"wait({name!r})")
        value, is_late = self._signals.get(name), name in core_steps.read(self._message).late
        if value is not None and not is_late:
            try:
                return decode(value)
            except Exception as error:
                raise unreadable(error, type, value, f"the signal {name!r}") from error
        seconds = None if timeout is None else as_seconds(f"wait {name!r}: timeout=", timeout)
        begins = name not in core_steps.read(self._message).until  # it may have arrived already
        until, now, delay = self._until(name, seconds), self._now(), None
        if until:
            delay = max(0, until - now)
            if (not delay and not begins) or is_late:
                self._late[name] = None
                raise TimeoutError(f"the signal {name!r} did not arrive in time")
        raise self._suspended(Park(self._message, (name,), delay, f"for signal {name}"))

    def produce(
        self, topic: str, payload: Any, options: ProduceOptions, *, id: str | None, key: str | None
    ) -> str:
        """Plan a message that is produced when this one completes; return its id."""
        check_topic(topic)
        if self._returned or self._held.settling:
            raise InvalidInput("delivery.produce: this run of the handler has ended")
        if len(self._follow_ups) >= MAX_FOLLOW_UPS:
            raise InvalidInput(f"a handler may produce {MAX_FOLLOW_UPS:,} follow-ups")
        for name in ("on_duplicate", "dedup", "confirm"):
            if options.get(name) not in (None, "ignore"):
                raise InvalidInput(f"{name}: a follow-up does not take this option")
        if id == self._message.id and topic == self._held.topic.handler.topic:
            raise InvalidInput(
                f"id={id!r}: this message has the id until it completes, so the follow-up would "
                "be ignored; pass another id, or none"
            )
        id = id or follow_up_id(self._held.topic.topic, self._message, len(self._follow_ups) + 1)
        outgoing = Outgoing.of(topic, payload, options, id=id, key=key)
        message = outgoing.message(self._keeper.max_payload)
        size = self._follow_up_bytes + len(message.payload)
        if size > MAX_FLOW_BYTES:
            raise InvalidInput(
                f"the follow-ups take {size:,} bytes; the limit is {MAX_FLOW_BYTES:,}"
            )
        self._follow_up_bytes = size
        self._follow_ups.append(FollowUp(outgoing, message, copy_context()))
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


def _has_begun(work: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(work) != inspect.CORO_CREATED


def _check_function(name: str, function: Any) -> None:
    """Refuse what cannot be called, such as a coroutine."""
    if inspect.iscoroutine(function):
        function.close()  # or Python warns that it was never awaited
    if not callable(function):
        raise InvalidInput(
            f"step {name!r}: {type(function).__name__} is not a function; "
            "pass the function and its arguments: step(name, function, *args)"
        )
