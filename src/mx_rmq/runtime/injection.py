"""Injection: calls the providers of a handler before it, and cleans up after it.

Providers run where their handler runs: in the event loop for an async handler, in the handler's
thread for a plain one. Async providers, what they need, and worker-scoped ones always run in the
event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, asynccontextmanager
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from mx_rmq.core.dependencies import PlanStep, ProviderKind
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.outcome import NotAwaited, check_was_awaited
from mx_rmq.runtime.threads import Call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from mx_rmq.core.batch import Batch
    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.dependencies import Overrides, Plan, Provider
    from mx_rmq.core.handler import Handler

    Opened = list[AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
    """Generators to close, the last one first."""


class Injection:
    """The dependencies of one worker's handlers."""

    def __init__(self, overrides: Callable[[], Overrides]) -> None:
        self._overrides = overrides  # what tests replace now
        self._planned_with: Overrides = {}
        self._plans: dict[Handler, tuple[Plan, list[Any]]] = {}
        """With the values of the worker-scoped providers."""
        self._of_worker: dict[Callable[..., Any], Any] = {}  # by provider

    @asynccontextmanager
    async def worker_scope(self, handlers: Iterable[Handler]) -> AsyncIterator[None]:
        """Call the worker-scoped providers, and clean up after them."""
        opened: Opened = []
        error: BaseException | None = None
        loop = asyncio.get_running_loop()
        try:
            for handler in handlers:
                if handler.dependencies is None:
                    continue
                values: list[Any] = [None, None]
                for step in handler.dependencies.plan(self._overrides()).of_worker:
                    made = self._of_worker
                    if step.provider.function not in made:
                        made[step.provider.function] = await _provide(step, values, opened)
                    values.append(made[step.provider.function])
            yield
        except BaseException as raised:
            if not loop.is_running():
                raise  # as in `run`
            error = raised
        self._of_worker.clear()
        if (error := await _close(opened, error)) is not None:
            raise error

    async def run(
        self,
        handler: Handler,
        payload: Any,
        delivery: Delivery | Batch,
        in_thread: Callable[[Call], Awaitable[Any]],
    ) -> Any:
        """Call the providers, then the handler, then clean up in reverse order.

        An exception is thrown into the generators. They may replace it, but not swallow it: the
        attempt has failed. An exception while cleaning up after a success fails it, too.
        """
        opened: Opened = []
        error: BaseException | None = None
        result = None
        loop = asyncio.get_running_loop()
        try:
            plan, of_worker = self._ready(handler)
            values = [payload, delivery, *of_worker]
            for step in plan.in_loop:
                values.append(await _provide(step, values, opened))
            if handler.is_async:
                result = await plan.handler.call(handler.function, values)
                if result is not None:
                    check_was_awaited(result, handler)
            else:
                result = await in_thread(_in_thread(handler, plan, values))
        except BaseException as raised:
            if not loop.is_running():
                raise  # GeneratorExit, because the event loop has ended: nothing can be awaited
            error = raised
        if (error := await _close(opened, error)) is not None:
            raise error
        return result

    def _ready(self, handler: Handler) -> tuple[Plan, list[Any]]:
        """Return the plan of a handler, made again only if tests have changed the overrides."""
        overrides = self._overrides()
        if overrides != self._planned_with:
            self._planned_with = dict(overrides)
            self._plans.clear()
        ready = self._plans.get(handler)
        if ready is None and handler.dependencies is not None:
            plan = handler.dependencies.plan(overrides)
            of_worker = [self._made(step.provider) for step in plan.of_worker]
            ready = self._plans[handler] = plan, of_worker
        assert ready is not None  # noqa: S101 - only handlers with dependencies come here
        return ready

    def _made(self, provider: Provider) -> Any:
        try:
            return self._of_worker[provider.function]
        except KeyError:
            raise InvalidInput(
                f'the provider {provider.name} has scope="worker" and was not called when the '
                "worker started: set dependency_overrides before that"
            ) from None


def _in_thread(handler: Handler, plan: Plan, values: list[Any]) -> Call:
    """Return the part of the work that one thread does: plain providers, handler, clean-up."""

    def work() -> Any:
        opened: list[AbstractContextManager[Any]] = []
        error: BaseException | None = None
        result = None
        try:
            try:
                for step in plan.with_handler:
                    values.append(_provide_here(step, values, opened))
                result = plan.handler.call(handler.function, values)
                if result is not None:
                    check_was_awaited(result, handler)
            finally:
                call.end_interrupts()  # nothing interrupts a commit or a rollback
        except BaseException as raised:  # noqa: BLE001 - raised again below
            error = raised
        while opened:
            try:
                opened.pop().__exit__(*_info(error))
            except BaseException as raised:  # noqa: BLE001 - the others are closed, too
                error = raised
        if error is not None:
            raise error
        return result

    call = Call(work, ())
    return call


def _provide_here(
    step: PlanStep, values: list[Any], opened: list[AbstractContextManager[Any]]
) -> Any:
    """Return the value of a plain provider."""
    value = step.arguments.call(step.provider.open, values)
    if step.provider.kind is ProviderKind.GENERATOR:
        opened.append(value)  # first, because an interrupt may come right after it has started
        return value.__enter__()
    if iscoroutine(value):
        value.close()
        raise NotAwaited(
            f"the provider {step.provider.name} returned a coroutine: declare it with async def"
        )
    return value


async def _provide(step: PlanStep, values: list[Any], opened: Opened) -> Any:
    """Return the value of any provider."""
    kind = step.provider.kind
    if kind is ProviderKind.COROUTINE:
        return await step.arguments.call(step.provider.open, values)
    if kind is ProviderKind.ASYNC_GENERATOR:
        manager = step.arguments.call(step.provider.open, values)
        value = await manager.__aenter__()
        opened.append(manager)
        return value
    return _provide_here(step, values, opened)  # type: ignore[arg-type]  # it only appends


async def _close(opened: Opened, error: BaseException | None) -> BaseException | None:
    """Close generators, the last first; return the error that is left in the end."""
    loop = asyncio.get_running_loop()
    while opened:
        one = opened.pop()
        try:
            if isinstance(one, AbstractContextManager):
                one.__exit__(*_info(error))
            else:
                await one.__aexit__(*_info(error))
        except BaseException as raised:
            if not loop.is_running():
                raise  # as above
            error = raised  # the others are closed, too
    return error


def _info(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)
