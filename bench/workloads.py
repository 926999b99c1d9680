"""What is measured, one function per workload. Each has a fresh server and returns its figures."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.processes import cpu_seconds, is_alive, machine_lock
from bench.stage import Stage, stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.environments import Environments
    from bench.systems import System
    from tests.lab.servers import Kind

Figures = dict[str, float]

CALLERS = 100
SLOW_HANDLER = 0.001
SLOW_CONCURRENCY = 500
LATE = 2.0
WARM_UP = 10
SETTLE = 0.5
START_SECONDS = 30.0
STUCK = 12.0
DRAIN_SECONDS = 90.0
PACED_SECONDS = 30.0
TRIP_SECONDS = 3.0
"""After this no caller starts another round trip, so slow queues make fewer."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where to measure, and how much."""

    environments: Environments
    kind: Kind
    scale: float = 1.0
    alone: bool = True
    """Whether to wait until no other measurement runs on this machine."""

    def turn(self) -> AbstractContextManager[None]:
        """Return what to hold while measuring."""
        return machine_lock() if self.alone else nullcontext()

    def messages(self, full: int) -> int:
        return max(100, int(full * self.scale))


def produce(bench: Bench, system: System) -> Figures:
    """One caller, one message after another."""
    return _produce(bench, system, bench.messages(system.produced), callers=1)


def produce_callers(bench: Bench, system: System) -> Figures:
    """A hundred callers at once, each with one message after another."""
    return _produce(bench, system, bench.messages(4 * system.produced), callers=CALLERS)


def _produce(bench: Bench, system: System, messages: int, callers: int) -> Figures:
    warm_up = min(100, messages // 5)
    with stage(system, bench.environments, bench.kind, messages) as on:
        server = on.server_cpu()
        made = on.play("produce", messages, warm_up, callers)
        server = on.server_cpu() - server
    return {
        "messages": messages,
        "rate": messages / made["seconds"],
        "client_cpu": made["cpu"] / messages * 1e6,
        "server_cpu": server / (messages + warm_up) * 1e6,
    }


def drain(bench: Bench, system: System) -> Figures:
    """A full queue, handlers that do nothing, one worker process."""
    return _drain(bench, system)


def drain_two(bench: Bench, system: System) -> Figures:
    """The same by two worker processes."""
    return _drain(bench, system, workers=2)


def drain_slow(bench: Bench, system: System) -> Figures:
    """Handlers of a millisecond, 500 at a time."""
    return _drain(bench, system, concurrency=SLOW_CONCURRENCY, sleep=SLOW_HANDLER)


def _drain(
    bench: Bench, system: System, *, workers: int = 1, concurrency: int = 0, sleep: float = 0
) -> Figures:
    messages = bench.messages(system.drained)
    with stage(system, bench.environments, bench.kind, messages) as on:
        made = on.play("produce_many", messages)
        began = time.monotonic_ns()
        with on.workers(workers, concurrency=concurrency, sleep=sleep) as pids:
            _until(on, pids, on.record.any_seen, DRAIN_SECONDS)
            first = _Meter(on, pids)
            _until_all_seen(on, pids)
            time.sleep(SETTLE)  # until the last ones are settled, too
            used = _Meter(on, pids).since(first)
        times = sorted(entered for entered in on.record.entered if entered)
        figures = {
            "messages": messages,
            "missing": messages - len(times),
            "repeated": on.record.repeated(),
            "rate": (len(times) - 1) / (times[-1] - times[0]) * 1e9,
            "rate_with_start": len(times) / (times[-1] - began) * 1e9,
            "bulk_rate": messages / made["seconds"],
            "bulk_client_cpu": made["cpu"] / messages * 1e6,
        }
    return figures | used


class _Meter:
    """A reading of what worker and server used."""

    def __init__(self, on: Stage, pids: list[int]) -> None:
        self.worker = cpu_seconds(pids)
        self.server = on.server_cpu()
        self.reads = on.server_reads()
        self.seen = on.record.seen()

    def since(self, first: _Meter) -> Figures:
        """Return what was used in between, per message or per thousand."""
        handled = max(1, self.seen - first.seen)
        return {
            "worker_cpu": (self.worker - first.worker) / handled * 1e6,
            "server_cpu": (self.server - first.server) / handled * 1e6,
            "reads": (self.reads - first.reads) / handled,
        }


def latency(bench: Bench, system: System) -> Figures:
    """An idle worker, a message every 10 ms: from just before the call to the handler's entry."""
    return _paced(bench, system, bench.messages(300), interval=0.01, delay=0)


def delayed(bench: Bench, system: System) -> Figures:
    """Messages that are due two seconds after the call: how late they are."""
    return _paced(bench, system, bench.messages(500), interval=0.002, delay=LATE)


def _paced(bench: Bench, system: System, messages: int, interval: float, delay: float) -> Figures:
    total = WARM_UP + messages
    with stage(system, bench.environments, bench.kind, total) as on, on.workers() as pids:
        on.play("paced", messages, WARM_UP, interval, delay)
        deadline = time.monotonic() + PACED_SECONDS
        while (
            on.record.first_unseen(0) >= 0
            and time.monotonic() < deadline
            and any(map(is_alive, pids))
        ):
            time.sleep(0.02)
        late = sorted(
            (on.record.entered[index] - on.record.produced[index]) / 1e6 - delay * 1000
            for index in range(WARM_UP, total)
            if on.record.flags[index]
        )
        if not late:
            raise RuntimeError(f"nothing was handled: {on.complaints()}")
        return {
            "messages": messages,
            "missing": messages - len(late),
            "p50": late[len(late) // 2],
            "p99": late[int(len(late) * 0.99)],
            "min": late[0],
            "max": late[-1],
        }


def round_trip(bench: Bench, system: System) -> Figures:
    """One caller: produce, handler, result returned, one after the other."""
    return _round_trip(bench, system, bench.messages(1_000), callers=1)


def round_trip_callers(bench: Bench, system: System) -> Figures:
    """The same by a hundred callers at once."""
    return _round_trip(bench, system, bench.messages(20_000), callers=CALLERS)


def _round_trip(bench: Bench, system: System, messages: int, callers: int) -> Figures:
    warm_up = max(2 * callers, WARM_UP)
    total = warm_up + messages
    with (
        stage(system, bench.environments, bench.kind, total, results=True) as on,
        on.workers() as pids,
    ):
        on.play("produce_many", 1)
        _until(on, pids, on.record.any_seen, START_SECONDS)
        time.sleep(SETTLE)  # until the worker has finished starting
        worker, server = cpu_seconds(pids), on.server_cpu()
        made = on.play("call", messages, warm_up, callers, TRIP_SECONDS)
        called = made["messages"] + warm_up
        return {
            "messages": made["messages"],
            "rate": made["messages"] / made["seconds"],
            "p50": made["p50"],
            "p99": made["p99"],
            "client_cpu": made["cpu"] / made["messages"] * 1e6,
            "worker_cpu": (cpu_seconds(pids) - worker) / called * 1e6,
            "server_cpu": (on.server_cpu() - server) / called * 1e6,
        }


def memory(bench: Bench, system: System) -> Figures:
    """The server memory of a waiting message, without what the first one needs."""
    messages = bench.messages(min(100_000, 5 * system.drained))
    with stage(system, bench.environments, bench.kind, messages) as on:
        on.play("produce_many", 1)
        empty = on.server_memory()
        on.play("produce_many", messages)
        return {"messages": messages, "bytes": (on.server_memory() - empty) / messages}


def _until_all_seen(on: Stage, pids: list[int]) -> None:
    """Wait until handlers have seen everything, or nothing more arrives."""
    deadline = time.monotonic() + DRAIN_SECONDS
    place, seen, moved = 0, 0, time.monotonic()
    while time.monotonic() < deadline and any(map(is_alive, pids)):
        unseen = on.record.first_unseen(place)
        if unseen < 0:
            return
        if unseen != place:
            place, moved = unseen, time.monotonic()
        elif time.monotonic() - moved > STUCK:
            if on.record.seen() == seen:
                return
            seen, moved = on.record.seen(), time.monotonic()
        time.sleep(0.01)


def _until(on: Stage, pids: list[int], fact: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline or not any(map(is_alive, pids)):
            raise RuntimeError(f"nothing was handled: {on.complaints()}")
        time.sleep(0.01)
