"""The pytest plugin: one server per session, and queues in test mode."""

from __future__ import annotations

from contextlib import ExitStack
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.queue import MessageQueue
from mx_rmq.settings import QueueSettings
from mx_rmq.testing.use_in_tests import clean, run, server, use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting that names the queue."""
    parser.addini("mx_rmq_queue", "the queue of the fixture mx_rmq_queue, as module:attribute")


@pytest.fixture(scope="session")
def mx_rmq_server() -> Iterator[str]:
    """The URL of this test session's server; under xdist, one per process."""
    with server() as url:
        yield url


@pytest.fixture
def mx_rmq_url(mx_rmq_server: str) -> Iterator[str]:
    """The URL of an empty server, for code that creates its own queue with the prefix mx-rmq."""
    yield mx_rmq_server
    if problems := run(clean(QueueSettings(url=mx_rmq_server))):
        raise AssertionError("\n".join(problems))


@pytest.fixture
def mx_rmq_use(mx_rmq_server: str) -> Iterator[Callable[..., MessageQueue]]:
    """A function that puts a queue into test mode until the test ends; options as in `use`."""
    with ExitStack() as stack:

        def use_until_the_end(mq: MessageQueue, **options: Any) -> MessageQueue:
            return stack.enter_context(use(mq, mx_rmq_server, **options))

        yield use_until_the_end


@pytest.fixture
def mx_rmq_queue(
    pytestconfig: pytest.Config, mx_rmq_use: Callable[..., MessageQueue]
) -> MessageQueue:
    """The queue that the setting `mx_rmq_queue` names, in test mode."""
    return mx_rmq_use(named(pytestconfig.getini("mx_rmq_queue")))


def named(name: str) -> MessageQueue:
    """Return the queue that a setting names, or fail the test that wants it."""
    found = resolve_name(name) if name else None
    if not isinstance(found, MessageQueue):
        pytest.fail(
            f"mx_rmq_queue = {name!r} is not the name of a MessageQueue: set it to "
            'module:attribute, such as "shop:mq", in the pytest configuration, or use the fixture '
            "mx_rmq_use",
            pytrace=False,
        )
    return found
