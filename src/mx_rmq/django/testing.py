"""Tests of a Django project: a TestCase whose queue runs on a test server, drained inline.

The handlers run on the connections of the test, inside its transaction, and what they do is rolled
back with it. For pytest, `drain` works with the fixtures of `mx_rmq.testing`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from asgiref.sync import sync_to_async
from django import test
from django.db import connections

from mx_rmq.core.errors import InvalidInput
from mx_rmq.django.queue import shared_queue
from mx_rmq.testing import ANY, assert_not_produced, assert_produced, use
from mx_rmq.testing.use_in_tests import server
from mx_rmq.worker import Drained, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mx_rmq.core.outgoing import Outgoing, ProduceOptions
    from mx_rmq.django.queue import DjangoQueue

__all__ = ["QueueMixin", "TestCase", "TransactionTestCase", "drain"]


def drain(*, databases: Iterable[str] | None = None, delayed: bool = False) -> Drained:
    """Run the handlers of all pending messages, on the database connections of this thread.

    What they produce on commit is produced and handled, too, also if the test's transaction never
    commits. `databases`: aliases; None: all. In an async test: `await sync_to_async(drain)()`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise InvalidInput("drain would block this event loop: call it through sync_to_async")
    aliases = list(connections) if databases is None else list(databases)
    total = Drained()
    while True:
        with ExitStack() as stack:
            for alias in aliases:
                stack.enter_context(_committed(alias))
            once = _drain_on(aliases, delayed=delayed)
        total = _sum(total, once)
        if once in (Drained(), Drained(snoozed=once.snoozed)):
            return total


@contextmanager
def _committed(alias: str) -> Iterator[None]:
    """Call what was to be called on commit in this block, and only once.

    Django's captureOnCommitCallbacks leaves them where they are. One around a drain, or a commit
    after it, would call them again.
    """
    before = len(connections[alias].run_on_commit)
    try:
        with test.TestCase.captureOnCommitCallbacks(using=alias, execute=True):
            yield
    finally:
        del connections[alias].run_on_commit[before:]


def _drain_on(aliases: list[str], *, delayed: bool) -> Drained:
    """Drain in one thread, which uses the connections of this one.

    So does the thread in which async handlers use the ORM. It must not be this thread: that of an
    async test already serves the ORM calls of the test's event loop.
    """
    ours = {alias: connections[alias] for alias in aliases}

    @contextmanager
    def lent() -> Iterator[None]:
        before = {alias: connections[alias] for alias in aliases}
        for alias, connection in ours.items():
            connection.inc_thread_sharing()
            connections[alias] = connection
        try:
            yield
        finally:
            for alias, connection in ours.items():
                connection.dec_thread_sharing()
                connections[alias] = before[alias]

    async def work() -> Drained:
        stack = ExitStack()
        await sync_to_async(stack.enter_context)(lent())
        try:
            return await Worker(shared_queue()).drain(delayed=delayed, inline=True)
        finally:
            await sync_to_async(stack.close)()

    def run() -> Drained:
        with lent(), asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(work())

    with ThreadPoolExecutor(1, thread_name_prefix="mx-rmq-drain") as pool:
        return pool.submit(run).result()


def _sum(one: Drained, other: Drained) -> Drained:
    return Drained(
        **{each.name: getattr(one, each.name) + getattr(other, each.name) for each in fields(one)}
    )


class _Server:
    """One server for all tests of a process."""

    def __init__(self) -> None:
        self._url: str | None = None

    def url(self) -> str:
        if self._url is None:
            stack = ExitStack()
            self._url = stack.enter_context(server())
            Finalize(None, stack.close, exitpriority=0)  # atexit does not reach `test --parallel`
        return self._url


_server = _Server()


class QueueMixin(test.SimpleTestCase):
    """Puts the queue of the project into test mode for each test; see `mx_rmq.testing.use`."""

    mx_rmq_url: ClassVar[str | None] = None
    """A Redis for tests. None: a server that starts with the first test, by the extra embedded."""
    mx_rmq_options: ClassVar[dict[str, bool]] = {}
    """Options of `mx_rmq.testing.use`, such as {"instant_delays": True}."""

    def setUp(self) -> None:
        super().setUp()
        url = self.mx_rmq_url or _server.url()
        self.mq: DjangoQueue = shared_queue()
        self.enterContext(use(self.mq, url, **self.mx_rmq_options))

    def drain(self, *, delayed: bool = False) -> Drained:
        """Run the handlers of all pending messages, inline; return what became of them."""
        return drain(databases=_aliases(self.databases), delayed=delayed)

    def assertProduced(  # noqa: N802 - as unittest names its own
        self, topic: str, payload: Any = ANY, *, times: int | None = None, **options: Any
    ) -> list[Outgoing]:
        """Fail unless this was produced; see `mx_rmq.testing.assert_produced`."""
        return assert_produced(self.mq, topic, payload, times=times, **options)

    def assertNotProduced(  # noqa: N802 - as unittest names its own
        self, topic: str, payload: Any = ANY, **options: Unpack[ProduceOptions]
    ) -> None:
        """Fail if a matching message was produced."""
        assert_not_produced(self.mq, topic, payload, **options)


class TestCase(QueueMixin, test.TestCase):
    """Django's TestCase with a queue: what handlers do is rolled back with the test."""


class TransactionTestCase(QueueMixin, test.TransactionTestCase):
    """Django's TransactionTestCase with a queue."""


def _aliases(databases: Any) -> list[str]:
    return list(connections) if databases == "__all__" else list(databases)
