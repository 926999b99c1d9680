"""Tests of a Django project: a TestCase whose queue runs on a test server, drained inline.

The handlers run on the connections of the test, inside its transaction, and what they do is rolled
back with it. For pytest, `drain` works with the fixtures of `mx_rmq.testing`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import cache
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

from asgiref.sync import sync_to_async
from django import test
from django.db import connections

from mx_rmq.core.errors import InvalidInput
from mx_rmq.django.project_queue import shared_queue
from mx_rmq.testing import ANY, assert_not_produced, assert_produced, produced, use
from mx_rmq.testing.use_in_tests import server
from mx_rmq.worker import Drained, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mx_rmq.core.outgoing import Outgoing, ProduceOptions
    from mx_rmq.django.queue import DjangoQueue

__all__ = ["QueueMixin", "TestCase", "TransactionTestCase", "drain"]

NEVER_COMMITS: Final = (
    "A TestCase never commits. What waits for the commit is produced only inside\n"
    "    with self.captureOnCommitCallbacks(execute=True):"
)


def drain(*, databases: Iterable[str] | None = None, delayed: bool = False) -> Drained:
    """Run the handlers of all pending messages, on the database connections of this thread.

    What they produce on commit is produced and handled too, even though the test's transaction
    never commits. `databases`: aliases; None: all. In async tests: `await sync_to_async(drain)()`.
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
    """Drain in another thread, which uses the connections of this one.

    The thread in which async handlers use the ORM uses them too. This thread cannot do the work
    itself: in an async test it already serves the ORM calls of the test's event loop.
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


@cache
def _server_url() -> str:
    """Start a server for all tests of this process; return its URL."""
    stack = ExitStack()
    url = stack.enter_context(server())
    Finalize(None, stack.close, exitpriority=0)  # atexit does not reach `test --parallel`
    return url


class QueueMixin(test.SimpleTestCase):
    """Puts the queue of the project into test mode for each test; see `mx_rmq.testing.use`."""

    mx_rmq_url: ClassVar[str | None] = None
    """A server for the tests. None: one is started with the first test (extra `embedded`)."""
    mx_rmq_options: ClassVar[dict[str, bool]] = {}
    """Options of `mx_rmq.testing.use`, such as {"instant_delays": True}."""

    def setUp(self) -> None:
        super().setUp()
        url = self.mx_rmq_url or _server_url()
        self.mq: DjangoQueue = shared_queue()
        self.enterContext(use(self.mq, url, **self.mx_rmq_options))

    def drain(self, *, delayed: bool = False) -> Drained:
        """Run the handlers of all pending messages, inline; return what became of them."""
        return drain(databases=_aliases(self.databases), delayed=delayed)

    def assertProduced(  # noqa: N802 - as unittest names its own
        self, topic: str, payload: Any = ANY, *, times: int | None = None, **options: Any
    ) -> list[Outgoing]:
        """Fail unless this was produced; see `mx_rmq.testing.assert_produced`."""
        try:
            return assert_produced(self.mq, topic, payload, times=times, **options)
        except AssertionError as error:
            if not produced(self.mq) and _waits_for_commit():
                error.add_note(NEVER_COMMITS)
            raise

    def assertNotProduced(  # noqa: N802 - as unittest names its own
        self, topic: str, payload: Any = ANY, **options: Unpack[ProduceOptions]
    ) -> None:
        """Fail if a matching message was produced."""
        assert_not_produced(self.mq, topic, payload, **options)


class TestCase(QueueMixin, test.TestCase):
    """Django's TestCase with a queue: what handlers do is rolled back with the test."""


class TransactionTestCase(QueueMixin, test.TransactionTestCase):
    """Django's TransactionTestCase with a queue."""


def _waits_for_commit() -> bool:
    """Whether anything in this thread waits for a commit."""
    return any(one.run_on_commit for one in connections.all(initialized_only=True))


def _aliases(databases: Any) -> list[str]:
    return list(connections) if databases == "__all__" else list(databases)
