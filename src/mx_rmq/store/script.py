"""A Lua script: its composed text and its signature.

A line `-- use: clock, history` in a script stands for blocks in `lua/shared`. The text for the
server is composed here, once per process, and each of its lines knows which file it comes from.
A block's header says which names it needs and which it defines. A block never uses another block.

The signature is read from the script's own first lines, so no Python file holds a position:

    -- keys: payload | pending*                                      keys, by their names in keys.py
    local worker = ARGV.worker       -- who holds the leases         an argument
    local each, width = ARGV.each, 2 -- per message: id, token       the rest, repeated per item
    local stride = 9                 -- keys per topic               all keys, repeated per topic

`pending*` stands for its three priorities: pending_high, pending and pending_low. The text for the
server says `local payload, pending_high, … = KEYS[1], KEYS[2], …`, `ARGV[1]` for the first
argument, and for `ARGV.each` where the items begin. A block may take an argument, too.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.store.arguments import MAX_BATCH, too_many
from mx_rmq.store.keys import TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mx_rmq.net.connection import Value

_KEYS: Final = re.compile(r"-- keys: ([\w |*]+)")
_NAMED: Final = re.compile(r"^local ([\w, ]+) = KEYS\[", re.MULTILINE)
_NAMED_ARG: Final = re.compile(r"\bARGV\.(\w+)")
_ARG: Final = re.compile(r"^local (\w+) *= (?:tonumber\()?ARGV\[(\d+)\]", re.MULTILINE)
_EACH: Final = re.compile(
    r"^local each(?:, width)? *= (\d+)(?:, \d+)? *-- per \w+: (.+)$", re.MULTILINE
)
_STRIDE: Final = re.compile(r"^local stride *= (\d+) *-- keys per \w+", re.MULTILINE)
_COMMAND: Final = re.compile(r"redis\.p?call\('([A-Z]+)'")
_CALL: Final = re.compile(r"redis\.p?call\('([A-Z]+)', (\w+)")

_USE: Final = re.compile(r"( *)-- use: ([\w, ]+)")
_LINE: Final = re.compile(r"@?user_script: ?(\d+)")

LUA: Final = resources.files("mx_rmq.store") / "lua"


class Line(NamedTuple):
    """One line of a composed script, and where it comes from."""

    text: str
    file: str  # relative to the lua folder
    number: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass(frozen=True)
class Script:
    name: str
    source: str  # the composed text
    lines: tuple[Line, ...] = field(repr=False)  # the composed text, line by line
    sha: str
    keys: tuple[str, ...]
    types: tuple[str, ...]  # the type of each key
    args: tuple[str, ...]
    each: tuple[str, ...]  # the names of one item's arguments, if the script takes a batch
    commands: frozenset[str]  # the server commands that it calls
    place: dict[str, int] = field(hash=False)  # the index of each key, from 0

    @classmethod
    def parse(cls, name: str, source: str) -> Script:
        """Compose a script and read its signature; refuse one with a gap or an unknown key."""
        lines = compose(name, source)
        source = "".join(f"{line.text}\n" for line in lines)
        keys = tuple(key for named in _NAMED.findall(source) for key in named.split(", "))
        args = _ARG.findall(source)
        each = _EACH.search(source)
        stride = _STRIDE.search(source)
        if unknown := [key for key in keys if key not in TYPES]:
            raise ValueError(f"{name}.lua: {unknown[0]} is not a key in keys.py")
        if len(keys) != len(set(keys)):
            raise ValueError(f"{name}.lua: a key is named twice: {keys}")
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
            lines=lines,
            sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(),
            keys=keys,
            types=tuple(TYPES[key] for key in keys),
            args=tuple(arg for arg, _ in args),
            each=tuple(part.strip() for part in each[2].split(",")) if each else (),
            commands=frozenset(_COMMAND.findall(source)),
            place={key: at for at, key in enumerate(keys)},
        )

    def call_at(self, words: str, keys: Sequence[str]) -> str | None:
        """Return the command and key on the line that a server's error names, if there is one."""
        number = _LINE.search(words)
        line = self._line(int(number[1])) if number else None
        call = _CALL.search(line.text) if line else None
        place = self.place.get(call[2]) if call else None
        return None if call is None or place is None else f"{call[1]} {keys[place]}"

    def place_lines(self, words: str) -> str:
        """Translate line numbers in a server's error to the files that the lines come from."""

        def place(number: re.Match[str]) -> str:
            line = self._line(int(number[1]))
            return line.place if line else number[0]

        return _LINE.sub(place, words)

    def _line(self, number: int) -> Line | None:
        return self.lines[number - 1] if 0 < number <= len(self.lines) else None

    def arguments(self, named: Mapping[str, Value], items: Sequence[Value] = ()) -> list[Value]:
        """Return arguments in the script's order, then the items; refuse what does not fit."""
        if len(named) != len(self.args):
            raise TypeError(f"{self.name} takes {self.args}, not {tuple(named)}")
        count, rest = divmod(len(items), len(self.each) or 1)
        if rest or (count and not self.each):
            raise TypeError(f"{self.name} takes {self.each} per item, not {len(items)} values")
        if count > MAX_BATCH:
            raise too_many(count)
        try:
            return [*[named[name] for name in self.args], *items]
        except KeyError:
            raise TypeError(f"{self.name} takes {self.args}, not {tuple(named)}") from None


def compose(name: str, source: str) -> tuple[Line, ...]:
    """Replace each `-- use: block` with that block, and number the keys and arguments."""
    lines = list[Line]()
    count = 0
    for number, text in enumerate(source.splitlines(), 1):
        if use := _USE.fullmatch(text):
            for line in (line for one in use[2].split(", ") for line in block(one)):
                lines.append(line._replace(text=f"{use[1]}{line.text}".rstrip()))
            continue
        if named := _KEYS.fullmatch(text):
            words = named[1].replace("|", " ").split()
            keys = [key for word in words for key in _keys(word)]
            numbered = [f"KEYS[{place}]" for place in range(count + 1, count + len(keys) + 1)]
            count += len(keys)
            text = f"local {', '.join(keys)} = {', '.join(numbered)}"  # noqa: PLW2901 - in its place
        lines.append(Line(text, f"{name}.lua", number))
    args = [arg for line in lines for arg in _NAMED_ARG.findall(line.text) if arg != "each"]
    places = {arg: f"ARGV[{place}]" for place, arg in enumerate(args, 1)}
    places["each"] = str(len(args) + 1)
    return tuple(
        line._replace(text=_NAMED_ARG.sub(lambda arg: places[arg[1]], line.text)) for line in lines
    )


def _keys(word: str) -> tuple[str, ...]:
    name = word.removesuffix("*")
    return (name,) if name == word else (f"{name}_high", name, f"{name}_low")


@cache
def block(name: str) -> tuple[Line, ...]:
    return parse_block(name, (LUA / "shared" / f"{name}.lua").read_text(encoding="utf-8"))


def parse_block(name: str, source: str) -> tuple[Line, ...]:
    """Return a block's lines below its header; refuse one that uses a block."""
    numbered = enumerate(source.splitlines(), 1)
    lines = [Line(text, f"shared/{name}.lua", number) for number, text in numbered]
    for line in lines:
        if _USE.fullmatch(line.text):
            raise ValueError(f"{line.place}: a block cannot use a block")
    return tuple(lines[[line.text for line in lines].index("") + 1 :])


@cache
def load(name: str) -> Script:
    return Script.parse(name, (LUA / f"{name}.lua").read_text(encoding="utf-8"))


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(file.name[:-4] for file in LUA.iterdir() if file.name.endswith(".lua")))


def sources() -> list[str]:
    return [load(name).source for name in names()]
