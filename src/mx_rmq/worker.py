"""Worker: takes messages from a queue and runs its handlers.

`runtime/engine.py` builds, starts and stops its parts. Every part can safely run in every worker,
so there is no leader.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from mx_rmq.core import events
from mx_rmq.core.errors import InvalidInput, MxRmqError, WorkerBroken
from mx_rmq.core.names import check_worker
from mx_rmq.core.text import named, shown
from mx_rmq.queue import MessageQueue
from mx_rmq.runtime import current
from mx_rmq.runtime.engine import Engine
from mx_rmq.runtime.injection import Injection
from mx_rmq.runtime.lifespan import Lifespan, WasCancelled
from mx_rmq.runtime.signals import on_stop_signals
from mx_rmq.safe_log import get_logger
from mx_rmq.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mx_rmq.core.durations import Seconds
    from mx_rmq.core.handler import Handler

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain did."""

    completed: int = 0
    retried: int = 0
    dead: int = 0
    quarantined: int = 0
    snoozed: int = 0


class Worker:
    """Runs the handlers of a queue: `run` until a signal, `drain` until empty, or `async with`."""

    def __init__(
        self,
        mq: MessageQueue,
        *,
        concurrency: int | None = None,
        topics: Sequence[str] | None = None,
        grace: Seconds | None = None,
        prefetch: int | None = None,
        name: str | None = None,
        metrics_port: int | None = None,
        metrics_host: str | None = None,
        metrics_keys: int | None = None,
    ) -> None:
        if not isinstance(mq, MessageQueue):
            raise InvalidInput(f"Worker takes a MessageQueue, not {shown(mq)}")
        self.settings = WorkerSettings.load(
            concurrency=concurrency,
            topics=topics,
            grace=grace,
            prefetch=prefetch,
            name=name,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            metrics_keys=metrics_keys,
        )
        self.name = check_worker(self.settings.name) if self.settings.name else _name()
        self.mq = mq
        self._engine: Engine | None = None
        self._lifespan: Lifespan | None = None
        self._runs = False
        self._opened = False
        self._broken = ""  # why the worker failed; empty: it did not
        self._stopping: asyncio.Task[bool] | None = None
        self._starting: asyncio.Future[None] | None = None
        """Done when the current start has succeeded or failed."""
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> int:
        """How many handlers are running."""
        return 0 if self._engine is None else self._engine.slots.running

    @property
    def held(self) -> int:
        """How many messages it holds: running, about to run, and being settled."""
        return 0 if self._engine is None else len(self._engine.slots.held)

    @property
    def trouble(self) -> str:
        """Why it takes no messages right now; empty: it takes them."""
        if self._broken:
            return self._broken
        if self._stopping is not None:
            return "the worker is stopping"
        if self._engine is None:
            return "the worker has not started"
        if down := self._engine.watchdog.down():
            return "; ".join(f"the {part} is down: {why}" for part, why in down.items())
        return "the server is unreachable" if self.mq.store.links.lost() else ""

    @property
    def down(self) -> dict[str, str]:
        """The parts that are down and being restarted, each with the reason."""
        return {} if self._engine is None else self._engine.watchdog.down()

    async def run(self) -> bool:
        """Work until SIGTERM or SIGINT; return whether everything was settled or handed back.

        After the first signal, handlers may finish within the grace period; a second signal cancels
        them. If a part of the worker keeps dying, the worker stops in the same order, and this
        raises WorkerBroken.
        """
        stop = asyncio.Event()

        def on_signal() -> None:
            if stop.is_set():
                self.cancel()
            stop.set()

        with on_stop_signals(on_signal):
            if not await self._started_before(stop):
                return True
            try:
                await self._until(stop)
            finally:
                clean = await self.stop()
        if self._broken:
            raise WorkerBroken(self._broken)
        return clean

    async def _until(self, stop: asyncio.Event) -> None:
        """Wait until a signal comes, or the worker fails or stops."""
        while not stop.is_set() and self._engine is not None and self._stopping is None:
            waiting = asyncio.create_task(stop.wait(), name="mx-rmq signal")
            either: list[asyncio.Future[Any]] = [waiting, self._engine.failed]
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()

    async def _started_before(self, stop: asyncio.Event) -> bool:
        """Start, unless a signal to stop comes first; return whether it started."""
        starting = asyncio.create_task(self.start(), name="mx-rmq start")
        stopping = asyncio.create_task(stop.wait(), name="mx-rmq signal")
        try:
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (starting, stopping):
                task.cancel()
            await asyncio.wait([starting, stopping])
        if starting.cancelled():
            if stop.is_set():
                return False
            raise WorkerBroken("the worker cannot start: some code has cancelled its start")
        await starting
        return True

    async def drain(self, *, delayed: bool = False, inline: bool = False) -> Drained:
        """Work until nothing is pending or running; with `delayed`, until nothing waits at all.

        With `inline`, plain handlers and providers run in this thread, for tests with transactions.
        Then a handler's `timeout` cannot interrupt them.
        """
        kinds = events.Completed, events.Retried, events.Died, events.Quarantined, events.Snoozed
        counts = dict.fromkeys(kinds, 0)

        def count(event: events.Event) -> None:
            counts[type(event)] += 1

        unsubscribe = self.mq.events.subscribe(count, *counts)
        try:
            engine = await self._start(inline=inline)
            try:
                await engine.until_empty(delayed=delayed)
            finally:
                await self.stop()
        finally:
            unsubscribe()
        if self._broken:
            raise WorkerBroken(self._broken)
        return Drained(*counts.values())

    async def start(self) -> None:
        """Start to work. Installs no signal handlers."""
        await self._start()

    async def _start(self, *, inline: bool = False) -> Engine:
        if self._loop is not None and self._loop.is_closed():  # it was never stopped
            self._engine = self._lifespan = self._stopping = self._loop = None
            self._runs = self._opened = False
        if self._runs:
            raise InvalidInput(f"worker {self.name} is already running")
        handlers = self._handlers()
        self._broken = ""
        self._runs = True
        self._loop = asyncio.get_running_loop()
        starting = self._starting = self._loop.create_future()
        mq = self.mq
        try:
            if not mq.is_open:
                await mq.open()
                self._opened = True
            injection = Injection(lambda: mq.dependency_overrides)
            await self._enter_lifespan(injection, handlers)
            before = current.worker.set(self.name)  # all tasks of the engine inherit it
            try:
                engine = Engine(
                    mq.store,
                    mq.events,
                    handlers,
                    crons=[cron for topic, cron in mq.crons.items() if topic in handlers],
                    middleware=mq.middleware,
                    injection=injection,
                    settings=self.settings,
                    lease=mq.settings.lease,
                    name=self.name,
                    inline=inline,
                    thread_scope=mq.thread_scope,
                )
                await engine.start()
            finally:
                current.worker.reset(before)
            self._engine = engine
            engine.failed.add_done_callback(self._on_failed)
            if self._lifespan is not None:
                self._lifespan.when_it_ends(engine.fail)
            mq.on_close.append(self.stop)
        except BaseException:
            await self._close()
            raise
        finally:
            self._starting = None
            starting.set_result(None)
        return engine

    async def _enter_lifespan(self, injection: Injection, handlers: dict[str, Handler]) -> None:
        if self.mq.lifespan is None and not any(one.dependencies for one in handlers.values()):
            return

        @asynccontextmanager
        async def around() -> AsyncIterator[None]:
            lifespan = nullcontext() if self.mq.lifespan is None else self.mq.lifespan(self.mq)
            async with lifespan, injection.worker_scope(handlers.values()):
                yield

        lifespan = Lifespan(around())
        try:
            await lifespan.enter()
        except MxRmqError:
            raise
        except Exception as error:
            logger.exception("the worker cannot start")
            raise WorkerBroken(f"the worker cannot start: {_in_lifespan(error)}") from error
        self._lifespan = lifespan

    def _on_failed(self, failed: asyncio.Future[str]) -> None:
        """Stop cleanly: a part keeps dying."""
        if self._engine is None or self._engine.failed is not failed:
            return
        self._broken = f"the worker has failed: {failed.result()}"
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(self._engine), name="mx-rmq stop")

    async def stop(self) -> bool:
        """Stop in order; return whether everything was settled or handed back.

        Take no more messages. Let handlers finish within the grace period, and keep their leases.
        Cancel the rest, and hand their messages back without counting the attempt. Settle, then
        close what was opened.
        """
        if self._starting is not None:
            await asyncio.shield(self._starting)
        if self._stopping is None:
            if self._engine is None:
                return True
            if self._engine.consumer.handler_in(asyncio.current_task()) is not None:
                raise InvalidInput("a handler cannot wait for its own worker to stop")
            self._stopping = asyncio.create_task(self._stop(self._engine), name="mx-rmq stop")
        stopping = self._stopping  # it sets self._stopping to None at its end
        try:
            return await asyncio.shield(stopping)
        except asyncio.CancelledError:
            self.cancel()
            await asyncio.wait([stopping])
            raise

    def cancel(self) -> None:
        """Stop waiting: `stop` now cancels the handlers, or the end of the lifespan."""
        if self._engine is not None:
            self._engine.hurry.set()
        elif self._lifespan is not None:
            self._lifespan.cancel()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.stop()
        if self._broken and kind is None:
            raise WorkerBroken(self._broken)

    @asynccontextmanager
    async def run_in_app(self, app: object) -> AsyncIterator[None]:
        """Work while an ASGI application runs: `FastAPI(lifespan=Worker(mq).run_in_app)`.

        The queue is open meanwhile, so that requests can produce.
        """
        async with self:
            yield

    async def _stop(self, engine: Engine) -> bool:
        try:
            return await engine.stop(grace=self.settings.grace)
        finally:
            self.mq.on_close.remove(self.stop)
            self._engine = self._stopping = None
            await self._close()

    async def _close(self) -> None:
        try:
            await self._leave_lifespan()
        finally:
            try:
                if self._opened:
                    self._opened = False
                    await self.mq.close()
            finally:
                self._runs = False

    async def _leave_lifespan(self) -> None:
        """Leave it. If that fails, `run`, `drain` and `async with` raise WorkerBroken."""
        if self._lifespan is None:
            return
        try:
            await self._lifespan.leave()
        except Exception as error:
            logger.exception("the worker has stopped, but not cleanly")
            self._broken = self._broken or f"the worker has failed: {_in_lifespan(error)}"
        finally:
            self._lifespan = None

    def _handlers(self) -> dict[str, Handler]:
        known = self.mq.handlers
        if not known:
            raise InvalidInput("the queue has no handlers: declare one with @mq.handler(topic)")
        ttl, wanted = self.mq.settings.ttl, self.settings.topics
        if ttl is not None:
            known = {
                topic: replace(handler, ttl=ttl) if handler.ttl is None else handler
                for topic, handler in known.items()
            }
        if wanted is None:
            return dict(known)
        if unknown := [topic for topic in wanted if topic not in known]:
            raise InvalidInput(
                f"no handler for {', '.join(map(repr, unknown))}; the topics with handlers are "
                + ", ".join(known)
            )
        return {topic: known[topic] for topic in wanted}


def _in_lifespan(error: Exception) -> str:
    how = "was cancelled" if isinstance(error, WasCancelled) else f"raised {named(error)}"
    return f"its lifespan or a provider {how}"


def _name() -> str:
    """Return a unique name. Why it is long: see docs/decisions.md."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:20] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(16)}"
