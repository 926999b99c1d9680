"""The filter options: --error, --since, --until, --key, --text."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

import click

from mx_rmq.cli.connection import options
from mx_rmq.core.errors import InvalidInput

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, Filter

UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}  # in seconds
FARTHEST: Final = 1000 * 365.25 * UNITS["d"]  # the longest time span

_SPAN: Final = re.compile(r"(\+?)([0-9]+(?:\.[0-9]+)?) ?(s|m|min|h|d|w)", re.ASCII)

with_filters = options(
    click.option("--error", help="Only messages whose last error or reason contains this text."),
    click.option(
        "--since", help="From this time: 2h (ago), +2h (ahead) or 2030-01-31T12:00 (UTC)."
    ),
    click.option("--until", help="Up to this time; same format as --since."),
    click.option("--key", help="Only messages with this key."),
    click.option("--text", help="Only messages whose id or payload contains this text."),
)


class Filters(TypedDict):
    """The values of these options. None: not given."""

    error: str | None
    since: str | None
    until: str | None
    key: str | None
    text: str | None


async def filter_of(admin: Admin, **given: Unpack[Filters]) -> Filter | None:
    """Return the filter, or None without filter options. Spans count from the server's time."""
    from mx_rmq.admin import Filter

    since, until = given["since"], given["until"]
    now = await admin.now() if since or until else 0.0
    wanted = Filter(
        error=given["error"],
        key=given["key"],
        text=given["text"],
        since=None if since is None else instant("--since", since, now),
        until=None if until is None else instant("--until", until, now),
    )
    return wanted or None


def instant(option: str, text: str, now: float) -> float:
    """Parse a time: a span before now, a span after now (+), or a date."""
    if span := _SPAN.fullmatch(text.strip()):
        seconds = float(span[2]) * UNITS[span[3]]
        if seconds > FARTHEST:
            raise InvalidInput(f"{option} {text!r:.80} is more than 1,000 years away")
        return now + seconds if span[1] else now - seconds
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(
            f"{option} {text!r:.80} is neither a time span like 90s, 15m, 2h, 7d nor a time like "
            "2030-01-31T12:00"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def seconds_of(option: str, text: str) -> float:
    """Parse a time span, such as 90s, 10m or 2h."""
    span = _SPAN.fullmatch(text.strip())
    if span is None or span[1]:
        raise InvalidInput(f"{option} {text!r:.80} is not a time span like 90s, 15m, 2h, 7d")
    return float(span[2]) * UNITS[span[3]]
