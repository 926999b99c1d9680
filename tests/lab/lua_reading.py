"""What a script does, read from its text: its commands, their keys, and the globals it names."""

from __future__ import annotations

from collections import ChainMap
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from luaparser import astnodes as lua

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Shape = frozenset[str] | tuple["Shape", ...] | None
"""What is known about a value: one of these KEYS; a table of shapes; or nothing: it is no key."""


class Command(NamedTuple):
    """A redis.call or redis.pcall."""

    line: int
    name: str | None
    """None: not a literal."""
    keys: frozenset[str]
    """Its key is one of these, by name; empty: perhaps none of KEYS."""


class Reading:
    """Walks through a script in the order of its text, and tracks which names hold keys."""

    def __init__(self, tree: Any) -> None:
        self.commands: list[Command] = []
        self.globals: list[tuple[int, str]] = []
        """Used: a name, or a name and its part, as math.floor is."""
        self.assigned: list[tuple[int, str]] = []
        """Assigned to, though not local."""
        self._known = ChainMap[str, Shape]()
        self._line = 1
        self._visit(tree)

    def _visit(self, *nodes: Any) -> None:
        for node in nodes:
            self._line = node.line or self._line  # luaparser gives some names no line
            self._node(node, self._line)

    def _node(self, node: Any, line: int) -> None:
        match node:
            case lua.Block():
                self._block(node)
            case lua.LocalFunction(name=lua.Name(id=name), args=args, body=body):
                self._known[name] = None
                self._block(body, _names(args))
            case lua.Function(name=name, args=args, body=body):
                self._assign(name, None, line)
                self._block(body, _names(args))
            case lua.AnonymousFunction(args=args, body=body):
                self._block(body, _names(args))
            case lua.Fornum(target=target, start=start, stop=stop, step=step, body=body):
                self._visit(start, stop, *([] if step == 1 else [step]))  # 1: none is given
                self._block(body, _names([target]))
            case lua.Forin(targets=targets, iter=values, body=body):
                self._visit(*values)
                self._block(body, _names(targets), self._loop(values))
            case lua.LocalAssign(targets=targets, values=values):
                self._visit(*values)
                names = _names(targets)
                self._known.update(zip(names, self._values(names, values), strict=True))
            case lua.Assign(targets=targets, values=values):
                self._visit(*values)
                shapes = self._values(_names(targets), values)
                for target, shape in zip(targets, shapes, strict=True):
                    self._assign(target, shape, line)
            case lua.Call(func=func, args=args) if _path(func) in ("redis.call", "redis.pcall"):
                self._visit(*args)
                self._command(args, line)
            case lua.Index(value=lua.Name(id=name)) if name not in self._known and _path(node):
                self.globals.append((line, _path(node)))
            case lua.Name(id=name) if name not in self._known:
                self.globals.append((line, name))
            case _:
                self._visit(*children(node))

    def _block(self, block: Any, names: Sequence[str] = (), shapes: Iterable[Shape] = ()) -> None:
        self._known = self._known.new_child(dict.fromkeys(names))
        self._known.update(zip(names, shapes, strict=False))
        self._visit(*block.body)
        self._known = self._known.parents

    def _command(self, args: Sequence[Any], line: int) -> None:
        name = args[0].raw if args and isinstance(args[0], lua.String) else None
        shape = self._shape(args[1]) if len(args) > 1 else None
        keys = shape if isinstance(shape, frozenset) else frozenset[str]()
        self.commands.append(Command(line, name, keys))

    def _assign(self, target: Any, shape: Shape, line: int) -> None:
        match target:
            case lua.Name(id=name) if name in self._known:
                self._scope(name)[name] = shape
            case lua.Name(id=name):
                self.assigned.append((line, name))
            case lua.Index(value=of):
                self._visit(target)
                group = self._shape(of)
                if isinstance(of, lua.Name) and isinstance(group, tuple):
                    self._scope(of.id)[of.id] = (*group, shape)

    def _scope(self, name: str) -> Any:
        return next(scope for scope in self._known.maps if name in scope)

    # what is known about a value

    def _loop(self, values: Sequence[Any]) -> tuple[Shape, Shape]:
        match values:
            case [lua.Call(func=lua.Name(id="ipairs"), args=[table])]:
                return None, _each(self._shape(table))
        return None, None

    def _values(self, names: Sequence[str], values: Sequence[Any]) -> list[Shape]:
        shapes: list[Shape] = []
        for name, value in zip(names, values, strict=False):
            match value:
                case lua.Index(value=lua.Name(id="KEYS"), idx=lua.Number()):
                    shapes.append(frozenset([name]))
                case lua.Call(func=lua.Name(id="unpack"), args=[lua.Name(id="KEYS"), _, _]):
                    shapes += [frozenset([key]) for key in names[len(shapes) :]]
                case lua.Call(func=lua.Name(id="unpack"), args=[table]):
                    shape = self._shape(table)
                    shapes += shape if isinstance(shape, tuple) else ()
                case _:
                    shapes.append(self._shape(value))
        return [*shapes, *[None] * len(names)][: len(names)]

    def _shape(self, node: Any) -> Shape:
        match node:
            case lua.Name(id=name):
                return self._known.get(name)
            case lua.Index(value=lua.Name(id="KEYS")):
                return frozenset(["KEYS[…]"])
            case lua.Index(value=of, idx=lua.Number(n=int(n))):
                group = self._shape(of)
                return group[n - 1] if isinstance(group, tuple) and 0 < n <= len(group) else None
            case lua.Index(value=of):
                return _one_of(_each(self._shape(of)))
            case lua.Table(fields=fields):
                return tuple(self._shape(field.value) for field in fields)
            case lua.AndLoOp(right=right):
                return self._shape(right)
            case lua.OrLoOp(left=left, right=lua.Table(fields=[])):
                return self._shape(left)
            case lua.OrLoOp(left=left, right=right):
                return _join(self._shape(left), self._shape(right))
        return None


def children(node: Any) -> Iterator[Any]:
    """Yield the children of a node, without comments and names that are no variables."""
    for name, value in vars(node).items():
        match node, name:
            case (_, "comments") | (lua.Invoke(), "func"):
                continue
            case (lua.Index(notation=lua.IndexNotation.DOT), "idx"):
                continue
            case (lua.Field(between_brackets=False), "key"):
                continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, lua.Node):
                yield child


def _names(nodes: Iterable[Any]) -> list[str]:
    return [node.id if isinstance(node, lua.Name) else "" for node in nodes]


def _path(node: Any) -> str:
    """Return a dotted name such as math.floor; for anything else ''."""
    match node:
        case lua.Index(value=lua.Name(id=name), idx=lua.String(raw=part)):
            return f"{name}.{part}"
        case lua.Index(value=lua.Name(id=name), idx=lua.Name(id=part)):
            return f"{name}.{part}" if node.notation is lua.IndexNotation.DOT else ""
    return ""


def _each(shape: Shape) -> Shape:
    """Return what is known about a variable that takes each of a table's values in turn."""
    return reduce(_join, shape) if isinstance(shape, tuple) and shape else None


def _join(one: Shape, other: Shape) -> Shape:
    match one, other:
        case frozenset(), frozenset():
            return one | other
        case tuple(), tuple():
            return tuple(map(_join, one, other))
    return None


def _one_of(shape: Shape) -> Shape:
    """Return what is known about a single one of these: reading it proves no other."""
    if isinstance(shape, frozenset) and len(shape) > 1:
        return frozenset(["one of " + ", ".join(sorted(shape))])
    return shape
