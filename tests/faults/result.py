"""The result of a trial, as stored for the report."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.faults.trial import replay
from tests.lab.servers import ROOT

if TYPE_CHECKING:
    from tests.faults.trial import Figure

RESULTS: Final = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Result:
    """What a trial found, and in which commit."""

    fault: str
    size: int
    seed: int
    commit: str
    day: str
    seconds: float
    figures: dict[str, Figure]
    violations: list[str]
    tables: dict[str, list[list[str]]]

    @property
    def replay(self) -> str:
        """The command that repeats it."""
        return replay(self.fault, self.size, self.seed)


def commit() -> str:
    """Return the commit that is tested, with a mark if the tree differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    edited = " and edits" if git("status", "--porcelain", "--", "src", "tests/**/*.py") else ""
    return git("rev-parse", "--short", "HEAD") + edited
