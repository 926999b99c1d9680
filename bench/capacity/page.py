"""The figures of docs/capacity.md: blocks between marks, updated from what was measured."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bench.capacity.command import rounded, size
from bench.capacity.model import PHASES, Line, Model
from bench.capacity.plan import Load, Plan
from bench.capacity.shards import AOF, ONE, REPLICAS, THREE
from bench.capacity.spread import usual_busiest
from mx_rmq.core.partition import MAX_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SHARDS = (1, 3, 10, 100)
MARK = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
GOAL = 1.2
CALM = 1.0
"""Load of a machine that has little other work."""
HANDLER = 1_000.0
"""Microseconds of CPU time of a handler that does something."""
PER_SHARD = (1, 2, 4, 8, 16, 32)
NONE = "–"


def fill(page: str, blocks: dict[str, str]) -> str:
    """Return a page with new blocks. Each block must be on the page exactly once."""
    marked = [name for _, name, _ in MARK.findall(page)]
    if sorted(marked) != sorted(blocks):
        raise ValueError(f"the page has {marked}, there are {list(blocks)}")
    return MARK.sub(lambda found: f"{found[1]}\n{blocks[found[2]]}\n{found[3]}", page)


def blocks(model: Model, results: dict[str, Any]) -> dict[str, str]:
    """Return all blocks by name."""
    shards = results["shards"]
    return {
        "conditions": _conditions(model, results),
        "server": _server(model),
        "python": _python(model),
        "memory": _memory(model),
        "shards": _shards(shards),
        "formula": _formula(model),
        "far": _far(model),
        "backlog": _backlog(model),
        "spread": _spread(),
        "bounds": _bounds(model),
        "idle": _idle(shards, model),
    }


# measured


def _conditions(model: Model, results: dict[str, Any]) -> str:
    costs = model.costs
    load = " and ".join(f"{one:.1f}" for one in results["load"])
    busy = bool(results["load"][0] > CALM)
    return (
        f"Measured on {costs.date}: {costs.server} without persistence, over TCP on the same "
        f"machine ({costs.machine}), Python {costs.python}, {results['loop']}; medians of "
        f"{costs.rounds} rounds for the costs and {results['shards']['rounds']} for the shards, "
        f"{results['minutes']:.1f} minutes in all. Load of the machine before and after: {load}."
        + " **The machine had other work: every figure but memory is too high.**" * busy
        + "\n"
    )


def _server(model: Model) -> str:
    cells = {(cell.payload, cell.batch): cell for cell in model.costs.cells}
    sizes, batches = (sorted({key[place] for key in cells}) for place in (0, 1))
    rows = []
    for payload in sizes:
        row = [size(payload)]
        for batch in batches:
            cell = cells.get((payload, batch))
            spent = [] if cell is None else [getattr(cell, phase).cpu for phase in PHASES]
            parts = " + ".join(f"{one:.{one < 100:d}f}" for one in spent)
            row.append(f"**{sum(spent):.{sum(spent) < 100:d}f}** = {parts}" if spent else NONE)
        rows.append(row)
    return table(["payload", *(f"batch {batch}" for batch in batches)], rows)


def _python(model: Model) -> str:
    ways = ("`produce`, one caller", "`produce`, 100 callers", "`produce_many`")
    held = ("worker, one at a time", "worker, 10 at a time", "worker, 200 at a time, prefetch")
    found = {
        **_named(ways, model.costs.producer),
        **_named(held, model.costs.worker),
    }
    sizes = sorted({one.payload for one in model.costs.producer})
    heads = [size(payload) for payload in sizes]
    rows = [
        [name, *(f"{cpu:,.{cpu < 100:d}f} ({batch:,.0f})" for cpu, batch in cells)]
        for name, cells in found.items()
    ]
    return table(["µs per message (messages per call)", *heads], rows)


def _named(names: Sequence[str], shares: Sequence[Any]) -> dict[str, list[tuple[float, float]]]:
    """Return what was measured, by size, for each of the ways that alternate in the list."""
    return {
        name: [(one.cpu, one.batch) for one in shares[number :: len(names)]]
        for number, name in enumerate(names)
    }


def _memory(model: Model) -> str:
    heads = [f"{one.payload:,} B" for one in model.costs.memory]
    return table(
        ["payload", *heads],
        [["server bytes", *(f"{one.bytes:,.0f}" for one in model.costs.memory)]],
    )


def _shards(shards: dict[str, Any]) -> str:
    rows = []
    for name in (ONE, AOF, THREE, REPLICAS):
        calls, drain = shards["calls"][name], shards["drain"][name]
        rows.append(
            [
                name,
                f"{calls['cpu']:.1f}",
                *(_ratio(ratio, name) for ratio in _readings(shards, name).values()),
                f"{calls['script']:.1f} ({calls['script_ratio']:.2f}×)",
                f"{drain['cpu']:.1f} ({drain['cpu_ratio']:.2f}×)",
                f"{drain['worker']:.1f} ({drain['worker_ratio']:.2f}×)",
                f"{shards['chores'][name]:.2%}",
            ]
        )
    readings = _readings(shards, THREE)
    judged = {
        **readings,
        "in scripts, by the clock": shards["calls"][THREE]["script_ratio"],
        "drain by a worker": shards["drain"][THREE]["cpu_ratio"],
    }
    one, replicated = shards["calls"][ONE], shards["calls"][REPLICAS]
    copied = replicated["sent"] - one["sent"] - shards["payload"]
    head = [
        *("", "server CPU, µs", *readings, "in scripts, by the clock"),
        *("drain by a worker: server CPU", "worker CPU", "a node's chores, share of a core"),
    ]
    return (
        table(head, rows)
        + f"\nThe goal is {GOAL}× for three shards: {_verdict(judged)}. Besides the payload, a "
        f"message in these batches sends the server {one['received']:.0f} bytes, and the server "
        f"returns {one['sent']:.0f} and sends a replica {copied:.0f} more. The replica gets the "
        "payload, too.\n"
    )


def _readings(shards: dict[str, Any], name: str) -> dict[str, float]:
    """Return a place's ratio to one server, for every way of measuring it."""
    calls, in_turn = shards["calls"][name], shards["in_turn"][name]
    return {
        "ratio, shard by shard": calls["cpu_ratio"],
        "with chores": calls["whole_ratio"],
        "ratio, shards in turn": in_turn["cpu_ratio"],
        "with chores, in turn": in_turn["whole_ratio"],
    }


def _verdict(readings: dict[str, float]) -> str:
    missed = [f"{name}: {ratio:.2f}×" for name, ratio in readings.items() if ratio > GOAL]
    if not missed:
        return f"met in all readings, {max(readings.values()):.2f}× at worst"
    return f"**missed** in {len(missed)} of {len(readings)} readings ({'; '.join(missed)})"


def _ratio(value: float, name: str) -> str:
    return NONE if name == ONE else f"{value:.2f}×"


def _idle(shards: dict[str, Any], model: Model) -> str:
    rows = []
    for name, number in ((ONE, 1), (THREE, 3)):
        found = shards["idle"][name]
        plan = Plan.of(Load(shards=number, partitions=shards["partitions"]), model)
        rows.append(
            [
                f"{name}, {shards['partitions']} topics",
                f"{found['commands']:.2f}",
                f"{plan.idle_commands:.2f}",
                f"{found['connections']:.0f}",
                f"{plan.worker_connections:,}",
            ]
        )
    return table(
        ["", "commands/s", "calculated", "connections", "calculated maximum under load"], rows
    )


# calculated


def _formula(model: Model) -> str:
    lines: dict[str, Line] = {
        **{f"server, {phase}": line for phase, line in model.cpu.items()},
        "Python, producer": model.producer,
        "Python, worker, dispatch and complete": model.worker,
    }
    rows = [
        [name, f"{line.message:.2f}", f"{line.call:.0f}", f"{line.byte * 1000:.2f}"]
        for name, line in lines.items()
    ]
    return (
        table(["µs", "per message", "per call", "per 1,000 bytes"], rows)
        + "\nFor all three calls on the server, the formula is within "
        f"{model.deviation():.0%} of every measured cell.\n"
    )


def _far(model: Model) -> str:
    rows = []
    for shards in SHARDS:
        small, large = (Plan.of(Load(shards=shards, payload=one), model) for one in (200, 1_000))
        lone = Plan.of(Load(shards=shards, payload=1_000, produce_batch=1), model)
        busy = Plan.of(Load(shards=shards, payload=1_000, handler=HANDLER), model)
        rows.append(
            [
                str(shards),
                f"{large.partitions} ({large.busiest:g})",
                f"{rounded(small.total):,}",
                f"{rounded(large.total):,}",
                f"{rounded(lone.total):,}",
                f"{large.workers:,}",
                f"{busy.workers:,}",
            ]
        )
    return table(
        [
            "shards",
            "partitions (on the busiest shard)",
            "messages/s of 200 B",
            "of 1 kB",
            "of 1 kB, produced one by one",
            "worker processes for 1 kB, handlers of 0 µs",
            "handlers of 1 ms CPU",
        ],
        rows,
    )


def _backlog(model: Model) -> str:
    loads = [(count, payload) for count in (10**6, 10**8) for payload in (200, 1_000)]
    rows = []
    for shards in SHARDS:
        plans = [
            Plan.of(Load(shards=shards, payload=payload, backlog=count), model)
            for count, payload in loads
        ]
        rows.append([str(shards), *(size(plan.memory_busiest) for plan in plans)])
    heads = [f"{count // 10**6} M of {size(payload)}" for count, payload in loads]
    return table(["shards", *heads], rows)


def _spread() -> str:
    rows = []
    for shards in SHARDS[1:]:
        row = [str(shards)]
        for per_shard in PER_SHARD:
            parts = per_shard * shards
            most = usual_busiest(1, parts, shards)
            row.append(f"{per_shard / most:.0%} ({most:g})" if parts <= MAX_PARTITIONS else NONE)
        rows.append(row)
    return table(["shards", *(f"{one} per shard" for one in PER_SHARD)], rows)


def _bounds(model: Model) -> str:
    plans = [Plan.of(Load(shards=shards, handler=HANDLER), model) for shards in SHARDS]
    rows = []
    for found in zip(*(plan.bounds for plan in plans), strict=True):
        first = found[0]
        form = ".1%" if first.most < 1 else ",.0f"
        cells = [f"{'**' * one.over}{one.used:{form}}{'**' * one.over}" for one in found]
        rows.append([first.what, *cells, f"{first.most:{form}}", first.why])
    heads = [f"{shards} shard{'s' * (shards > 1)}" for shards in SHARDS]
    return table(["", *heads, "most", "what helps"], rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table: the first column left-aligned, the others right-aligned."""
    rule = ["---", *("--:" for _ in head[1:])]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))
