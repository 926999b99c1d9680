"""Masks: hide the values of sensitive fields in what is logged.

A mask is the name of a field, at any depth, or a path of names: `card.number` is the number inside
a card. Case, blanks, `-` and `_` do not matter, and `*` stands for any part of a name.

Keys are untrusted. Each name is matched once and without backtracking, however many dots a key has
and however deep it is, and after `MAX_STEPS` names and values the rest is left out.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HIDDEN: Final = "***"  # shown instead of a masked value

ALWAYS_MASKED: Final = (
    "*password*",
    "*passwd*",
    "*pwd*",
    "*passphrase*",
    "*secret*",
    "*credential*",
    "*cookie*",
    "*authorization*",
    "*token*",
    "*api_key*",
    "*access_key*",
    "*private_key*",
    "*card_number*",
    "cvv",
    "cvc",
)

MAX_BITS: Final = 2000  # size of a number that is shown; Python refuses to format much larger ones
MAX_STEPS: Final = 5000  # names and values of a payload to examine; more does not fit a log line
REST: Final = "…"  # shown instead of the rest

_IGNORED: Final = str.maketrans("", "", "-_ ")
_PLAIN: Final = (str, bool, type(None))


class Mask:
    """Hides the values of named fields: `Mask(["card.number"])(payload)`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        if isinstance(names, str):
            raise InvalidInput(f"mask={names!r:.80} is a string: pass a list of names")
        # A path is a number (shift-and): one bit per part of each mask, set while the end of the
        # path matches that mask up to this part.
        self._firsts = self._lasts = 0
        bits: defaultdict[str, int] = defaultdict(int)
        bit = 1
        for name in (*ALWAYS_MASKED, *names):
            parts = _normal(name).split(".")
            if not all(parts):
                raise InvalidInput(
                    f"mask {name!r:.80} is not a field name or a path like card.number"
                )
            self._firsts |= bit
            for part in parts:
                bits[part] |= bit
                bit <<= 1
            self._lasts |= bit >> 1
        self._patterns = [(_pattern(part), found) for part, found in bits.items()]
        self._top = self._step(0, "")

    def __call__(self, value: Any) -> Any:
        """Return a value as JSON, masked. Objects without a JSON form are shown as text."""
        try:
            return self._masked(value, self._top, _Steps())
        except Exception as error:  # noqa: BLE001 - any object is possible, even one that contains itself
            return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"

    def _masked(self, value: Any, path: int, steps: _Steps) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Mapping):
            return self._fields(value, path, steps)
        if (fields := _fields(value)) is not None:
            return self._fields(fields, path, steps)
        if isinstance(value, list | tuple | set | frozenset | deque):
            return self._items(list(value), path, steps)
        if type(value) is int:
            bits = value.bit_length()
            return value if bits <= MAX_BITS else f"<int of {bits} bits>"
        if type(value) is float:
            return value if isfinite(value) else str(value)  # JSON has no such number
        builtin = msgspec.to_builtins(value, str_keys=True, enc_hook=_shown)
        return self._masked(builtin, path, steps)

    def _fields(self, fields: Mapping[Any, Any], path: int, steps: _Steps) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for key, item in fields.items():
            if not steps.take(1):
                shown[REST] = REST
                break
            name = _name(key)
            hidden, below = self._below(path, name, steps)
            shown[name] = HIDDEN if hidden else self._masked(item, below, steps)
        return shown

    def _items(self, items: list[Any], path: int, steps: _Steps) -> list[Any]:
        if len(items) == 2 and isinstance(items[0], str | bytes):  # a header, perhaps
            name = _name(items[0])
            if self._below(path, name, steps)[0]:
                return [name, HIDDEN]
        shown = []
        for item in items:
            if not steps.take(1):
                shown.append(REST)
                break
            shown.append(self._masked(item, path, steps))
        return shown

    def _below(self, path: int, name: str, steps: _Steps) -> tuple[bool, int]:
        """Return whether a name, or a part of it, hides what is there, and the path to it."""
        parts = _normal(name).split(".")
        if not steps.take(len(parts)):
            return True, path
        for part in parts:
            path = self._step(path, part)
            if path & self._lasts:
                return True, path
        return False, path

    def _step(self, path: int, part: str) -> int:
        reachable = path << 1 | self._firsts
        found = 0
        for matches, bits in self._patterns:
            if bits & reachable and matches(part):
                found |= bits
        return found & reachable


class _Steps:
    """How many steps are left for one payload."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def take(self, count: int) -> bool:
        """Use up steps; return False if too few are left."""
        self._left -= count
        return self._left >= 0


def _fields(value: Any) -> dict[str, Any] | None:
    """Return an object's fields by name, or None if it has no known fields."""
    if isinstance(value, msgspec.Struct):
        pairs = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {shown: getattr(value, name) for shown, name in pairs}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    return None


def _name(key: Any) -> str:
    """Return a key as JSON writes it."""
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    (name,) = msgspec.to_builtins({key: None}, str_keys=True)
    return str(name)


def _normal(name: str) -> str:
    return name.casefold().translate(_IGNORED)


def _pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a name matches.

    Each piece between two `*` is matched at its first position. That is always right, so nothing
    is tried twice.
    """
    start, *pieces = pattern.split("*")
    if not pieces:
        return pattern.__eq__
    end = pieces.pop()

    def matches(name: str) -> bool:
        at, until = len(start), len(name) - len(end)
        if at > until or not (name.startswith(start) and name.endswith(end)):
            return False
        for piece in pieces:
            found = name.find(piece, at, until)
            if found < 0:
                return False
            at = found + len(piece)
        return True

    return matches


def _shown(value: Any) -> Any:
    """Return a stand-in for an object that is not JSON: a Pydantic model's fields, or its text."""
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    return storable(str(value))
