"""Rewrites the tables of docs/reliability.md from the campaign's results/."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from bench.capacity.page import fill
from tests.faults.result import RESULTS, Result
from tests.lab.servers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tests.faults.trial import Fault

PAGE: Final = ROOT / "docs" / "reliability.md"


def write(faults: Sequence[Fault]) -> None:
    """Write the page's tables."""
    results = {name: read(RESULTS / f"{name}.json") for name in (fault.name for fault in faults)}
    blocks = {
        "summary": _summary(faults, results),
        "details": "\n\n".join(
            _details(fault, result)
            for fault in faults
            if (result := results[fault.name]) is not None
        ),
    }
    PAGE.write_text(fill(PAGE.read_text(), blocks))


def read(path: Path) -> Result | None:
    """Read the result of a trial; None: no full run has finished."""
    return Result(**json.loads(path.read_text())) if path.exists() else None


def _summary(faults: Iterable[Fault], results: dict[str, Result | None]) -> str:
    rows = []
    for fault in faults:
        result = results[fault.name]
        if result is None:
            rows.append([f"`{fault.name}`", fault.title, "**no result**", "", "", ""])
            continue
        rows.append(
            [
                f"`{fault.name}`",
                fault.title,
                f"{result.size:,} {fault.unit}",
                str(len(result.violations)),
                f"{result.seconds:,.0f}",
                f"{result.seed}, {result.commit}",
            ]
        )
    head = ["kind", "what is done", "size", "violations", "seconds", "seed, commit"]
    return table([head, *rows])


def _details(fault: Fault, result: Result) -> str:
    parts = [f"### {fault.title[0].upper()}{fault.title[1:]}", f"`{result.replay}`"]
    figures = [[what, _number(value)] for what, value in result.figures.items()]
    parts.append(table([["", ""], *figures]))
    for title, rows in result.tables.items():
        parts += [
            f"{title}:",
            table([rows[0], *([_grouped(cell) for cell in row] for row in rows[1:])]),
        ]
    if result.violations:
        parts.append("Violations:\n\n" + "\n".join(f"- {one}" for one in result.violations))
    return "\n\n".join(parts)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table, the first one its head; numbers are right-aligned."""
    head, *rest = rows
    line = ["--:" if all(map(_is_number, column)) else "---" for column in zip(*rest, strict=True)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, line, *rest])


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("–", "").replace("-", "").isdigit()


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _grouped(cell: str) -> str:
    return f"{int(cell):,}" if cell.isdigit() else cell
