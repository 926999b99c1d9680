"""A duty that is done again and again."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import OutcomeUnknown, ServerUnavailable
from mx_rmq.runtime.loop import (
    FIRST_PAUSE,
    LOG_EVERY,
    LONGEST_PAUSE,
    Backoff,
    FailureLog,
    Loop,
)
from tests.runtime.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable


class Duty:
    """Steps that are counted; each does what the test says."""

    def __init__(self, step: Callable[[int], float | None]) -> None:
        self.at: list[float] = []
        self._step = step
        self.loop = Loop("duty", self.step)

    async def step(self) -> float | None:
        self.at.append(time.monotonic())
        return self._step(len(self.at))


async def test_the_first_step_comes_at_once_and_the_next_after_its_pause() -> None:
    duty = Duty(lambda n: 0.05)
    duty.loop.start()
    await until(lambda: len(duty.at) == 3)
    await duty.loop.stop()
    assert all(later - at >= 0.045 for at, later in zip(duty.at, duty.at[1:], strict=False))


async def test_without_a_pause_the_next_step_comes_when_it_is_woken() -> None:
    duty = Duty(lambda n: None)
    duty.loop.start()
    await until(lambda: len(duty.at) == 1)
    await asyncio.sleep(0.05)
    assert len(duty.at) == 1
    duty.loop.wake()
    await until(lambda: len(duty.at) == 2)
    await duty.loop.stop()


async def test_a_wake_ends_a_long_pause() -> None:
    duty = Duty(lambda n: 60.0)
    duty.loop.start()
    await until(lambda: len(duty.at) == 1)
    duty.loop.wake()
    await until(lambda: len(duty.at) == 2)
    await duty.loop.stop()


async def test_a_wake_during_a_step_is_not_lost() -> None:
    woken = asyncio.Event()

    async def step() -> None:
        steps.append(1)
        if len(steps) == 1:
            loop.wake()
            await asyncio.sleep(0.01)
        else:
            woken.set()

    steps: list[int] = []
    loop = Loop("duty", step)
    loop.start()
    async with asyncio.timeout(2):
        await woken.wait()
    await loop.stop()


async def test_many_wakes_make_one_step() -> None:
    duty = Duty(lambda n: None)
    duty.loop.start()
    await until(lambda: len(duty.at) == 1)
    for _ in range(100):
        duty.loop.wake()
    await until(lambda: len(duty.at) == 2)
    await asyncio.sleep(0.02)
    assert len(duty.at) == 2
    await duty.loop.stop()


async def test_an_error_is_followed_by_growing_pauses_until_a_step_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mx_rmq.runtime.loop.random.uniform", lambda a, b: b)
    backoff, asked = Backoff.next, list[float]()

    def pause(self: Backoff) -> float:
        asked.append(backoff(self))
        return asked[-1]

    monkeypatch.setattr(Backoff, "next", pause)

    def step(number: int) -> float | None:
        if number in (1, 2, 3, 5):
            raise ServerUnavailable("away")
        return 0.0 if number == 4 else None

    duty = Duty(step)
    duty.loop.start()
    await until(lambda: len(duty.at) == 6)
    await duty.loop.stop()
    assert asked == [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4, FIRST_PAUSE]
    pauses = [later - at for at, later in zip(duty.at, duty.at[1:], strict=False)]
    expected = [*asked[:3], 0, asked[3]]
    assert all(pause >= 0.9 * least for pause, least in zip(pauses, expected, strict=True))


def test_pauses_have_a_bound_and_jitter() -> None:
    backoff = Backoff()
    for _ in range(20):
        last = backoff.next()
    assert LONGEST_PAUSE / 2 <= last <= LONGEST_PAUSE
    backoff.reset()
    assert FIRST_PAUSE / 2 <= backoff.next() <= FIRST_PAUSE
    backoff.reset()
    assert len({backoff.next() for _ in range(3)}) == 3


def test_a_failure_is_logged_at_first_and_then_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("mx_rmq.runtime.loop.time.monotonic", lambda: now[0])
    failures = FailureLog("duty")
    for seconds in (0, 1, LOG_EVERY - 1.1, 0.2, 1):
        now[0] += seconds
        failures.log(ValueError("no"))
    assert [record.getMessage() for record in caplog.records] == [
        "the duty failed; it continues"
    ] * 2
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize("error", [ServerUnavailable("away"), OutcomeUnknown("who knows")])
def test_of_a_server_that_is_away_the_link_tells_not_every_duty(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    FailureLog("duty").log(error)
    assert caplog.records == []


async def test_an_unexpected_error_does_not_end_the_duty(caplog: pytest.LogCaptureFixture) -> None:
    def step(number: int) -> None:
        if number == 1:
            raise KeyError("x")

    caplog.set_level(logging.ERROR)
    duty = Duty(step)
    duty.loop.start()
    await until(lambda: len(duty.at) == 2)
    await duty.loop.stop()
    assert len(caplog.records) == 1


# the end


async def test_a_loop_that_was_not_started_may_be_stopped_and_a_stopped_one_again() -> None:
    duty = Duty(lambda n: None)
    await duty.loop.stop()
    duty.loop.start()
    await duty.loop.stop()
    await duty.loop.stop()


async def test_a_loop_stops_before_its_first_step() -> None:
    duty = Duty(lambda n: 0.0)
    duty.loop.start()
    await duty.loop.stop()
    assert duty.at == []


async def test_a_loop_stops_in_the_middle_of_a_step_which_may_clean_up() -> None:
    inside, cleaned = asyncio.Event(), []

    async def step() -> None:
        inside.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(1)

    loop = Loop("duty", step)
    loop.start()
    await inside.wait()
    await asyncio.wait_for(loop.stop(), 1)
    assert cleaned == [1]


@pytest.mark.parametrize("turns", range(12))
async def test_a_loop_stops_at_any_moment(turns: int) -> None:
    async def step() -> float:
        await asyncio.sleep(0)
        if turns % 3 == 0:
            raise ServerUnavailable("away")
        return 0.0

    loop = Loop("duty", step)
    loop.start()
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.wait_for(loop.stop(), 1)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "mx-rmq duty"]


async def test_a_stop_during_the_pause_after_an_error_is_immediate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Backoff, "next", lambda self: 60.0)

    def step(number: int) -> None:
        raise ServerUnavailable("away")

    duty = Duty(step)
    duty.loop.start()
    await until(lambda: duty.at)
    await asyncio.wait_for(duty.loop.stop(), 10)
    assert len(duty.at) == 1
