"""A virtual environment that contains only some requirements and their dependencies.

Its packages are links to those of our own environment, so it has the pinned versions, takes a tenth
of a second, and needs no network. A requirement that an example forgets is missing there, too.
"""

from __future__ import annotations

import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable

STUB = "#!{python}\nfrom {module} import {first}\nraise SystemExit({function}())\n"


def make_environment(directory: Path, requirements: Iterable[str]) -> Path:
    """Make an environment; return its directory of programs."""
    venv.create(directory, symlinks=True)
    programs = directory / "bin"
    (packages,) = directory.glob("lib/python*/site-packages")
    for one in _closure(requirements):
        for path in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            (packages / path).symlink_to(Path(str(one.locate_file(path))))
        for entry in one.entry_points.select(group="console_scripts"):
            program = programs / entry.name
            program.write_text(
                STUB.format(
                    python=programs / "python",
                    module=entry.module,
                    first=entry.attr.partition(".")[0],
                    function=entry.attr,
                )
            )
            program.chmod(0o755)
    return programs


def _closure(requirements: Iterable[str]) -> list[Distribution]:
    """Return the distributions that these requirements need, each once."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    left = [(Requirement(one), "") for one in requirements]
    while left:
        wanted, extra = left.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(wanted.name)
        one = found.setdefault(name, distribution(name))
        for each in {(name, part) for part in ("", *wanted.extras)} - seen:
            seen.add(each)
            left += [(Requirement(need), each[1]) for need in one.requires or ()]
    return list(found.values())
