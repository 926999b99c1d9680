"""The options of a produce: checked, and as a draft has them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.retry import as_dict, policy_of

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

MOST_SECONDS: Final = 1e12
"""Some thirty thousand years; beyond it numbers lose their milliseconds."""


def timestamp(at: datetime | float | None) -> float | None:
    """Return an instant in seconds since 1970."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            said = at.isoformat()
            raise InvalidInput(f"at={said} has no time zone; in UTC it would be {said}+00:00")
        return at.timestamp()
    return at


def draft_options(
    *,
    delay: float | None,
    at: float | None,
    priority: str,
    ttl: float | None,
    max_attempts: int | None,
    retry: Any,
    headers: dict[str, str],
) -> dict[str, Any]:
    """Return the options as a draft has them; refuse wrong ones."""
    if delay is not None and at is not None:
        raise InvalidInput(f"delay={delay!r} and at={at!r} are both given; one decides")
    return {
        "priority": priority,
        "delay": _ms("delay", delay) or 0,
        "at": _ms("at", at),
        "ttl": _ms("ttl", ttl, least=0.001),
        "max_attempts": max_attempts,
        "retry": None if retry is None else as_dict(policy_of(retry)),
        "headers": headers,
    }


def all_of(checked: Iterable[T]) -> list[T]:
    """Return what each message of a `produce_many` came to. An error says which one is wrong."""
    found: list[T] = []
    try:
        found.extend(checked)
    except InvalidInput as error:
        error.add_note(f"It is about message {len(found)}, counted from 0. None was produced.")
        raise
    return found


def _ms(name: str, seconds: Any, least: float = 0) -> int | None:
    if seconds is None:
        return None
    wrong = isinstance(seconds, bool) or not isinstance(seconds, int | float)
    if wrong or not least <= seconds <= MOST_SECONDS:
        raise InvalidInput(
            f"{name}={seconds!r} is not a number of seconds from {least:g} to {MOST_SECONDS:g}"
        )
    return round(float(seconds) * 1000)
