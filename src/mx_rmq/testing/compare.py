"""Compares payloads by their JSON form, and options by their value."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from mx_rmq.core.codec import encode_payload
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.retry import as_dict, policy_of


class _Any:
    """Equal to everything."""

    __hash__ = None  # type: ignore[assignment]  # equal things would need equal hashes

    def __eq__(self, other: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "ANY"


ANY: Final[Any] = _Any()
"""Matches any payload, any option, or any part of either."""


class Containing:
    """Equal to every dict with at least these items: `Containing({"to": "ann"})`."""

    __hash__ = None  # type: ignore[assignment]  # equal things would need equal hashes

    def __init__(self, items: dict[str, Any]) -> None:
        self.items = items

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict):
            return NotImplemented
        wanted = json_form(self.items)
        return all(key in other and wanted[key] == other[key] for key in wanted)

    def __repr__(self) -> str:
        return f"Containing({self.items!r})"


def json_form(value: Any) -> Any:
    """Return the JSON value that a worker would decode; objects without one, such as ANY, stay."""
    try:
        return msgspec.json.decode(encode_payload(value, limit=2**63))
    except InvalidInput:
        if isinstance(value, dict):
            return {next(iter(json_form({key: 0}))): json_form(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [json_form(one) for one in value]
        return value


def option_form(name: str, value: Any) -> Any:
    """Return an option of produce in one form, so that equal values compare equal."""
    if name == "at" and isinstance(value, datetime):
        return value.timestamp()
    if name == "retry" and value is not None:
        try:
            return as_dict(policy_of(value))
        except InvalidInput:  # ANY, for example
            return value
    return json_form(value)
