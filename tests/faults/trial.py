"""A fault that the lab can inject, and a trial: one run of it from a seed, with what it found."""

from __future__ import annotations

import logging
import random
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

Figure = int | float | str


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, and how large a trial of it is."""

    name: str
    title: str
    """What happens, for the report."""
    run: Callable[[Trial], Awaitable[None]]
    unit: str
    """The unit of its size."""
    short: int
    """The size in `make test`; 0: too slow for it."""
    full: int
    """The size in `make faults`."""

    async def hold(self, trial: Trial) -> None:
        """Run a trial. The queues of this process would log a lot, all of it planned."""
        logger = logging.getLogger("mx_rmq")
        level = logger.level
        logger.setLevel(logging.CRITICAL)
        try:
            await self.run(trial)
        finally:
            logger.setLevel(level)


@dataclass
class Trial:
    """One run of a kind of fault. The same seed and size make the same plan."""

    fault: str
    size: int
    seed: int
    directory: Path
    """Empty, with a short name, because sockets may be in it."""
    figures: dict[str, Figure] = field(default_factory=dict)
    """What was counted and measured, under the labels of the report."""
    violations: list[str] = field(default_factory=list)
    """What must never happen. An empty list is a pass."""
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    """Tables for the report by title: the head, then the rows."""

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.fault} {self.seed}")
        self._said_at = time.monotonic()

    @property
    def replay(self) -> str:
        """The command that repeats it."""
        return replay(self.fault, self.size, self.seed)

    def count(self, what: str, by: int = 1) -> None:
        """Count something for the report."""
        before = self.figures.get(what, 0)
        assert not isinstance(before, str)
        self.figures[what] = before + by

    def violated(self, what: str) -> None:
        """Note a violation, and continue."""
        self.violations.append(what)
        say(f"{self.fault}: VIOLATION: {what}")

    def expect(self, fact: object, what: str) -> None:
        """Note a violation unless a fact is true."""
        if not fact:
            self.violated(what)

    def say(self, progress: str) -> None:
        """Print the progress, at most every ten seconds."""
        if time.monotonic() - self._said_at >= 10:
            self._said_at = time.monotonic()
            say(f"{self.fault}: {progress}")


def replay(fault: str, size: int, seed: int) -> str:
    """Return the command that runs a trial."""
    return f".venv/bin/python -m tests.faults {fault} --size {size} --seed {seed}"


def say(line: str) -> None:
    """Print a line to stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
