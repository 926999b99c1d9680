"""Masks: what is shown of a value whose fields have telling names.

A mask is the name of a field, at any depth, or a path of names: `card.number` is the number inside
a card. Case, `-` and `_` do not matter, and `*` stands for any part of a name.
"""

from __future__ import annotations

import re
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
    "*passphrase*",
    "*secret*",
    "*credential*",
    "*cookie*",
    "*authorization",
    "*token",
    "*api_key",
    "*private_key",
    "card_number",
    "cvv",
    "cvc",
)
"""What is masked in any case."""

_IGNORED: Final = str.maketrans("", "", "-_")


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
            return self._masked(msgspec.to_builtins(value, str_keys=True, enc_hook=_shown), "")
        except Exception as error:  # noqa: BLE001 - it is anybody's object, and may contain itself
            return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"

    def _masked(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            shown = {}
            for name, item in value.items():
                below = f"{path}.{_normal(name)}"
                shown[name] = HIDDEN if self._hides(below) else self._masked(item, below)
            return shown
        if isinstance(value, list | tuple):
            return [self._masked(item, path) for item in value]
        if isinstance(value, float) and not isfinite(value):
            return str(value)  # JSON has no such number
        return value


def _normal(name: str) -> str:
    return name.casefold().translate(_IGNORED)


def _shown(value: Any) -> Any:
    """Return what stands for an object that is not JSON: a Pydantic model's fields, or a text."""
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    return storable(str(value))
