"""The server's clock between two answers."""

from __future__ import annotations

import pytest

from mx_rmq.net.server_clock import JUMP, ServerClock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [500.0]
    monkeypatch.setattr("mx_rmq.net.server_clock.time.monotonic", lambda: now[0])
    return now


def test_the_time_goes_on_from_the_last_answer(now: list[float]) -> None:
    clock = ServerClock()
    clock.update(1_000_000, now[0])
    now[0] += 2.5
    assert clock.now() == 1_002_500
    clock.update(1_002_400, now[0])
    assert clock.now() == 1_002_400


def test_the_first_answer_is_no_jump(now: list[float]) -> None:
    clock = ServerClock()
    clock.update(1_800_000_000_000, now[0])
    assert clock.jumped_at == float("-inf")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_jump_is_noticed_in_either_direction(now: list[float], sign: int) -> None:
    clock = ServerClock()
    clock.update(1_000_000, now[0])
    now[0] += 10
    clock.update(1_010_000 + sign * round(JUMP * 1000), now[0])
    assert clock.jumped_at == float("-inf")
    clock.update(clock.now() + sign * (round(JUMP * 1000) + 1), now[0])
    assert clock.jumped_at == now[0]


def test_a_long_silence_is_no_jump(now: list[float]) -> None:
    clock = ServerClock()
    clock.update(1_000_000, now[0])
    now[0] += 86_400
    clock.update(1_000_000 + 86_400_000, now[0])
    assert clock.jumped_at == float("-inf")


def test_an_answer_that_was_read_late_is_no_jump(now: list[float]) -> None:
    clock = ServerClock()
    clock.update(1_000_000, now[0])
    asked_at = now[0]
    now[0] += 60  # the process stood still between the question and the reading of the answer
    clock.update(1_000_010, asked_at)
    clock.update(1_060_000, now[0])
    assert clock.jumped_at == float("-inf")
    assert clock.now() == 1_060_000
