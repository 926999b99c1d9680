"""Refuse phrases that sound translated. `make check` runs this over code, docs and templates.

The list is short on purpose: it keeps out the worst relapses. STYLE.md has the whole vocabulary.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent

INSTEAD: Final = {
    r"anew": "again",
    r"shall": "must, or will",
    r"(an|its|their|your|our) own ids?": "a custom id",
    r"reckon(s|ed|ing)?": "estimate, or count",
    r"mend(s|ed|ing)?": "fix",
    r"befalls?|befell": "happens to",
    r"put(s|ting)? it right": "fix it",
    r"heard of": "seen, or known",
    r"in vain": "without effect",
    r"for ever(?! in\b)": "forever",
    r"so many (messages|seconds|times|bytes|topics|milliseconds|workers|of them)": "N ...",
    r"so many (pending|handlers|leases|partitions|calls|lines|an? \w+)": "this many ...",
    r"one an? (second|minute|hour|call|topic|message|key|worker|script|change)": "one per ...",
    r"(messages|commands|requests|calls|lines|entries|bytes) an? (second|minute|hour)": "per ...",
    r"(µs|ms|bytes) an? (message|call|topic|batch|round)": "per ...",
    r"a (method|key|line|file|call) an? (script|topic|message|change|each)": "one ... per ...",
    r"(every|any|no|some)body(?![@\"])": "name who it is: every client, any worker",
    r"(him|her)self": "itself",
    r"how manieth": "which, or its position",
    r"as told": "as planned",
    r"whoever": "name who it is: the caller, the first worker",
    r"of which": "start a new sentence, or use whose",
    r"at the (most|least)": "at most, or at least",
    r"st(oo|an)d(s|ing)? still": "does not move, or is stuck",
    r"be believed": "be trusted",
    r"an? [\w-]+ of (its|their|your|our) own": "its own ...",
    r"(falls?|fell|fallen) quiet": "goes silent, or has no messages",
    r"at the worst": "at worst",
    r"of yours": "your ...",
    r"look-ups?": "lookup",
    r"cannot be had": "cannot be read",
    r"as of `": "same as for `...`",
    r"goes before the (handler|queue|topic)'s": "overrides the handler's",
}
"""Patterns, and what to write instead."""

PHRASES: Final = re.compile(rf"(?i)\b({'|'.join(INSTEAD)})(?!\w)")

FILES: Final = (
    "src",
    "docs",
    "bench",
    "examples",
    "deploy",
    "tests/faults",
    "tests/lab",
    "tests/model",
    "*.md",
)
SUFFIXES: Final = {".py", ".lua", ".html", ".js", ".md", ".toml", ".yaml", ".yml"}
HISTORY: Final = ROOT / "CHANGELOG.md"
"""Not checked: it says what past releases said."""


def texts() -> list[Path]:
    """Return the files to check."""
    found = [path for pattern in FILES for path in ROOT.glob(pattern)]
    inside = [path for top in found if top.is_dir() for path in top.rglob("*")]
    return sorted(
        path
        for path in (*found, *inside)
        if path.suffix in SUFFIXES and path.is_file() and path != HISTORY
    )


def relapses(file: str, text: str) -> list[str]:
    """Return one line per bad phrase: the file, the line number, and what to write instead."""
    return [
        f"{file}:{number}: {found[0]!r}: write {_instead(found[0])}"
        for number, line in enumerate(text.splitlines(), 1)
        for found in PHRASES.finditer(line)
    ]


def _instead(phrase: str) -> str:
    return next(better for bad, better in INSTEAD.items() if re.match(rf"(?i){bad}", phrase))


def main() -> int:
    """Print every relapse; return the exit code."""
    files = texts()
    found = [
        line
        for path in files
        for line in relapses(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    for line in found:
        print(line)
    if found:
        print(f"prose: {len(found)} phrases to rewrite. The list is in scripts/prose.py")
        return 1
    print(f"prose: {len(files)} files, no phrase to rewrite")
    return 0


if __name__ == "__main__":
    sys.exit(main())
