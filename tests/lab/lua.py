"""Lua 5.1, parsed: its whole grammar and nothing of a later Lua.

What it cannot read is an error with a line, so a script with a `goto` or a `//` does not pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple


class LuaError(Exception):
    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


# Expressions


@dataclass(frozen=True)
class Const:
    """A number, a string, nil, true, false or `...`."""

    value: str | float | bool | None
    line: int


@dataclass(frozen=True)
class Name:
    name: str
    line: int


@dataclass(frozen=True)
class Index:
    """`of[key]` or `of.key`."""

    of: Expr
    key: Expr
    line: int


@dataclass(frozen=True)
class Call:
    function: Expr
    args: tuple[Expr, ...]
    line: int


@dataclass(frozen=True)
class Table:
    items: tuple[tuple[Expr | None, Expr], ...]
    line: int


@dataclass(frozen=True)
class Function:
    params: tuple[str, ...]
    body: Block
    line: int


@dataclass(frozen=True)
class Binary:
    operator: str
    left: Expr
    right: Expr
    line: int


@dataclass(frozen=True)
class Unary:
    operator: str
    operand: Expr
    line: int


Expr = Const | Name | Index | Call | Table | Function | Binary | Unary

# Statements


@dataclass(frozen=True)
class Local:
    names: tuple[str, ...]
    values: tuple[Expr, ...]
    line: int


@dataclass(frozen=True)
class Assign:
    targets: tuple[Expr, ...]
    values: tuple[Expr, ...]
    line: int


@dataclass(frozen=True)
class For:
    """Both kinds of `for`; `values` are what stands behind `=` or `in`."""

    names: tuple[str, ...]
    values: tuple[Expr, ...]
    body: Block
    line: int


@dataclass(frozen=True)
class Branch:
    """do, while, repeat, return, a call, or one arm of an if: expressions, then a block."""

    values: tuple[Expr, ...]
    body: Block
    line: int


Block = tuple["Local | Assign | For | Branch", ...]


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


_LEXER: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<comment>--(?:\[(?P<level>=*)\[.*?\](?P=level)\]|[^\n]*))
      | (?P<long>\[(?P<equals>=*)\[.*?\](?P=equals)\])
      | (?P<string>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")
      | (?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<later>//|::|<<|>>|[&|]|~(?!=))
      | (?P<op>\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^\#<>=(){}\[\];:,.])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([^abfnrtv\\\"'\n0-9])")
_KEYWORDS: Final = re.compile(
    "and|break|do|else|elseif|end|false|for|function|if|in|local|nil|not|or|repeat|return|then|"
    "true|until|while"
)
_LEFT: Final = {
    **dict.fromkeys(["or"], 1),
    **dict.fromkeys(["and"], 2),
    **dict.fromkeys(["<", ">", "<=", ">=", "~=", "=="], 3),
    **dict.fromkeys([".."], 5),
    **dict.fromkeys(["+", "-"], 6),
    **dict.fromkeys(["*", "/", "%"], 7),
    **dict.fromkeys(["^"], 10),
}
_RIGHT: Final = {**_LEFT, "..": 4, "^": 9}
_UNARY: Final = 8
_END: Final = ("end", "else", "elseif", "until", "")


def parse(source: str) -> Block:
    """Parse a chunk."""
    parser = _Parser(source)
    block = parser.block()
    parser.expect("")
    return block


def _tokens(source: str) -> list[_Token]:
    tokens, at, line = [], 0, 1
    while at < len(source):
        match = _LEXER.match(source, at)
        if match is None:
            raise LuaError(line, f"not Lua: {source[at : at + 10]!r}")
        kind, text = match.lastgroup or "", match.group()
        if match["later"]:
            raise LuaError(line, f"Lua 5.1 has no {text}")
        if kind == "string" and (escape := _ESCAPE.search(text.replace("\\\\", ""))):
            raise LuaError(line, f"Lua 5.1 has no {escape[0]} in a string")
        if not match["space"] and not match["comment"]:
            word = match["name"]
            keyword = word and _KEYWORDS.fullmatch(word)
            kind = text if keyword or match["op"] else "name" if word else kind
            tokens.append(_Token(kind, text, line))
        line += text.count("\n")
        at = match.end()
    return [*tokens, _Token("", "", line)]


class _Parser:
    def __init__(self, source: str) -> None:
        self._tokens = _tokens(source)
        self._at = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _maybe(self, kind: str) -> bool:
        if self._next.kind != kind:
            return False
        self._at += 1
        return True

    def expect(self, kind: str) -> _Token:
        token = self._take()
        if token.kind != kind:
            wanted = kind or "the end"
            raise LuaError(token.line, f"Lua 5.1 expects {wanted}, not {token.text or 'the end'}")
        return token

    def block(self) -> Block:
        statements: list[Local | Assign | For | Branch] = []
        while self._next.kind not in _END:
            line = self._next.line
            if self._maybe("return"):
                values = () if self._next.kind in (*_END, ";") else self._list()
                self._maybe(";")
                statements.append(Branch(values, (), line))
                break
            statements += self._statement(line)
            self._maybe(";")
        return tuple(statements)

    def _statement(self, line: int) -> Block:
        match self._next.kind:
            case "if":
                return self._if()
            case "while":
                self._take()
                condition = self._expr()
                return (Branch((condition,), self._do(), line),)
            case "do":
                return (Branch((), self._do(), line),)
            case "for":
                return (self._for(line),)
            case "repeat":
                self._take()
                body = self.block()
                self.expect("until")
                return (Branch((), body, line), Branch((self._expr(),), (), line))
            case "break":
                self._take()
                return ()
            case "function":
                self._take()
                target: Expr = self._name()
                while self._next.kind in (".", ":"):
                    self._take()
                    target = Index(target, Const(self.expect("name").text, line), line)
                return (Assign((target,), (self._function(line),), line),)
            case "local":
                return (self._local(line),)
        return (self._assignment_or_call(line),)

    def _if(self) -> Block:
        arms = []
        while True:
            line = self._take().line
            condition = self._expr()
            self.expect("then")
            arms.append(Branch((condition,), self.block(), line))
            if self._next.kind == "else":
                line = self._take().line
                arms.append(Branch((), self.block(), line))
            elif self._next.kind == "elseif":
                continue
            self.expect("end")
            return tuple(arms)

    def _do(self) -> Block:
        self.expect("do")
        body = self.block()
        self.expect("end")
        return body

    def _for(self, line: int) -> For:
        self._take()
        names = self._names()
        if not (len(names) == 1 and self._maybe("=")):
            self.expect("in")
        values = self._list()
        return For(names, values, self._do(), line)

    def _local(self, line: int) -> Local:
        self._take()
        if self._maybe("function"):
            name = self.expect("name").text
            return Local((name,), (self._function(line),), line)
        names = self._names()
        return Local(names, self._list() if self._maybe("=") else (), line)

    def _assignment_or_call(self, line: int) -> Assign | Branch:
        first = self._suffixed()
        if isinstance(first, Call) and self._next.kind not in (",", "="):
            return Branch((first,), (), line)
        targets = [first]
        while self._maybe(","):
            targets.append(self._suffixed())
        if any(not isinstance(target, Name | Index) for target in targets):
            raise LuaError(line, "only a variable can be assigned to")
        self.expect("=")
        return Assign(tuple(targets), self._list(), line)

    def _names(self) -> tuple[str, ...]:
        names = [self.expect("name").text]
        while self._maybe(","):
            names.append(self.expect("name").text)
        return tuple(names)

    def _name(self) -> Name:
        token = self.expect("name")
        return Name(token.text, token.line)

    def _list(self) -> tuple[Expr, ...]:
        values = [self._expr()]
        while self._maybe(","):
            values.append(self._expr())
        return tuple(values)

    def _expr(self, limit: int = 0) -> Expr:
        token = self._next
        if token.kind in ("not", "-", "#"):
            self._take()
            left: Expr = Unary(token.kind, self._expr(_UNARY), token.line)
        else:
            left = self._simple()
        while _LEFT.get(self._next.kind, 0) > limit:
            operator = self._take()
            right = self._expr(_RIGHT[operator.kind])
            left = Binary(operator.kind, left, right, operator.line)
        return left

    def _simple(self) -> Expr:
        token = self._next
        match token.kind:
            case "number":
                self._take()
                number = int(token.text, 16) if "x" in token.text.lower() else float(token.text)
                return Const(number, token.line)
            case "string" | "long":
                self._take()
                return Const(token.text[1:-1], token.line)
            case "nil" | "true" | "false" | "...":
                self._take()
                values = {"nil": None, "true": True, "false": False, "...": "..."}
                return Const(values[token.kind], token.line)
            case "{":
                return self._table()
            case "function":
                self._take()
                return self._function(token.line)
        return self._suffixed()

    def _suffixed(self) -> Expr:
        line = self._next.line
        if self._maybe("("):
            value = self._expr()
            self.expect(")")
        else:
            value = self._name()
        while True:
            match self._next.kind:
                case ".":
                    self._take()
                    value = Index(value, Const(self.expect("name").text, line), line)
                case "[":
                    self._take()
                    value = Index(value, self._expr(), line)
                    self.expect("]")
                case ":":
                    self._take()
                    method = Index(value, Const(self.expect("name").text, line), line)
                    value = Call(method, (value, *self._args()), line)
                case "(" | "{" | "string" | "long":
                    value = Call(value, self._args(), line)
                case _:
                    return value

    def _args(self) -> tuple[Expr, ...]:
        if self._next.kind != "(":
            return (self._simple(),)
        self._take()
        args = () if self._next.kind == ")" else self._list()
        self.expect(")")
        return args

    def _table(self) -> Table:
        line = self._take().line
        items: list[tuple[Expr | None, Expr]] = []
        while not self._maybe("}"):
            key: Expr | None = None
            if self._maybe("["):
                key = self._expr()
                self.expect("]")
                self.expect("=")
            elif self._next.kind == "name" and self._tokens[self._at + 1].kind == "=":
                key = Const(self._take().text, line)
                self._take()
            items.append((key, self._expr()))
            if not self._maybe(",") and not self._maybe(";"):
                self.expect("}")
                break
        return Table(tuple(items), line)

    def _function(self, line: int) -> Function:
        self.expect("(")
        params: list[str] = []
        while not self._maybe(")"):
            params.append(self._take().text)
            self._maybe(",")
        body = self.block()
        self.expect("end")
        return Function(tuple(params), body, line)
