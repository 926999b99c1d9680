"""What a message costs, as a formula: values without I/O.

    µs per message = message + call / batch + byte × payload

A call's share shrinks with the messages that it carries, a byte's does not. The three numbers are
fitted to what was measured (costs.py) by least squares of the relative error, none below zero.
Memory is not fitted: allocators have steps, so it is read between the sizes that were measured.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PHASES: Final = ("produce", "dispatch", "complete")


class Spent(msgspec.Struct, frozen=True):
    """What the server spends on a message."""

    script: float
    """Microseconds inside the script, by the server's own stopwatch."""
    cpu: float
    """Microseconds of its CPU time, including sockets and parsing."""


class Cell(msgspec.Struct, frozen=True):
    """The server's cost of each phase of a message's life, at one size and one batch."""

    payload: int
    batch: int
    produce: Spent
    dispatch: Spent
    complete: Spent


class Share(msgspec.Struct, frozen=True):
    """The cost of a message in a Python process."""

    payload: int
    batch: float
    """Measured messages per call."""
    cpu: float
    """Microseconds of the process's CPU time."""


class Weight(msgspec.Struct, frozen=True):
    """The server memory of a pending message."""

    payload: int
    bytes: float


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured, and where: the contents of the file of `--measure`."""

    date: str
    server: str
    python: str
    machine: str
    rounds: int
    cells: list[Cell]
    producer: list[Share]
    worker: list[Share]
    memory: list[Weight]
    cluster: float = 1.0
    """The server's CPU time per message in a cluster of three, relative to one server."""
    replicas: float = 1.0
    """The same with a replica for each."""


class Point(NamedTuple):
    """One measured value."""

    payload: float
    batch: float
    value: float


class Line(NamedTuple):
    """The formula of one cost."""

    message: float
    call: float
    byte: float

    def at(self, payload: float, batch: float) -> float:
        """Return the cost of a message."""
        return self.message + self.call / batch + self.byte * payload

    def deviation(self, points: Iterable[Point]) -> float:
        """Return the largest relative error of the formula at a point."""
        return max(abs(self.at(one.payload, one.batch) / one.value - 1) for one in points)


class Model:
    """The formulas of one set of measured costs."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.cpu = {phase: fit(points(costs.cells, phase, "cpu")) for phase in PHASES}
        self.script = {phase: fit(points(costs.cells, phase, "script")) for phase in PHASES}
        self.producer = fit(shares(costs.producer))
        self.worker = fit(shares(costs.worker))
        self._memory = sorted((one.payload, one.bytes) for one in costs.memory)

    def server(self, payload: float, *, batch: float, produce_batch: float | None = None) -> float:
        """Return the server's microseconds for a message, from produce to completion."""
        batches = {"produce": produce_batch or batch, "dispatch": batch, "complete": batch}
        return sum(self.cpu[phase].at(payload, batches[phase]) for phase in PHASES)

    def memory(self, payload: float) -> float:
        """Return the bytes of a pending message."""
        known = self._memory
        for (low, below), (high, above) in pairwise(known):
            if payload <= high or (high, above) == known[-1]:
                return below + (above - below) * (payload - low) / (high - low)
        raise ValueError("memory was measured at less than two sizes")

    def deviation(self) -> float:
        """Return the largest relative error of the server's formula for all three calls."""
        return max(
            abs(
                self.server(cell.payload, batch=cell.batch)
                / (cell.produce.cpu + cell.dispatch.cpu + cell.complete.cpu)
                - 1
            )
            for cell in self.costs.cells
        )


def points(cells: Iterable[Cell], phase: str, which: str) -> list[Point]:
    """Return the measured values of a phase: of its `script` or of its `cpu`."""
    return [Point(one.payload, one.batch, getattr(getattr(one, phase), which)) for one in cells]


def shares(measured: Iterable[Share]) -> list[Point]:
    """Return the measured values of a Python process."""
    return [Point(one.payload, one.batch, one.cpu) for one in measured]


def fit(measured: Sequence[Point]) -> Line:
    """Return the formula whose relative errors are least, by their squares."""
    rows = [(1 / one.value, 1 / one.batch / one.value, one.payload / one.value) for one in measured]
    best, least = Line(0.0, 0.0, 0.0), float(len(measured))
    for count in (1, 2, 3):
        for terms in combinations(range(3), count):
            found = _solve([[row[term] for term in terms] for row in rows])
            if found is None or min(found) < 0:
                continue
            line = [0.0, 0.0, 0.0]
            for term, value in zip(terms, found, strict=True):
                line[term] = value
            error = sum(
                (sum(a * b for a, b in zip(row, line, strict=True)) - 1) ** 2 for row in rows
            )
            if error < least:
                best, least = Line(*line), error
    return best


def _solve(rows: list[list[float]]) -> list[float] | None:
    """Return x with rows · x nearest to 1 everywhere; None: the rows do not determine it."""
    size = len(rows[0])
    scale = [max(abs(row[column]) for row in rows) for column in range(size)]
    if not all(scale):
        return None
    rows = [[value / by for value, by in zip(row, scale, strict=True)] for row in rows]
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(size)] + [sum(row[i] for row in rows)]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(matrix[i][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        if abs(matrix[column][column]) < 1e-12:
            return None
        for other in range(size):
            if other != column:
                factor = matrix[other][column] / matrix[column][column]
                matrix[other] = [
                    a - factor * b for a, b in zip(matrix[other], matrix[column], strict=True)
                ]
    return [matrix[i][size] / matrix[i][i] / scale[i] for i in range(size)]
