"""Masks: what is shown of a value whose fields have telling names.

A mask is the name of a field, at any depth, or a path of names: `card.number` is the number inside
a card. Case, blanks, `-` and `_` do not matter, and `*` stands for any part of a name.
"""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import storable

if TYPE_CHECKING:
    from collections.abc import Iterable

HIDDEN: Final = "***"
"""What stands for a masked value."""

ALWAYS: Final = (
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
"""What is masked in any case."""

MOST_BITS: Final = 2000
"""Of a number that is shown. Python refuses to write much larger ones."""

_IGNORED: Final = str.maketrans("", "", "-_ ")
_PLAIN: Final = (str, bool, type(None))


class Mask:
    """Hides the values of named fields: `Mask(["card.number"])(payload)`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        if isinstance(names, str):
            raise InvalidInput(f"mask={names!r:.80} is a text; give a list of names")
        masks = [*ALWAYS, *names]
        if wrong := [name for name in masks if not all(_normal(name).split("."))]:
            raise InvalidInput(f"mask {wrong[0]!r:.80} is neither a field's name nor a path")
        any_of = "|".join(re.escape(_normal(name)).replace(r"\*", "[^.]*") for name in masks)
        self._hides = re.compile(rf"(?:.*\.)?(?:{any_of})", re.DOTALL).fullmatch

    def __call__(self, value: Any) -> Any:
        """Return a value as JSON has it, masked. What has no JSON form is shown by its text."""
        try:
            return self._masked(value, "")
        except Exception as error:  # noqa: BLE001 - it is anybody's object, and may contain itself
            return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"

    def _masked(self, value: Any, path: str) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Mapping):
            return self._fields(value, path)
        if (fields := _fields(value)) is not None:
            return self._fields(fields, path)
        if isinstance(value, list | tuple | set | frozenset | deque):
            return self._items(list(value), path)
        if type(value) is int:
            size = value.bit_length()
            return value if size <= MOST_BITS else f"<int of {size} bits>"
        if type(value) is float:
            return value if isfinite(value) else str(value)  # JSON has no such number
        return self._masked(msgspec.to_builtins(value, str_keys=True, enc_hook=_shown), path)

    def _fields(self, fields: Mapping[Any, Any], path: str) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for key, item in fields.items():
            name = _name(key)
            hidden, below = self._below(path, name)
            shown[name] = HIDDEN if hidden else self._masked(item, below)
        return shown

    def _items(self, items: list[Any], path: str) -> list[Any]:
        if len(items) == 2 and isinstance(items[0], str | bytes):  # a header, perhaps
            name = _name(items[0])
            if self._below(path, name)[0]:
                return [name, HIDDEN]
        return [self._masked(item, path) for item in items]

    def _below(self, path: str, name: str) -> tuple[bool, str]:
        """Return whether a name hides what is there, by any part of it, and the path to it."""
        for part in _normal(name).split("."):
            path = f"{path}.{part}"
            if self._hides(path):
                return True, path
        return False, path


def _fields(value: Any) -> dict[str, Any] | None:
    """Return an object's fields by name; None: it has none that we know of."""
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
    """Return a key as JSON has it."""
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    (name,) = msgspec.to_builtins({key: None}, str_keys=True)
    return str(name)


def _normal(name: str) -> str:
    return name.casefold().translate(_IGNORED)


def _shown(value: Any) -> Any:
    """Return what stands for an object that is not JSON: a Pydantic model's fields, or a text."""
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    return storable(str(value))
