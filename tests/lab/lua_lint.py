"""The rules for scripts (DESIGN.md section 3), checked on their text.

Redis does not roll back a failed script, and a cluster must know every key in advance. So: every
key in KEYS, reads first, then writes that cannot fail, in plain Lua 5.1.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from luaparser import ast
from luaparser import astnodes as lua

from mx_rmq.store.keys import TYPES
from mx_rmq.store.script import compose
from tests.lab.lua_reading import Reading, children

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mx_rmq.store.script import Line

READS: Final = {
    "GET": "STRING",
    **dict.fromkeys(("EXISTS", "PTTL"), ""),
    **dict.fromkeys(("HEXISTS", "HGET", "HGETALL", "HLEN", "HMGET"), "HASH"),
    **dict.fromkeys(("HRANDFIELD", "HSCAN", "HSTRLEN"), "HASH"),
    **dict.fromkeys(("LLEN", "LPOS", "LRANGE"), "LIST"),
    **dict.fromkeys(("SCARD", "SISMEMBER", "SMISMEMBER"), "SET"),
    **dict.fromkeys(("XLEN", "XREVRANGE"), "STREAM"),
    **dict.fromkeys(("ZCARD", "ZCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYSCORE", "ZSCORE"), "ZSET"),
    **dict.fromkeys(("ZLEXCOUNT", "ZRANGEBYLEX"), "ZSET"),
}
"""The reading commands, and the type of key that each works on."""

WRITES: Final = {
    "SET": "STRING",
    "PEXPIRE": "",
    **dict.fromkeys(("HDEL", "HEXPIRE", "HSET"), "HASH"),
    **dict.fromkeys(("LPUSH", "LREM", "LTRIM", "RPUSH"), "LIST"),
    **dict.fromkeys(("SADD", "SREM"), "SET"),
    "XTRIM": "STREAM",
    **dict.fromkeys(("ZADD", "ZREM", "ZREMRANGEBYLEX", "ZREMRANGEBYRANK"), "ZSET"),
}
"""The writing commands, likewise; '': any type."""

CHANNEL: Final = "PUBLISH"
"""The command whose first argument is a channel, not a key; a note, too."""

NOTES: Final = {"HINCRBY": "HASH", "XADD": "STREAM", CHANNEL: ""}
"""Commands that only record what was done: they use pcall, and may fail."""

KEYLESS: Final = ("TIME",)

PROBES: Final = {
    "preflight": "tries each command, named by its arguments, on its own key, to see it fail"
}
"""The scripts that may name a command by a variable, read after a write and write unseen keys."""

NAMES: Final = {
    *("ARGV", "KEYS", "ipairs", "tonumber", "type", "unpack", "table.concat"),
    *("math.ceil", "math.floor", "math.huge", "math.max", "math.min"),
    "redis.acl_check_cmd",  # asks the server what a user may do, and touches no key
    "redis.sha1hex",
    *("string.byte", "string.find", "string.format", "string.gmatch", "string.gsub"),
    *("string.match", "string.sub"),
}
"""What scripts may use of Lua 5.1."""

WHY_NOT: Final = {
    "redis": "only redis.call(…) and redis.pcall(…) are allowed, called directly",
    "tostring": "it keeps 14 digits: use string.format",
    **dict.fromkeys(("cjson", "cmsgpack"), "user bytes are never parsed"),
    "loadstring": "a script is one text",
    **dict.fromkeys(("utf8", "table.pack", "table.unpack"), "Lua 5.1 has none"),
}

LATER: Final = {
    lua.Goto: "goto",
    lua.Label: "::",
    lua.Attribute: "<attribute>",
    lua.FloorDivOp: "//",
    lua.BAndOp: "&",
    lua.BOrOp: "|",
    lua.BXorOp: "~",
    lua.UBNotOp: "~",
    lua.BShiftLOp: "<<",
    lua.BShiftROp: ">>",
}
"""What luaparser accepts but Lua 5.1 does not."""

MAX_LINE: Final = 100

_KEYS: Final = re.compile(r"local ([\w, ]+) = KEYS\[\d")
"""The line that the loader makes from `-- keys:`."""

Problem = tuple[int, str]
"""A line, and what is wrong there."""


def lint(name: str, source: str) -> list[str]:
    """Return what is wrong with a script, each with its file and line."""
    if by_hand := list(_numbered(f"{name}.lua", source)):
        return by_hand
    lines = compose(name, source)
    source = "".join(f"{line.text}\n" for line in lines)
    problems = [*_header(name, source), *_width(lines), *_items(source), *_repetition(source)]
    problems += _signature(lines)
    try:
        tree = ast.parse(source)
    except (ast.SyntaxException, ValueError) as error:
        problems.append(_unreadable(error))
    else:
        problems += _twice(tree)
        problems += list(_later_lua(tree)) or _conduct(Reading(tree), name, source)
    last = len(lines)  # luaparser finds the end of a text on the line after it
    return [f"{lines[min(at, last) - 1].place}: {text}" for at, text in sorted(problems)]


def lint_block(name: str, source: str) -> list[str]:
    """Return what is wrong with the header of a shared block."""
    declared = {
        about: [
            word
            for line in re.findall(f"^-- {about}: (.+)$", source, re.MULTILINE)
            for word in re.split(", *", line)
            if word
        ]
        for about in ("needs", "defines")
    }
    tree = ast.parse(source)
    reading = Reading(tree)
    used = [one for _, one in reading.globals if one not in NAMES and not one.startswith("ARGV.")]
    free = [one.partition(".")[0] for one in used]
    free += [assigned for _, assigned in reading.assigned]
    true = {
        "needs": set(free),
        "defines": {one for node in tree.body.body for one in _defined_by(node)},
    }
    unnamed = not re.match(f"-- {name}: .", source)
    return (
        [*_numbered(f"shared/{name}.lua", source)]
        + [f"shared/{name}.lua: the header does not begin with {name}: …"] * unnamed
        + [
            f"shared/{name}.lua: {about} {', '.join(sorted(true[about])) or 'nothing'}, "
            f"not {', '.join(declared[about]) or 'nothing'}"
            for about in declared
            if sorted(declared[about]) != sorted(true[about])
        ]
    )


def _numbered(file: str, source: str) -> Iterator[str]:
    """No file holds a position of KEYS or ARGV, and a local has its argument's name."""
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("--"):
            continue
        if table := re.search(r"\b(KEYS|ARGV)\[\d", line):
            yield f"{file}:{number}: name it in -- keys: or as ARGV.name, not {table[1]}[…]"
        if len(line) > MAX_LINE:
            yield f"{file}:{number}: {len(line)} characters; the limit is {MAX_LINE}"
        named = re.match(r"local (\w+).*\bARGV\.(\w+)", line)
        if "ARGV." in line and not (named and named[1] == named[2]):
            yield f"{file}:{number}: a local must have its argument's name"


def lint_uses(scripts: Mapping[str, str], blocks: Iterable[str]) -> list[str]:
    """Return the blocks that fewer than two scripts use: those need no file."""
    uses = (line for text in scripts.values() for line in re.findall("-- use: (.+)", text))
    used = Counter(name for line in uses for name in line.split(", "))
    return [f"shared/{name}.lua is used {used[name]} times" for name in blocks if used[name] < 2]


def _defined_by(node: Any) -> list[str]:
    """Return the names that a statement makes local to everything after it."""
    match node:
        case lua.LocalAssign(targets=targets):
            return [target.id for target in targets]
        case lua.LocalFunction(name=lua.Name(id=name)):
            return [name]
    return []


# The text


def _header(name: str, source: str) -> Iterator[Problem]:
    """A script begins with what it does, what it returns and what it costs."""
    header = list(takewhile(lambda line: line.startswith("--"), source.splitlines()))
    if not header or not re.match(f"-- {name}: .", header[0]):
        yield 1, f"the header does not begin with {name}: from -> to"
    for part in ("Returns", "Cost"):
        if not any(re.match(f"-- {part} +[^ ]", line) for line in header):
            yield 1, f"the header has no {part}"


def _width(lines: Iterable[Line]) -> Iterator[Problem]:
    """No line is too long, but for those that the loader makes."""
    for number, line in enumerate(lines, 1):
        if len(line.text) > MAX_LINE and not _KEYS.match(line.text):
            yield number, f"{len(line.text)} characters; the limit is {MAX_LINE}"


def _signature(lines: Iterable[Line]) -> Iterator[Problem]:
    """Keys have names from keys.py, and come before ARGV. Each is named once."""
    keys, args = list[str](), list[str]()
    for number, line in enumerate(lines, 1):
        for key in _names_in(line.text):
            if args:
                yield number, f"{key} comes after ARGV"
            if key not in TYPES:
                yield number, f"{key} is not a key in keys.py"
            if key in keys:
                yield number, f"{key} is named twice"
            keys.append(key)
        if arg := re.match(r"local (\w+) *= (?:tonumber\()?ARGV\[\d+\]", line.text):
            if arg[1] in args:
                yield number, f"{arg[1]} is taken twice"
            args.append(arg[1])


def _keys(source: str) -> list[str]:
    """Return the keys that a script names."""
    return [key for line in source.splitlines() for key in _names_in(line)]


def _names_in(line: str) -> list[str]:
    named = _KEYS.match(line)
    return named[1].split(", ") if named else []


def _items(source: str) -> Iterator[Problem]:
    """An item has as many parts as its comment says."""
    each = re.search(r"^local each, width *= \d+, (\d+) *-- per \w+: (.+)$", source, re.MULTILINE)
    if each and len(each[2].split(",")) != int(each[1]):
        yield 1, f"width is {each[1]}, but an item is {each[2]}"


def _repetition(source: str) -> Iterator[Problem]:
    """There are as many repeated keys as it says, and they keep their names."""
    keys = _keys(source)
    stride = re.search(r"^local stride *= (\d+) *-- keys per \w+", source, re.MULTILINE)
    taken = re.search(r"((?:\w+,\s*)*\w+) = unpack\(KEYS, (.*)\)", source)
    if stride and int(stride[1]) != len(keys):
        yield 1, f"stride is {stride[1]}, but there are {len(keys)} keys"
    if stride and not taken:
        yield 1, "the keys are repeated, but only the first ones are used"
    if taken:
        names = re.split(r",\s*", taken[1])
        if not stride or names != keys or taken[2] != "first, first + stride - 1":
            line = source.count("\n", 0, taken.start()) + 1
            yield line, f"not the keys of the next, by their names: {', '.join(names)}"


# The language


def _unreadable(error: Exception) -> Problem:
    """A script is Lua; if not, luaparser says so in words or only by the token."""
    if place := re.search(r"line (\d+):\d+: (.*)", str(error)):
        return int(place[1]), f"not Lua: {place[2]}"
    token = getattr(error.__context__ and error.__context__.args[0], "offendingToken", None)
    return (token.line, f"not Lua: {token.text}") if token else (1, f"not Lua 5.1: {error}")


def _later_lua(node: Any, line: int = 1) -> Iterator[Problem]:
    """A script has nothing of a later Lua."""
    line = node.line or line
    if later := LATER.get(type(node)):
        yield line, f"Lua 5.1 has no {later}"
    if isinstance(node, lua.String) and node.delimiter is not lua.StringDelimiter.DOUBLE_SQUARE:
        for escape in re.findall(r"\\[uxz]", node.raw.replace(r"\\", "")):
            yield line, f"Lua 5.1 has no {escape} in a string"
    for child in children(node):
        yield from _later_lua(child, line)


def _twice(tree: Any) -> Iterator[Problem]:
    """No block and no script hides a name that another has defined."""
    defined = set[str]()
    for node in tree.body.body:
        for name in _defined_by(node):
            if name in defined:
                yield node.line, f"{name} is defined twice"
            defined.add(name)


# The behaviour


def _conduct(reading: Reading, name: str, source: str) -> Iterator[Problem]:
    yield from _names(reading)
    yield from _commands(reading)
    yield from _types(reading)
    if name not in PROBES:
        yield from _literals(reading)
        yield from _order(reading)
        yield from _proofs(reading)
        yield from _notes(source)


def _names(reading: Reading) -> Iterator[Problem]:
    """A script uses the names above and its own locals."""
    for line, name in reading.globals:
        if name not in NAMES:
            why = WHY_NOT.get(name) or WHY_NOT.get(name.partition(".")[0])
            yield line, f"{name}: {why or 'not among the names that scripts use'}"
    for line, name in reading.assigned:
        yield line, f"{name} is assigned to, but not local"


def _literals(reading: Reading) -> Iterator[Problem]:
    """A command is a literal."""
    for line, command, _ in reading.commands:
        if command is None:
            yield line, "the command is not a literal"


def _commands(reading: Reading) -> Iterator[Problem]:
    """A command is known, and its key is one of KEYS."""
    for line, command, keys in reading.commands:
        if command not in (None, *KEYLESS, *READS, *WRITES, *NOTES):
            yield line, f"{command} is neither a known read nor a known write"
        elif command not in (None, *KEYLESS, CHANNEL) and not keys:
            yield line, f"the key of {command} is not one of KEYS"


def _types(reading: Reading) -> Iterator[Problem]:
    """A command works on the type that its key has."""
    for line, command, keys in reading.commands:
        wanted = {**READS, **WRITES, **NOTES}.get(command or "")
        for key in sorted(keys):
            if wanted and wanted != TYPES.get(key, wanted):
                yield line, f"{command} on {key}, a {TYPES[key]}"


def _order(reading: Reading) -> Iterator[Problem]:
    """All reads come before the first write."""
    written = ""
    for line, command, _ in reading.commands:
        if command in WRITES:
            written = command
        elif command in READS and written:
            yield line, f"{command} reads after {written} has written"


def _notes(source: str) -> Iterator[Problem]:
    """A command that may fail must not end the script."""
    for line, text in enumerate(source.splitlines(), 1):
        for command in re.findall(r"redis\.call\('(\w+)'", text):
            if command in NOTES:
                yield line, f"{command} is a note, which may fail: use redis.pcall"


def _proofs(reading: Reading) -> Iterator[Problem]:
    """A write cannot fail, because a read proved the type of its key."""
    proven: set[str] = set()
    for line, command, keys in reading.commands:
        if command in READS:
            proven |= keys
        elif command in WRITES:
            for key in sorted(keys - proven):
                yield line, f"{command} writes {key}, whose type no read has proven"
