"""Test use: a queue runs on a test server, without waiting, and is cleaned up afterwards."""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from mx_rmq.admin import Admin
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.handler import Handler
from mx_rmq.core.limits import Limit
from mx_rmq.core.middleware import Middleware
from mx_rmq.core.outcome import Retry, SnoozeLater, suspension
from mx_rmq.core.retry import ByError, Delays, policy_of
from mx_rmq.embedded import EmbeddedServer
from mx_rmq.store import Store
from mx_rmq.store.delete_keys import wipe
from mx_rmq.testing.assertions import ProduceRecorder
from mx_rmq.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from contextlib import AbstractContextManager

    from mx_rmq.core.batch import Batch
    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.middleware import Handle, HandleBatch
    from mx_rmq.core.outgoing import Outgoing
    from mx_rmq.core.retry import Policy
    from mx_rmq.queue import MessageQueue
    from mx_rmq.settings import QueueSettings
    from mx_rmq.worker import Drained

T = TypeVar("T")


def use(
    mq: MessageQueue,
    url: str | None = None,
    *,
    instant_retries: bool = True,
    instant_delays: bool = False,
    instant_rates: bool = True,
) -> Use:
    """Put a queue that is not open into test mode, for a `with` or `async with` block.

    Its messages go to the server at `url`, under a random prefix; without a URL, to a server that
    runs only for the block. Everything it produces is recorded for `assert_produced`. At the end
    every topic is audited, the keys are deleted, and the queue is restored: handlers declared and
    `dependency_overrides` set in the block are gone. Crons do not tick.

    `instant_retries`: retries do not wait. `instant_delays`: messages produced with `delay` or `at`
    do not wait either, nor do handlers that call `delivery.sleep`. `instant_rates`: no `rate`
    applies. With all three, `drain` never waits, and leaves only what waits for a signal or is
    snoozed. `produce` never waits for replicas.
    """
    instant = {"retries": instant_retries, "delays": instant_delays, "rates": instant_rates}
    return Use(mq, _used(mq, url, **instant))


class Use:
    """What `use` returns: `with` puts the queue into test mode, `async with` also opens it."""

    def __init__(self, mq: MessageQueue, used: AbstractContextManager[None]) -> None:
        self._mq = mq
        self._used = used
        self._stack = AsyncExitStack()

    def __enter__(self) -> MessageQueue:
        self._used.__enter__()
        return self._mq

    def __exit__(self, *error: Any) -> bool | None:  # noqa: PYI036 - passed on as they are
        return self._used.__exit__(*error)

    async def __aenter__(self) -> MessageQueue:
        async with AsyncExitStack() as stack:
            await asyncio.to_thread(self._used.__enter__)
            stack.push_async_exit(lambda *error: asyncio.to_thread(self._used.__exit__, *error))
            await stack.enter_async_context(self._mq)
            self._stack = stack.pop_all()
        return self._mq

    async def __aexit__(self, *error: Any) -> bool | None:  # noqa: PYI036 - the same
        return await self._stack.__aexit__(*error)


@contextmanager
def _used(
    mq: MessageQueue, url: str | None, *, retries: bool, delays: bool, rates: bool
) -> Iterator[None]:
    if mq.is_open:
        raise InvalidInput("the queue is already open; put it into test mode before you open it")
    with ExitStack() as stack:
        url = url or stack.enter_context(server())
        _close_sync(mq)
        before = mq.settings, mq.middleware, mq.handlers, mq.crons, mq.dependency_overrides
        settings = mq.settings = replace(
            mq.settings,
            url=url,
            username=None,  # the login is for the real server
            password=None,
            password_file=None,
            prefix=f"test:{uuid4().hex}",
            confirm="stored",
        )
        mq._in_test_mode = True
        change = partial(_without_waits, retries=retries, delays=delays)
        mq.middleware = (*mq.middleware, ProduceRecorder(change))
        mq.handlers = _InstantHandlers(mq.handlers, retries=retries, rates=rates)
        mq.crons = {}
        mq.dependency_overrides = dict(mq.dependency_overrides)
        if retries:
            mq.middleware = (_InstantRetry(), *mq.middleware)
        if delays:
            mq.middleware = (_InstantSleep(), *mq.middleware)

        def leave() -> list[str]:
            """Restore the queue and clean up; return the problems found."""
            _close_sync(mq)
            problems = []
            if mq._producer is not None:  # is_open is False if the queue's loop has ended
                mq._producer = mq._loop = None  # without its loop it cannot be closed
                problems = ["the test left the queue open: put `async with mq:` around its use"]
            mq.settings, mq.middleware, mq.handlers, mq.crons, mq.dependency_overrides = before
            mq._in_test_mode = False
            return problems + run(clean(settings))

        try:
            yield
        except BaseException as error:
            for problem in leave():
                error.add_note(problem)
            raise
        if problems := leave():
            raise AssertionError("\n".join(problems))


def _close_sync(mq: MessageQueue) -> None:
    if "sync" in mq.__dict__:
        mq.sync.close()  # its next use opens it again, with the settings of that time


# retries, delays and rates that do not wait

NOW: Final = Delays((0,))


def _instant(policy: Policy) -> Policy:
    """Return a policy that retries the same errors, but at once."""
    if not isinstance(policy, ByError):
        return NOW
    rules = {name: None if rule is None else NOW for name, rule in policy.rules.items()}
    return ByError(rules, None if policy.otherwise is None else NOW)


def _without_rate(limit: Limit | None) -> Limit | None:
    if limit is None or limit.running is None:
        return None
    return Limit(running=limit.running, overtake=limit.overtake)


class _InstantHandlers(dict[str, Handler]):
    """Handlers that do not wait, including those that a test declares."""

    def __init__(self, handlers: dict[str, Handler], *, retries: bool, rates: bool) -> None:
        super().__init__()
        self._retries = retries
        self._rates = rates
        for topic, handler in handlers.items():
            self[topic] = handler

    def __setitem__(self, topic: str, handler: Handler) -> None:
        if self._retries:
            handler = replace(handler, retry=_instant(handler.retry))
        if self._rates:
            limit, per_key = _without_rate(handler.limit), _without_rate(handler.per_key)
            handler = replace(handler, limit=limit, per_key=per_key)
        super().__setitem__(topic, handler)


class _InstantRetry(Middleware):
    """The outermost middleware: `raise Retry(delay=30)` does not wait, wherever it is raised."""

    async def handle(self, delivery: Delivery, call_next: Handle) -> Any:
        try:
            return await call_next(delivery)
        except Retry as error:
            _retry_now(error)
            raise

    async def handle_batch(self, batch: Batch, call_next: HandleBatch) -> Any:
        try:
            return await call_next(batch)
        except Retry as error:
            _retry_now(error)
            raise
        finally:
            for why in batch.failed.values():
                if isinstance(why, Retry):
                    _retry_now(why)


class _InstantSleep(Middleware):
    """`delivery.sleep` does not wait: the handler is called again at once."""

    async def handle(self, delivery: Delivery, call_next: Handle) -> Any:
        try:
            return await call_next(delivery)
        except BaseException as error:
            suspended = suspension(error)
            if suspended is not None and isinstance(suspended.outcome, SnoozeLater):
                suspended.outcome = delivery._work("sleep").skip_sleep(suspended.outcome)
            raise


def _retry_now(error: Retry) -> None:
    if error.delay is not None:  # without one the policy decides
        error.delay = 0.0


def _without_waits(message: Outgoing, *, retries: bool, delays: bool) -> Outgoing:
    """Return a recorded message as it is sent."""
    if retries and message.retry is not None:
        message = replace(message, retry=_instant(policy_of(message.retry)))
    if delays:
        message = replace(message, delay=None, at=None)
    return replace(message, confirm=None)


# without an event loop


def drain(
    mq: MessageQueue, *, delayed: bool = False, inline: bool = False, **options: Any
) -> Drained:
    """Run `await Worker(mq, **options).drain()` for a sync test, and return its result.

    If the queue is open in another thread, for example by a web framework's test client, it is
    drained there. With `inline`, it must not be, and plain handlers run in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise InvalidInput("drain would block this event loop: use `await Worker(mq).drain()`")
    worker = Worker(mq, **options)
    if inline and mq.is_open:
        raise InvalidInput("the queue is open in another thread: inline cannot use this one")
    if inline:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(worker.drain(delayed=delayed, inline=True))
    if mq._loop is None:
        return run(worker.drain(delayed=delayed))
    if not mq._loop.is_running():
        raise InvalidInput("the queue is open in an event loop that is not running: close it there")
    return asyncio.run_coroutine_threadsafe(worker.drain(delayed=delayed), mq._loop).result()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a separate loop and thread, so the loop of this thread does not matter."""
    with ThreadPoolExecutor(1, thread_name_prefix="mx-rmq-testing") as pool:
        return pool.submit(copy_context().run, asyncio.run, work).result()


# the server


@contextmanager
def server() -> Iterator[str]:
    """Run a server in a temporary directory whose path is short enough for a socket."""
    with (
        tempfile.TemporaryDirectory(prefix="mx-rmq-", ignore_cleanup_errors=True) as directory,
        EmbeddedServer.start(directory) as running,
    ):
        yield running.url


async def clean(settings: QueueSettings) -> list[str]:
    """Audit every topic, then delete every key under the prefix; return what the audit found."""
    async with await Store.open(
        settings.address,
        prefix=settings.prefix,
        limits=settings.limits,
        patience=settings.patience,
        load_scripts=settings.load_scripts,
    ) as store:
        admin = Admin(store)
        violations = [one for topic in await admin.topics() for one in await admin.audit(topic)]
    await wipe(settings.address, settings.prefix)
    return [f"audit: {one}" for one in violations]
