"""What a queue must be able to do here. One file in `adapters/` is one queue."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from bench.handler import keeps_results, port

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from bench.payload import Payload


class BaseAdapter(ABC):
    """A queue, by its public names only.

    The methods that produce are coroutines even if the queue's own are plain functions: compared
    with a call to the server, that costs nothing.
    """

    is_async: ClassVar[bool] = True
    """Whether its handlers are coroutines, and many callers may produce at once."""
    has_delay: ClassVar[bool] = True
    concurrency: ClassVar[int] = 100
    """The best value for handlers that do nothing."""
    chunk: ClassVar[int] = 500
    """How many payloads `produce_many` is given at a time."""
    results: ClassVar[str] = ""
    """How a caller gets a handler's result, in one line; empty if it cannot."""
    poll: float = 0.001
    """Seconds between two checks for a result, for a queue whose callers must poll."""
    bulk: ClassVar[str]
    """How `produce_many` is done, in one line."""
    packages: ClassVar[tuple[str, ...]]
    """What else has a version worth noting."""
    settings: ClassVar[str]
    """The settings that differ from the defaults, in one line."""

    def __init__(self) -> None:
        self.port = port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.keeps_results = keeps_results()

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def produce(self, payload: Payload) -> None: ...

    async def produce_many(self, payloads: Sequence[Payload]) -> None:
        """Produce them the fastest way; if there is none, all at once."""
        await asyncio.gather(*(self.produce(payload) for payload in payloads))

    async def produce_delayed(self, payload: Payload, delay: float) -> None:
        raise NotImplementedError

    async def call(self, payload: Payload) -> Any:
        """Produce one, wait for its handler, and return the result."""
        raise NotImplementedError

    @abstractmethod
    def work(self, concurrency: int) -> None:
        """Run a worker until the process is killed."""


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run it on uvloop if that is installed."""
    loop = import_module("uvloop") if find_spec("uvloop") else asyncio
    return loop.run(main)
