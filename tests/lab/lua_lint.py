"""The rules for scripts (DESIGN.md section 3), checked on their text.

Redis does not roll a failed script back, and a cluster must know every key beforehand. So: every
key in KEYS, reads first, then writes that cannot fail, in plain Lua 5.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from tests.lab.lua import (
    Assign,
    Binary,
    Branch,
    Call,
    Const,
    Expr,
    For,
    Function,
    Index,
    Local,
    LuaError,
    Name,
    Table,
    Unary,
    parse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.lab.lua import Block

READS: Final = {
    "GET": "STRING",
    **dict.fromkeys(("HEXISTS", "HGET", "HLEN", "HMGET", "HSCAN"), "HASH"),
    **dict.fromkeys(("LLEN", "LPOS", "LRANGE"), "LIST"),
    **dict.fromkeys(("ZCARD", "ZRANGE", "ZRANGEBYSCORE", "ZSCORE"), "ZSET"),
}
"""The reading commands, and the type of key that each works on."""

WRITES: Final = {
    "SET": "STRING",
    "PEXPIRE": "",
    **dict.fromkeys(("HDEL", "HEXPIRE", "HINCRBY", "HSET"), "HASH"),
    **dict.fromkeys(("LPUSH", "LREM", "LTRIM", "RPUSH"), "LIST"),
    **dict.fromkeys(("SADD", "SREM"), "SET"),
    **dict.fromkeys(("ZADD", "ZREM"), "ZSET"),
}
"""The writing commands, likewise; '': any type."""

KEYLESS: Final = ("TIME",)

PROBES: Final = {
    "preflight": "tries each command, named by its arguments, on a key of its own, to see it fail"
}
"""The scripts that may name a command by a variable, read after a write and write unseen keys."""

NAMES: Final = {
    **dict.fromkeys(("ARGV", "KEYS", "ipairs", "tonumber", "type", "unpack"), ()),
    "math": ("ceil", "floor", "huge", "max", "min"),
    "string": ("find", "format", "gmatch", "gsub", "match", "sub"),
    "table": ("concat",),
}
"""What scripts may use of Lua 5.1, and which parts of it."""

WHY_NOT: Final = {
    "redis": "redis.call(…) and redis.pcall(…) are called where they stand, and nothing else",
    "tostring": "it keeps 14 digits: use string.format",
    "cjson": "user bytes are never parsed",
    "cmsgpack": "user bytes are never parsed",
    "loadstring": "a script is one text",
    "utf8": "Lua 5.1 has none",
    "table.unpack": "Lua 5.1 has none",
    "table.pack": "Lua 5.1 has none",
}
MAX_LINE: Final = 100

_SHARED: Final = re.compile(r"^-- shared: (.+)\n((?:.*\n)*?)-- end$", re.MULTILINE)
_SIGNATURE: Final = re.compile(r"^local (\w+) *= (?:tonumber\()?(KEYS|ARGV)\[(\d+)\]\)?(.*)$")
_EACH: Final = re.compile(r"^local each *= \d+ *-- per \w+: (.+)$", re.MULTILINE)
_WIDTH: Final = re.compile(r"^local width = (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Keys:
    """A value that is certainly a declared key: one of these names."""

    names: frozenset[str]


@dataclass(frozen=True)
class Group:
    """A table some of whose values are declared keys."""

    items: tuple[Shape, ...] = ()


Shape = Keys | Group | None
"""What is known of a value; None: nothing, so it is no key."""


def lint(name: str, source: str) -> list[str]:
    """Return what is wrong with a script, each with its line."""
    problems = [*_layout(name, source), *_signature(source)]
    try:
        walker = _Walker(_types(source), probes=name in PROBES)
        walker.block(parse(source))
        problems += walker.problems
    except LuaError as error:
        problems.append((error.line, str(error)))
    return [f"{name}.lua:{line}: {text}" for line, text in sorted(problems)]


def lint_shared(sources: Mapping[str, str]) -> list[str]:
    """Return which shared blocks differ between scripts, or are not closed."""
    problems = []
    known: dict[str, tuple[str, str]] = {}
    for name, source in sources.items():
        blocks = _SHARED.findall(source)
        if len(blocks) != len(re.findall("^-- shared:", source, re.MULTILINE)):
            problems.append(f"{name}.lua: a shared block has no -- end")
        for title, text in blocks:
            first, wanted = known.setdefault(title, (name, text))
            if text != wanted:
                problems.append(f"{name}.lua: shared: {title}: differs from {first}.lua")
    return problems


def _layout(name: str, source: str) -> Iterator[tuple[int, str]]:
    lines = source.splitlines()
    header = list(takewhile(lambda line: line.startswith("--"), lines))
    if not header or not re.match(f"-- {name}: .", header[0]):
        yield 1, f"the header does not begin with {name}: from -> to"
    for part in ("Returns", "Cost"):
        if not any(re.match(f"-- {part} +[^ ]", line) for line in header):
            yield 1, f"the header has no {part}"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            yield number, f"{len(line)} characters; the limit is {MAX_LINE}"


def _signature(source: str) -> Iterator[tuple[int, str]]:
    seen = {"KEYS": 0, "ARGV": 0}
    for number, line in enumerate(source.splitlines(), 1):
        if found := _SIGNATURE.match(line):
            _, table, position, about = found.groups()
            seen[table] += 1
            if int(position) != seen[table] or (table == "KEYS" and seen["ARGV"]):
                yield number, f"{table}[{position}] is out of order"
            if table == "KEYS" and not re.match(r" +-- (HASH|LIST|ZSET|STRING|SET)  ", about):
                yield number, f"{table}[{position}] does not say its type"
    each, width = _EACH.search(source), _WIDTH.search(source)
    if each and width and len(each[1].split(",")) != int(width[1]):
        yield 1, f"width is {width[1]}, but an item is {each[1]}"


def _types(source: str) -> dict[str, str]:
    keys = re.findall(r"^local (\w+) *= KEYS\[\d+\] +-- (\w+)", source, re.MULTILINE)
    return dict(keys)


class _Walker:
    """Goes through a script in the order of its text, and knows which names hold keys."""

    def __init__(self, types: Mapping[str, str], *, probes: bool) -> None:
        self.problems: list[tuple[int, str]] = []
        self._types = types
        self._probes = probes
        self._scopes: list[dict[str, Shape]] = []
        self._proven: set[str] = set()
        self._written = ""

    def block(self, block: Block, bound: Mapping[str, Shape] | None = None) -> None:
        self._scopes.append(dict(bound or {}))
        for statement in block:
            for value in statement.values:
                self._visit(value)
            match statement:
                case Local(names, values):
                    self._scopes[-1].update(zip(names, self._shapes(names, values), strict=True))
                case Assign(targets, values):
                    self._assign(targets, values)
                case For(names, values, body):
                    self.block(body, self._loop(names, values))
                case Branch(_, body):
                    self.block(body)
        self._scopes.pop()

    # what happens

    def _visit(self, expr: Expr) -> None:
        match expr:
            case Name(name, line):
                self._global(name, None, line)
            case Index(Name(name, line), Const(str(part))) if self._scope(name) is None:
                self._global(name, part, line)
            case Index(of, key):
                self._visit(of)
                self._visit(key)
            case Call(Index(Name("redis"), Const("call" | "pcall")), args, line):
                for value in args:
                    self._visit(value)
                self._command(args, line)
            case Call(function, args):
                for value in (*args, function):
                    self._visit(value)
            case Table(items):
                for value in (value for item in items for value in item if value):
                    self._visit(value)
            case Function(params, body):
                self.block(body, dict.fromkeys(params))
            case Binary(_, left, right):
                self._visit(left)
                self._visit(right)
            case Unary(_, operand):
                self._visit(operand)

    def _global(self, name: str, part: str | None, line: int) -> None:
        if self._scope(name) is not None:
            return
        allowed = NAMES.get(name)
        if allowed is not None and (part in allowed if part else not allowed):
            return
        whole = f"{name}.{part}" if part else name
        why = WHY_NOT.get(whole) or WHY_NOT.get(name) or "not among the names that scripts use"
        self._problem(line, f"{whole}: {why}")

    def _command(self, args: tuple[Expr, ...], line: int) -> None:
        match args:
            case (Const(str(command)), *rest):
                pass
            case _:
                if not self._probes:
                    self._problem(line, "the command is not a literal")
                return
        if command in KEYLESS:
            return
        if command not in READS and command not in WRITES:
            self._problem(line, f"{command} is neither a known read nor a known write")
            return
        keys = self._shape(rest[0]) if rest else None
        if not isinstance(keys, Keys):
            self._problem(line, f"the key of {command} is not one of KEYS")
            return
        for key in sorted(keys.names):
            self._use(command, key, line)

    def _use(self, command: str, key: str, line: int) -> None:
        kind = self._types.get(key)
        wanted = {**READS, **WRITES}[command]
        if kind and wanted and wanted != kind:
            self._problem(line, f"{command} on {key}, a {kind}")
        if self._probes:
            return
        if command in READS:
            self._proven.add(key)
            if self._written:
                self._problem(line, f"{command} reads after {self._written} has written")
        else:
            self._written = command
            if key not in self._proven:
                self._problem(line, f"{command} writes {key}, whose type no read has proven")

    def _problem(self, line: int, text: str) -> None:
        self.problems.append((line, text))

    # what is known

    def _scope(self, name: str) -> dict[str, Shape] | None:
        return next((scope for scope in reversed(self._scopes) if name in scope), None)

    def _assign(self, targets: tuple[Expr, ...], values: tuple[Expr, ...]) -> None:
        names = [target.name if isinstance(target, Name) else "" for target in targets]
        for target, shape in zip(targets, self._shapes(names, values), strict=True):
            match target:
                case Name(name, line):
                    scope = self._scope(name)
                    if scope is None:
                        self._problem(line, f"{name} is assigned to, but not local")
                    else:
                        scope[name] = shape
                case Index(Name(name), key) if (scope := self._scope(name)) is not None:
                    self._visit(key)
                    known = scope[name]
                    if isinstance(known, Group):
                        scope[name] = Group((*known.items, shape))
                case _:
                    self._visit(target)

    def _loop(self, names: tuple[str, ...], values: tuple[Expr, ...]) -> dict[str, Shape]:
        bound: dict[str, Shape] = dict.fromkeys(names)
        match values:
            case (Call(Name("ipairs"), (table,)),) if len(names) > 1:
                shape = self._shape(table)
                bound[names[1]] = _any(shape.items) if isinstance(shape, Group) else None
        return bound

    def _shapes(self, names: Sequence[str], values: tuple[Expr, ...]) -> list[Shape]:
        shapes: list[Shape] = []
        for name, value in zip(names, values, strict=False):
            match value:
                case Index(Name("KEYS"), Const()):
                    shapes.append(Keys(frozenset([name])))
                case Call(Name("unpack"), (table,)):
                    shape = self._shape(table)
                    shapes += shape.items if isinstance(shape, Group) else ()
                case _:
                    shapes.append(self._shape(value))
        return [*shapes, *[None] * len(names)][: len(names)]

    def _shape(self, expr: Expr) -> Shape:
        match expr:
            case Name(name):
                scope = self._scope(name)
                return None if scope is None else scope[name]
            case Index(Name("KEYS")):
                return Keys(frozenset(["KEYS[…]"]))
            case Index(of, key):
                shape = self._shape(of)
                if not isinstance(shape, Group):
                    return None
                if isinstance(key, Const) and isinstance(key.value, float):
                    return (
                        shape.items[int(key.value) - 1] if key.value <= len(shape.items) else None
                    )
                return _one_of(_any(shape.items))
            case Table(items):
                return Group(tuple(self._shape(value) for _, value in items))
            case Binary("and", _, right):
                return self._shape(right)
            case Binary("or", left, right):
                first, second = self._shape(left), self._shape(right)
                return first if second == Group() else _any([first, second])
        return None


def _any(shapes: Iterable[Shape]) -> Shape:
    """Return what is known of something that is each of these in turn."""
    shapes = list(shapes)
    if not shapes:
        return None
    return reduce(_join, shapes)


def _join(one: Shape, other: Shape) -> Shape:
    if isinstance(one, Keys) and isinstance(other, Keys):
        return Keys(one.names | other.names)
    if isinstance(one, Group) and isinstance(other, Group):
        return Group(tuple(map(_join, one.items, other.items)))
    return None


def _one_of(shape: Shape) -> Shape:
    """Return what is known of a single one of these: to read it proves no other."""
    if isinstance(shape, Keys) and len(shape.names) > 1:
        return Keys(frozenset(["one of " + ", ".join(sorted(shape.names))]))
    return shape
