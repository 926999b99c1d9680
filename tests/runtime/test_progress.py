"""What handlers report about their progress, on its way to the server."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from mx_rmq.core.errors import ServerUnavailable
from mx_rmq.core.status import ProgressNote
from mx_rmq.runtime import progress as module
from mx_rmq.runtime.progress import ProgressSender

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mx_rmq.runtime.held import HeldMessage
    from mx_rmq.store import Store


class Sent:
    """A store that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, bytes]]] = []
        self.came = asyncio.Event()

    async def note_progress(
        self, topic: str, worker: str, reports: Sequence[tuple[Any, bytes]], *, keep: int
    ) -> None:
        self.calls.append((topic, dict(reports)))
        self.came.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.calls) < count:
                self.came.clear()
                await self.came.wait()


@dataclass(eq=False)
class Held:
    leased: str
    topic: SimpleNamespace
    ended_at: float | None = None


def held(id: str, topic: str = "t") -> HeldMessage:
    return cast("HeldMessage", Held(id, SimpleNamespace(name=topic)))


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
async def progress(sent: Sent) -> AsyncIterator[ProgressSender]:
    one = ProgressSender(cast("Store", sent), worker="w1")
    yield one
    await one.loop.stop()


async def test_the_latest_reports_of_a_topic_go_in_one_call(
    progress: ProgressSender, sent: Sent
) -> None:
    first, second = held("a"), held("b")
    for row in range(1000):
        progress.report(first, ProgressNote(row / 1000))
    progress.report(first, ProgressNote(note="done"))
    progress.report(second, ProgressNote(0.5))
    progress.report(held("c", "other"), ProgressNote(0.1))
    await sent.until(2)
    assert sent.calls == [
        ("t", {"a": b'{"share":0.999,"note":"done"}', "b": b'{"share":0.5}'}),
        ("other", {"c": b'{"share":0.1}'}),
    ]


async def test_a_handler_that_talks_all_the_time_is_heard_a_few_times_a_second(
    progress: ProgressSender, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY", 0.05)
    one, over = held("a"), threading.Event()

    def talk() -> None:
        while not over.is_set():
            progress.report(one, ProgressNote(0.5))

    thread = threading.Thread(target=talk)
    thread.start()
    begun = asyncio.get_running_loop().time()
    await sent.until(3)
    over.set()
    thread.join()
    assert asyncio.get_running_loop().time() - begun >= 0.1


async def test_nothing_is_sent_of_a_handler_that_has_ended(
    progress: ProgressSender, sent: Sent
) -> None:
    ended, running = held("a"), held("b")
    progress.report(ended, ProgressNote(0.5))
    ended.ended_at = 1.0
    progress.report(running, ProgressNote(0.5))
    await sent.until(1)
    assert sent.calls == [("t", {"b": b'{"share":0.5}'})]


async def test_it_is_sent_again_while_the_handler_runs(
    progress: ProgressSender, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY", 0.01)
    monkeypatch.setattr(module, "SEND_AGAIN", 0.02)
    progress.report(held("a"), ProgressNote(0.5))
    progress._again_at = 0.0
    await sent.until(3)
    assert {str(call) for call in sent.calls} == {str(("t", {"a": b'{"share":0.5}'}))}


async def test_a_server_that_is_away_does_not_end_it(
    progress: ProgressSender, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY", 0.01)

    async def away(*_: object, **__: object) -> None:
        monkeypatch.undo()
        sent.came.set()
        raise ServerUnavailable("away")

    monkeypatch.setattr(sent, "note_progress", away)
    progress.report(held("a"), ProgressNote(0.1))
    await sent.until(1)
    assert sent.calls == [("t", {"a": b'{"share":0.1}'})]
