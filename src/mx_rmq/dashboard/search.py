"""A search in a list, by text, error, key and time: read from a form, written back into a URL."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from mx_rmq.admin import Filter
from mx_rmq.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST: Final = 200  # characters of a search text

LAST: Final = {
    "15m": (900, "last 15 min"),
    "1h": (3600, "last hour"),
    "6h": (21_600, "last 6 hours"),
    "1d": (86_400, "last day"),
    "7d": (604_800, "last 7 days"),
}
"""Time ranges to choose from: seconds and label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search. Times are seconds since 1970; with nothing set, everything matches."""

    text: str = ""
    error: str = ""
    key: str = ""  # exactly
    since: float | None = None
    until: float | None = None
    last: str = ""  # a range of LAST, chosen instead of `since`
    as_of: float | None = None  # when matches were counted: messages that came later do not match

    def __bool__(self) -> bool:
        times = (self.since, self.until, self.as_of)
        return bool(self.text or self.error or self.key or any(at is not None for at in times))

    @classmethod
    def of(cls, form: Mapping[str, str]) -> Search:
        """Read it from a form or a URL, or refuse it."""
        last = form.get("last", "")
        since = _time(form, "since")
        if last and since is None:
            if last not in LAST:
                raise InvalidInput(f"last={last!r:.80} is not one of {', '.join(LAST)}")
            since = float(int(time.time()) - LAST[last][0])
        return cls(
            text=_text(form, "text"),
            error=_text(form, "error"),
            key=form.get("key", "")[:LONGEST],
            since=since,
            until=_time(form, "until"),
            last=last if not form.get("since") else "",
            as_of=_time(form, "as_of"),
        )

    def filter(self) -> Filter | None:
        """Return the search as `mq.admin` takes it; None: everything matches."""
        if not self:
            return None
        return Filter(
            error=self.error or None,
            key=self.key or None,
            since=self.since,
            until=self.until,
            text=self.text or None,
            as_of=self.as_of,
        )

    def fixed(self) -> dict[str, str]:
        """Return the fields with relative ranges fixed: 'the last hour' becomes a time."""
        fields = {
            "text": self.text,
            "error": self.error,
            "key": self.key,
            "since": moment(self.since),
            "until": moment(self.until),
            "as_of": moment(self.as_of, "milliseconds"),
        }
        return {name: value for name, value in fields.items() if value}

    def fields(self) -> dict[str, str]:
        """Return the fields as they were entered."""
        if not self.last:
            return self.fixed()
        fields = {**self.fixed(), "last": self.last}
        del fields["since"]
        return fields

    def words(self) -> str:
        parts = [f"“{self.text}” in the id or the payload"] if self.text else []
        parts += [f"“{self.error}” in the error"] if self.error else []
        parts += [f"with the key “{self.key}”"] if self.key else []
        for word, at in (("from", self.since), ("until", self.until), ("as of", self.as_of)):
            parts += [f"{word} {moment(at).replace('T', ' ')} UTC"] if at is not None else []
        return ", ".join(parts)


def moment(at: float | None, timespec: str = "seconds") -> str:
    """Return a time as the value of a datetime-local field, in UTC."""
    if at is None:
        return ""
    return datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat(timespec=timespec)


def _time(form: Mapping[str, str], name: str) -> float | None:
    text = form.get(name, "")
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        if at.year < 1971:
            raise ValueError
        return at.timestamp()
    except (ValueError, OverflowError):
        raise InvalidInput(f"{name}={text!r:.80} is not a time such as 2026-01-31T23:59") from None


def _text(form: Mapping[str, str], name: str) -> str:
    text = form.get(name, "").strip()
    if len(text) > LONGEST:
        raise InvalidInput(f"{name} has {len(text):,} characters; at most {LONGEST} are allowed")
    return text
