"""The time limits of handlers."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

import pytest

from mx_rmq.runtime.held import Stopped
from mx_rmq.runtime.timeouts import Timeouts
from tests.runtime.stage import handler, slots_for, take_in, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mx_rmq.runtime.held import HeldMessage


@pytest.fixture
async def timeouts() -> Iterator[Timeouts]:  # type: ignore[misc] # pytest-asyncio wants a coroutine
    timeouts = Timeouts()
    yield timeouts
    timeouts.close()


class Running:
    """Handlers that run, and note when they are struck."""

    def __init__(self, count: int) -> None:
        self.struck: list[HeldMessage] = []
        self.at: dict[HeldMessage, float] = {}
        slots = slots_for([handler()], concurrency=count)
        self.held = take_in(slots, slots.topics["t"], count)
        for held in self.held:
            held.interrupt = self._strike(held)

    def _strike(self, held: HeldMessage) -> Callable[[], None]:
        def strike() -> None:
            self.struck.append(held)
            self.at[held] = time.monotonic()

        return strike


async def test_limits_strike_in_the_order_of_their_ends(timeouts: Timeouts) -> None:
    running = Running(3)
    a, b, c = running.held
    timeouts.set(a, 0.06)
    timeouts.set(b, 0.02)
    timeouts.set(c, 0.04)
    await until(lambda: len(running.struck) == 3)
    assert running.struck == [b, c, a]
    assert all(held.stopped is Stopped.TIMEOUT for held in running.held)


async def test_a_limit_never_strikes_early(timeouts: Timeouts) -> None:
    running = Running(1)
    begun = time.monotonic()
    timeouts.set(running.held[0], 0.05)
    await until(lambda: running.struck)
    assert 0.05 <= running.at[running.held[0]] - begun < 0.5


@pytest.mark.parametrize("seconds", [0.005, 0.3])
async def test_a_limit_that_is_set_again_moves(timeouts: Timeouts, seconds: float) -> None:
    running = Running(2)
    moved, fixed = running.held
    timeouts.set(moved, 0.1)
    timeouts.set(fixed, 0.15)
    timeouts.set(moved, seconds)
    await until(lambda: len(running.struck) == 2)
    assert running.struck == ([moved, fixed] if seconds < 0.1 else [fixed, moved])


async def test_a_handler_that_has_ended_is_not_struck(timeouts: Timeouts) -> None:
    running = Running(2)
    ended, other = running.held
    timeouts.set(ended, 0.01)
    timeouts.set(other, 0.05)
    timeouts.clear(ended)
    timeouts.clear(ended)
    await until(lambda: running.struck)
    assert running.struck == [other]


async def test_a_strike_comes_once(timeouts: Timeouts) -> None:
    running = Running(2)
    timeouts.set(running.held[0], 0.005)
    timeouts.set(running.held[0], 0.005)
    timeouts.set(running.held[1], 0.03)
    await until(lambda: len(running.struck) == 2)
    assert running.struck == running.held


async def test_a_shorter_limit_that_comes_later_strikes_first(timeouts: Timeouts) -> None:
    running = Running(2)
    timeouts.set(running.held[0], 30)
    await asyncio.sleep(0)
    timeouts.set(running.held[1], 0.01)
    await until(lambda: running.struck)
    assert running.struck == [running.held[1]]


async def test_of_many_each_is_struck_at_its_time_unless_it_ended(timeouts: Timeouts) -> None:
    running, chance = Running(2000), random.Random(1)
    begun, limits = time.monotonic(), {}
    for held in running.held:
        limits[held] = 0.05 + chance.random() * 0.2
        timeouts.set(held, limits[held])
    ended = set(chance.sample(running.held, 1900))
    for held in ended:
        timeouts.clear(held)
    await until(lambda: len(running.struck) == 100)
    await asyncio.sleep(0.05)
    assert set(running.struck) == set(running.held) - ended
    assert all(running.at[held] - begun >= limits[held] for held in running.struck)


async def test_what_has_ended_is_forgotten_although_its_limit_is_far_away(
    timeouts: Timeouts,
) -> None:
    running = Running(1)
    (held,) = running.held
    for _ in range(10_000):
        timeouts.set(held, 3600)
        timeouts.clear(held)
    await asyncio.sleep(0)
    assert timeouts._timers == {}
    assert len(asyncio.get_running_loop()._scheduled) < 200  # type: ignore[attr-defined]


async def test_a_closed_one_strikes_nobody() -> None:
    running, timeouts = Running(1), Timeouts()
    timeouts.set(running.held[0], 0.01)
    timeouts.close()
    await asyncio.sleep(0.05)
    assert running.struck == []
