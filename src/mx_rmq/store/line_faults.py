"""The faults of lines, in words, by the codes of repair_lines.lua."""

from __future__ import annotations

from typing import Final, NamedTuple

from mx_rmq.store.lines import id_in_line

WRONG_LINES: Final = {
    ("place", 1): (
        "in the line of its key, but its place is another",
        "taken out of a place in line that is not its own",
    ),
    ("place", 2): ("in the line of its key, but no place is noted", "place in line noted again"),
    ("key", 1): ("messages wait in its line, but it has no turn", "turn given"),
    ("key", 2): ("has a turn and is blocked", "no longer blocked"),
    ("key", 3): ("has a turn or is blocked, but nothing waits in its line", "turn removed"),
    ("running", 1): (
        "takes up a place of its key, but is neither in processing nor delayed",
        "no longer takes up a place of its key",
    ),
    ("running", 2): (
        "takes up a place of its key, but not under its own place in line",
        "takes up a place of its key under its own place in line",
    ),
    ("keyed", 1): ("has a place in line, but no record", "place in line removed"),
}
"""By member and code: what is wrong, and what a repair does."""


class LineFault(NamedTuple):
    """A member of a key for lines that is wrong: see repair_lines.lua."""

    what: str
    member: bytes
    code: int

    @property
    def suspect(self) -> tuple[str, bytes]:
        return self.what, self.member

    @property
    def id(self) -> str:
        """The message; '' if it is about a key."""
        id = b""
        if self.what in {"place", "running"}:
            id = id_in_line(self.member)
        elif self.what == "keyed":
            id = self.member.removeprefix(b"!")
        return id.decode("utf-8", "backslashreplace")

    @property
    def wrong(self) -> str:
        return self._about(WRONG_LINES[self.what, self.code][0])

    @property
    def repair(self) -> str:
        return self._about(WRONG_LINES[self.what, self.code][1])

    def _about(self, words: str) -> str:
        if self.what != "key":
            return words
        return f"key {self.member.decode('utf-8', 'backslashreplace')}: {words}"
