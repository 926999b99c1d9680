"""What can be measured, by the name that `--only` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.own import (
    batches,
    drain,
    flows,
    growth,
    idle,
    keys,
    large,
    latency,
    many,
    memory,
    produce,
    round_trip,
    subscriptions,
    tenants,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from bench.own.figure import Figure
    from bench.own.place import Place
    from bench.own.size import Size

PARTS: Final[Mapping[str, Callable[[Place, Size], Awaitable[list[Figure]]]]] = {
    "produce": produce.measure,
    "drain": drain.measure,
    "threads": drain.measure_threads,
    "waiting": drain.measure_waiting,
    "batches": batches.measure,
    "two": drain.measure_two,
    "latency": latency.measure,
    "delayed": latency.measure_delayed,
    "round-trip": round_trip.measure,
    "memory": memory.measure,
    "in-flight": growth.measure_in_flight,
    "pending": growth.measure_pending,
    "topics": growth.measure_topics,
    "keys": keys.measure,
    "tenants": tenants.measure,
    "subscriptions": subscriptions.measure,
    "flows": flows.measure,
    "many": many.measure,
    "idle": idle.measure,
    "large": large.measure,
}
