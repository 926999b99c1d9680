"""How work grows with its input, so that hostile bytes cannot keep a worker busy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LONGEST = 65_536
ENOUGH = 0.3
"""Seconds of CPU time. Linear work on the longest input takes a hundredth of it; quadratic work
takes longer even at 16 KB, and fails there instead of keeping the test busy for minutes."""


def grows_gently(work: Callable[[T], object], worst: Callable[[int], T]) -> None:
    """Do the work on longer and longer input; fail once it takes too much CPU time."""
    size = 256
    while size <= LONGEST:
        given = worst(size)
        began = time.thread_time()
        work(given)
        took = time.thread_time() - began
        assert took < ENOUGH, f"{took:.2f} s for {size:,} characters"
        size *= 2
