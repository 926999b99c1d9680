"""Files that several processes append lines to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def whole_lines(path: Path) -> list[bytes]:
    """Return the finished lines: a read during a write may end in the middle of one."""
    return path.read_bytes().split(b"\n")[:-1]
