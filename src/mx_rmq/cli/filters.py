"""The options by which commands choose messages: --error, --since, --until, --text."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.admin import Filter
from mx_rmq.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.admin import Admin

UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
FARTHEST: Final = 1000 * 365.25 * UNITS["d"]
"""Seconds that a span may have."""

_SPAN: Final = re.compile(r"(\+?)([0-9]+(?:\.[0-9]+)?) ?(s|m|min|h|d|w)", re.ASCII)

_OPTIONS: Final = (
    click.option("--error", help="Only those whose last error, or reason, has this in it."),
    click.option("--since", help="Not before: 2h (ago), +2h (ahead) or 2030-01-31T12:00 (UTC)."),
    click.option("--until", help="Not after; written like --since."),
    click.option("--text", help="Only those with this in their id or payload."),
)


def with_filters(run: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options."""
    for option in reversed(_OPTIONS):
        run = option(run)
    return run


async def filter_of(
    admin: Admin, *, error: str | None, since: str | None, until: str | None, text: str | None
) -> Filter | None:
    """Return what the options ask for; None: nothing. Spans are counted from the server's now."""
    now = await admin.now() if since or until else 0.0
    wanted = Filter(
        error=error,
        text=text,
        since=None if since is None else instant("--since", since, now),
        until=None if until is None else instant("--until", until, now),
    )
    return wanted or None


def instant(option: str, text: str, now: float) -> float:
    """Return the time that a text names: so long before now, or behind it, or by its date."""
    if span := _SPAN.fullmatch(text.strip()):
        seconds = float(span[2]) * UNITS[span[3]]
        if seconds > FARTHEST:
            raise InvalidInput(f"{option} {text!r:.80} is more than 1,000 years away")
        return now + seconds if span[1] else now - seconds
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(
            f"{option} {text!r:.80} is neither a span like 90s, 15m, 2h, 7d, nor a time like "
            "2030-01-31T12:00"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
