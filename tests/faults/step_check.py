"""Checks the log of a trial of steps and flows against the guarantees.

Handlers write one line each time something happens, in order. The last lines of a killed worker
may be missing, never earlier ones.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Seen(StrEnum):
    """What a line is about. Each has the message, the fence of the delivery, and then more."""

    STEP_RUNS = "step-runs"  # the function of a step is called: its name
    STEP_NOTED = "step-noted"  # the step has returned: its name
    RETURNS = "returns"  # a handler is about to return
    PARENT_RUNS = "parent-runs"  # a parent's handler is called: its children


class Line(NamedTuple):
    what: Seen
    words: tuple[str, ...]


def parse(log: str) -> list[Line]:
    """Read a log, without a line that was cut off when its writer was killed."""
    found = []
    for text in log.splitlines():
        what, *words = text.split(" ")
        if what in set(Seen) and words and words[-1] == ".":
            found.append(Line(Seen(what), tuple(words[:-1])))
    return found


def check(lines: Iterable[Line]) -> list[str]:
    """Return all violations.

    A worker that has lost its lease may still run the function of a step: its fence is older.
    """
    violations: list[str] = []
    noted: dict[tuple[str, str], int] = {}
    returned: dict[str, int] = {}
    parents: dict[str, str] = {}
    for what, (id, number, *words) in lines:
        fence = int(number)
        if what is Seen.STEP_RUNS:
            if fence >= noted.get((id, words[0]), fence + 1):
                violations.append(f"step {words[0]} of {id} ran again after it was noted")
            if id in parents and fence > returned[id]:
                violations.append(f"child {id} ran after its parent {parents[id]}")
        elif what is Seen.STEP_NOTED:
            noted.setdefault((id, words[0]), fence)
        elif what is Seen.RETURNS:
            returned[id] = max(returned.get(id, 0), fence)
        else:
            missing = [child for child in words if child not in returned]
            if missing:
                violations.append(f"parent {id} ran before its child {missing[0]} had returned")
            else:
                parents |= dict.fromkeys(words, id)
    return violations
