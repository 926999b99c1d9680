"""Durations: wherever users give one, it is a number of seconds or a timedelta."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, TypeAlias

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import shown

Seconds: TypeAlias = float | timedelta

SHORTEST: Final = 0.001  # the shortest duration above 0: the store counts milliseconds
LONGEST: Final = 10 * 365 * 86_400.0  # the longest wait: 10 years


def as_seconds(what: str, value: Any, least: float = 0.0, most: float = LONGEST) -> float:
    """Return a duration in seconds, or refuse it. `what` names it in the error: `delay=`."""
    given = value.total_seconds() if isinstance(value, timedelta) else value
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not least <= given <= most:
        raise InvalidInput(
            f"{what}{shown(value)} is not a number of seconds (or a timedelta) "
            f"from {least:,.16g} to {most:,.16g}"
        )
    return float(given)
