"""Results as tables: on the screen, and as Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.systems import OURS, THREADS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.compare import Results

NONE = "–"
PROMISE = "what it promises"


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a line of explanation, and cells."""

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        rule = ["---" if cell in ("", PROMISE) else "--:" for cell in self.head]
        lines = [_line(cells) for cells in (self.head, rule, *self.rows)]
        return f"## {self.title}\n\n{self.note}\n\n" + "\n".join(lines) + "\n"

    def text(self) -> str:
        cells = [self.head, *self.rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.head))]
        lines = [
            "  ".join(
                cell.rjust(width) if column else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        return f"{self.title}\n{self.note}\n\n" + "\n".join(lines) + "\n"


def tables(results: Results) -> list[Table]:
    """Return all tables that have something to show."""
    made = (
        _throughput(results),
        _threads(results),
        _cost(results),
        _lateness(results),
        _round_trips(results),
        _crash(results),
    )
    return [table for table in made if table.rows]


def markdown(results: Results) -> str:
    """Return the whole report."""
    parts = [f"# Side by side, {results['date']}\n", _conditions(results) + "\n"]
    parts += [table.markdown() for table in tables(results)]
    parts += ["## Settings\n", "\n".join(_settings(results)) + "\n"]
    return "\n".join(parts)


def text(results: Results) -> str:
    """Return the same for a screen."""
    parts = [_conditions(results) + "\n", *(table.text() for table in tables(results))]
    return "\n".join(["", *parts, *_settings(results)])


def _throughput(results: Results) -> Table:
    columns = {
        "produce one by one": ("produce", "rate"),
        "100 callers": ("callers", "rate"),
        "bulk": ("drain", "bulk_rate"),
        "drain": ("drain", "rate"),
        "two workers": ("drain_two", "rate"),
        "1 ms handlers": ("drain_slow", "rate"),
    }
    rows = []
    for key, found in results["systems"].items():
        if key == THREADS or not any(workload in found for workload, _ in columns.values()):
            continue
        ours = {} if key == OURS else results["systems"].get(OURS, {})
        rows.append([found["name"], *(_rate(found, ours, *at) for at in columns.values())])
    return Table(
        "Messages per second",
        "Medians. In brackets: how many times as fast mx-rmq was.",
        ["", *columns],
        rows,
    )


def _threads(results: Results) -> Table:
    ours = results["systems"].get(THREADS, {})
    rows = []
    for key, found in results["systems"].items():
        if "drain" not in found or found["about"]["is_async"]:
            continue
        beside = {} if key == THREADS else ours
        rows.append(
            [
                found["name"],
                _rate(found, beside, "drain", "rate"),
                _rate(found, beside, "drain_two", "rate"),
                str(found["about"]["concurrency"]),
            ]
        )
    return Table(
        "Sync handlers, messages per second",
        "In brackets: how many times as fast mx-rmq was with plain functions, in threads.",
        ["", "drain", "two workers", "threads"],
        rows,
    )


def _cost(results: Results) -> Table:
    columns = {
        "worker CPU": ("drain", "worker_cpu", "{:,.0f}"),
        "server CPU": ("drain", "server_cpu", "{:,.0f}"),
        "server CPU, produce": ("produce", "server_cpu", "{:,.0f}"),
        "reads per message": ("drain", "reads", "{:.2f}"),
        "bytes per message": ("memory", "bytes", "{:,.0f}"),
        "idle: CPU %": ("idle", "cpu_percent", "{:.2f}"),
        "idle: reads/s": ("idle", "reads", "{:.2f}"),
    }
    return Table(
        "What a message costs",
        "CPU in ms for 1,000 messages of a drain. Reads: how often the server read from a socket.",
        ["", *columns],
        _plain(results, columns),
    )


def _lateness(results: Results) -> Table:
    columns = {
        "latency p50": ("latency", "p50", "{:,.1f}"),
        "p99": ("latency", "p99", "{:,.1f}"),
        "delayed: late p50": ("delayed", "p50", "{:,.1f}"),
        "late p99": ("delayed", "p99", "{:,.1f}"),
        "earliest": ("delayed", "min", "{:,.1f}"),
    }
    return Table(
        "Milliseconds",
        "Latency: from the call to the handler, the worker idle. Delayed: after the due time.",
        ["", *columns],
        _plain(results, columns),
    )


def _round_trips(results: Results) -> Table:
    rows = []
    for key, found in results["systems"].items():
        if not any(workload in found for workload in ("round_trip", "round_trip_callers")):
            continue
        ours = {} if key == OURS else results["systems"].get(OURS, {})
        rows.append(
            [
                found["name"],
                _time(found, ours, "round_trip", "p50"),
                _time(found, {}, "round_trip", "p99"),
                _rate(found, ours, "round_trip_callers", "rate"),
                _time(found, {}, "round_trip_callers", "p50"),
                _time(found, {}, "round_trip_callers", "p99"),
            ]
        )
    return Table(
        "Round trips",
        "Produce, handler, result returned; times in milliseconds. In brackets: how many times as "
        "fast mx-rmq was.",
        ["", "one caller: p50", "p99", "100 callers: /s", "100: p50", "100: p99"],
        rows,
    )


def _crash(results: Results) -> Table:
    rows = []
    for found in results["systems"].values():
        crash = found.get("crash")
        if crash is None:
            continue
        last = f"{crash['last_back']:.0f} s" if crash["back"] else NONE
        rows.append(
            [
                found["name"],
                f"{crash['completed']:.0f} of {crash['messages']:.0f}",
                f"{crash['held']:.0f}",
                f"{crash['back']:.0f}",
                last,
                _rate(found, {}, "drain", "rate"),
                found["promise"],
            ]
        )
    waited = max((found["crash"]["waited"] for found in _with(results, "crash")), default=0)
    return Table(
        "A worker is killed",
        "500 messages, the worker killed with its handlers at work, then another worker for up to "
        f"{waited:.0f} s.",
        ["", "completed", "held", "came back", "after", "drain /s", PROMISE],
        rows,
    )


def _with(results: Results, workload: str) -> Iterator[dict[str, Any]]:
    return (found for found in results["systems"].values() if workload in found)


def _plain(results: Results, columns: dict[str, tuple[str, str, str]]) -> list[list[str]]:
    rows = []
    for found in results["systems"].values():
        cells = [
            form.format(found[workload][name]) if workload in found else NONE
            for workload, name, form in columns.values()
        ]
        if any(cell != NONE for cell in cells):
            rows.append([found["name"], *cells])
    return rows


def _rate(found: dict[str, Any], ours: dict[str, Any], workload: str, name: str) -> str:
    if workload not in found:
        return NONE
    rate = found[workload][name]
    if workload not in ours:
        return f"{rate:,.0f}"
    return f"{rate:,.0f} ({_times(ours[workload][name] / rate)})"


def _time(found: dict[str, Any], ours: dict[str, Any], workload: str, name: str) -> str:
    if workload not in found:
        return NONE
    took = found[workload][name]
    time = f"{took:,.2f}" if took < 10 else f"{took:,.0f}"
    return f"{time} ({_times(took / ours[workload][name])})" if workload in ours else time


def _times(times: float) -> str:
    return f"{times:.0f}×" if times >= 10 else f"{times:.1f}×"


def _conditions(results: Results) -> str:
    load = ", ".join(f"{load:.1f}" for load in results["load"])
    moods = ", ".join(f"{mood:.0f}" for mood in results["calibration_ms"])
    scale = "" if results["scale"] == 1 else f" Counts scaled by {results['scale']}: a smoke run."
    return (
        f"{results['server']} on loopback without persistence; {results['machine']}. "
        f"Payload of {results['payload_bytes']} bytes; handlers that do nothing; "
        f"rounds in alternating order: {results['rounds']}, {results['minutes']} minutes. "
        f"Load before and after each round: {load}; "
        f"a fixed piece of Python took {moods} ms.{scale}"
    )


def _settings(results: Results) -> list[str]:
    lines = []
    for found in results["systems"].values():
        about = found["about"]
        versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        drained = found.get("drain", {}).get("messages")
        trips = f" Results: {about['results']}." if "round_trip" in found else ""
        count = f" {drained:,} messages drained." if drained else ""
        lines.append(
            f"- **{found['name']}**: {about['settings']}. Bulk: {about['bulk']}.{trips} "
            f"{about['runtime']}, {versions}.{count}"
        )
    return lines


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
