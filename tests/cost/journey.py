"""The journey of one plain message: the files and functions of the package that it visits.

From `mq.produce` to the reply to `complete_message`, in the producer and in the worker, both warm.
`python -m tests.cost.journey` prints the list. The layer that talks to servers is left out.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import mx_rmq
from mx_rmq import MessageQueue, Worker
from tests.lab.servers import USUAL, Server
from tests.runtime.stage import slots_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import FrameType

PACKAGE: Final = Path(mx_rmq.__file__).parent

SERVERS: Final = frozenset({"net"})
"""Folders and files that talk to servers."""

WARM_UP: Final = 5
RUNS: Final = 30
"""A function counts if each of these messages visits it: a timer that happens to fire does not."""


class Journey(NamedTuple):
    """What one message visits."""

    functions: frozenset[tuple[str, str]]
    """File, relative to the package, and qualified name."""

    @property
    def files(self) -> list[str]:
        """Return the files, sorted."""
        return sorted({file for file, _ in self.functions})


class _Recorder:
    """Notes the functions of the package that are called, comprehensions aside."""

    def __init__(self, excluded: Collection[str]) -> None:
        self._excluded = excluded
        self._known: dict[Any, tuple[str, str] | None] = {}
        self.called: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._known:
            self._known[code] = self._place(code.co_filename, code.co_qualname, code.co_name)
        if (place := self._known[code]) is not None:
            self.called.add(place)

    def _place(self, filename: str, qualified: str, name: str) -> tuple[str, str] | None:
        path = Path(filename)
        if name in ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<module>"):
            return None
        if not path.is_relative_to(PACKAGE):
            return None
        file = path.relative_to(PACKAGE).as_posix()
        folder = file.split("/", maxsplit=1)[0]
        return None if {file, folder} & set(self._excluded) else (file, qualified)


async def journey(url: str, excluded: Collection[str] = SERVERS) -> Journey:
    """Send messages one by one, and return what every one of them visited."""
    producer, consumer = MessageQueue(url), MessageQueue(url)
    handled = asyncio.Event()

    @consumer.handler("journey")
    async def handle(payload: dict[str, int]) -> None:
        handled.set()

    recorder = _Recorder(excluded)
    visited: list[set[tuple[str, str]]] = []
    async with producer, Worker(consumer) as worker:
        slots = slots_of(worker)
        for number in range(WARM_UP + RUNS):
            await asyncio.sleep(0.02)  # what the last message left to do is done
            handled.clear()
            recorder.called = set()
            sys.setprofile(recorder)
            try:
                await producer.produce("journey", {"number": number})
                await handled.wait()
                while slots.held:  # noqa: ASYNC110 - a plain dict: looking at it visits nothing
                    await asyncio.sleep(0.001)
            finally:
                sys.setprofile(None)
            visited.append(recorder.called)
    return Journey(frozenset(set.intersection(*visited[WARM_UP:])))


def main() -> None:
    """Print the journey on a server of our own."""
    with TemporaryDirectory() as directory:
        server = Server(USUAL[0], Path(directory)).start()
        try:
            found = asyncio.run(journey(server.url, SERVERS | set(sys.argv[1:])))
        finally:
            server.stop()
    for file in found.files:
        names = sorted(name for place, name in found.functions if place == file)
        sys.stdout.write(f"{file}: {', '.join(names)}\n")
    sys.stdout.write(f"{len(found.files)} files, {len(found.functions)} functions\n")


if __name__ == "__main__":
    main()
