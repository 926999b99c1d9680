"""A Lua script and its signature.

The signature is read from the script's own first lines, so no Python file holds a position:

    local payload = KEYS[1]  -- HASH  id -> record        a key, by the name it has in keys.py
    local worker  = ARGV[3]  -- who holds the leases      an argument
    local each    = 4        -- per message: id, token    the rest, repeated for each item
    local stride  = 8        -- keys per topic            all keys, repeated for each topic
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Value = str | bytes | int
"""What a script takes."""

_KEY: Final = re.compile(r"^local (\w+) *= KEYS\[(\d+)\] *-- (\w+)", re.MULTILINE)
_ARG: Final = re.compile(r"^local (\w+) *= (?:tonumber\()?ARGV\[(\d+)\]", re.MULTILINE)
_EACH: Final = re.compile(r"^local each *= (\d+) *-- per \w+: (.+)$", re.MULTILINE)
_STRIDE: Final = re.compile(r"^local stride *= (\d+) *-- keys per \w+", re.MULTILINE)
_COMMAND: Final = re.compile(r"redis\.p?call\('([A-Z]+)'")
_CALL: Final = re.compile(r"redis\.p?call\('([A-Z]+)', (\w+)")

LUA: Final = resources.files("mx_rmq.store") / "lua"


@dataclass(frozen=True)
class Script:
    """One script, as its file describes it."""

    name: str
    source: str
    sha: str
    keys: tuple[str, ...]
    types: tuple[str, ...]
    """What type each key holds."""
    args: tuple[str, ...]
    each: tuple[str, ...]
    """The names of one item's arguments, if the script takes a batch."""
    repeated: bool
    """Whether the keys come again and again, for each topic of a call."""
    commands: frozenset[str]
    """The server's commands that it calls."""
    place: dict[str, int] = field(init=False, hash=False)
    """Where each key stands, from 0."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", {key: at for at, key in enumerate(self.keys)})

    @classmethod
    def parse(cls, name: str, source: str) -> Script:
        """Read a script's signature; refuse one with a gap."""
        keys = _KEY.findall(source)
        args = _ARG.findall(source)
        each = _EACH.search(source)
        stride = _STRIDE.search(source)
        numbers = [int(number) for _, number, _ in keys]
        if numbers != list(range(1, len(keys) + 1)):
            raise ValueError(f"{name}.lua: KEYS are numbered {numbers}")
        numbers = [int(number) for _, number in args]
        if numbers != list(range(1, len(args) + 1)):
            raise ValueError(f"{name}.lua: ARGV are numbered {numbers}")
        if each and int(each[1]) != len(args) + 1:
            raise ValueError(f"{name}.lua: each = {each[1]}, but {len(args)} arguments precede it")
        if stride and int(stride[1]) != len(keys):
            raise ValueError(f"{name}.lua: stride = {stride[1]}, but there are {len(keys)} keys")
        return cls(
            name=name,
            source=source,
            sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(),
            keys=tuple(key for key, _, _ in keys),
            types=tuple(kind for _, _, kind in keys),
            args=tuple(arg for arg, _ in args),
            each=tuple(part.strip() for part in each[2].split(",")) if each else (),
            repeated=stride is not None,
            commands=frozenset(_COMMAND.findall(source)),
        )

    def call_at(self, line: int, keys: Sequence[str]) -> str | None:
        """Return the command and the key that a line is about, if it says so."""
        lines = self.source.splitlines()
        call = _CALL.search(lines[line - 1]) if line <= len(lines) else None
        place = self.place.get(call[2]) if call else None
        return None if call is None or place is None else f"{call[1]} {keys[place]}"

    def arguments(self, named: Mapping[str, Value], items: Sequence[Value] = ()) -> list[Value]:
        """Put arguments in the script's order, then the items'; refuse what does not fit."""
        if len(named) != len(self.args):
            raise TypeError(f"{self.name} takes {self.args}, not {tuple(named)}")
        count, rest = divmod(len(items), len(self.each) or 1)
        if rest or (count and not self.each):
            raise TypeError(f"{self.name} takes {self.each} per item, not {len(items)} values")
        try:
            return [*[named[name] for name in self.args], *items]
        except KeyError:
            raise TypeError(f"{self.name} takes {self.args}, not {tuple(named)}") from None


@cache
def load(name: str) -> Script:
    """Load a script by its name."""
    return Script.parse(name, (LUA / f"{name}.lua").read_text(encoding="utf-8"))


@cache
def names() -> tuple[str, ...]:
    """Return the names of all scripts."""
    return tuple(sorted(file.name[:-4] for file in LUA.iterdir() if file.name.endswith(".lua")))
