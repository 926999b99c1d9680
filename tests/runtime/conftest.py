"""What a busy machine must not decide: how long a pause is, and what is taken ahead."""

from __future__ import annotations

import time

import pytest

from mx_rmq.net import availability as link
from mx_rmq.net import server_clock as clock
from mx_rmq.runtime import deadlines, monitor, recovery, scheduler
from mx_rmq.runtime.slots import Slots


class Steady:
    """The monotonic clock, on which nothing takes time: each look is a microsecond later."""

    def __init__(self) -> None:
        self._now = time.monotonic()

    def monotonic(self) -> float:
        self._now += 1e-6
        return self._now


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let a busy machine shorten no pause, for those who compute it and for the test."""
    one = Steady()
    for module in (clock, deadlines, link, monitor, recovery, scheduler, request.module):
        monkeypatch.setattr(module, "time", one)


@pytest.fixture
def ten_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker take ten messages more than it has slots."""
    monkeypatch.setattr(Slots, "ahead", lambda self, topic: 10)
