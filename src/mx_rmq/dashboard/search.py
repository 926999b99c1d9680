"""A search in a list, by text, error and time: read from a form, and written back into a URL."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST: Final = 200
"""Maximum length of a search text."""

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
    since: float | None = None
    until: float | None = None
    last: str = ""
    """A range of LAST, chosen instead of `since`."""
    as_of: float | None = None
    """When the messages were counted: what came into the state later does not match."""

    def __bool__(self) -> bool:
        times = (self.since, self.until, self.as_of)
        return bool(self.text or self.error or any(at is not None for at in times))

    @classmethod
    def of(cls, form: Mapping[str, str]) -> Search:
        """Read it from a form or a URL, or refuse it."""
        last = form.get("last", "")
        since = _instant(form.get("since", ""), "since")
        if last and since is None:
            if last not in LAST:
                raise InvalidInput(f"last={last!r:.80} is not one of {', '.join(LAST)}")
            since = float(int(time.time()) - LAST[last][0])
        return cls(
            text=_text(form, "text"),
            error=_text(form, "error"),
            since=since,
            until=_instant(form.get("until", ""), "until"),
            last=last if not form.get("since") else "",
            as_of=_instant(form.get("as_of", ""), "as_of"),
        )

    def counted(self, at: float) -> Search:
        """Return the same search, limited to what is there at this time."""
        return replace(self, as_of=at)

    def fixed(self) -> dict[str, str]:
        """Return the fields with relative ranges fixed: 'the last hour' becomes a time."""
        fields = {
            "text": self.text,
            "error": self.error,
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
        """Describe the search in words."""
        parts = (
            f"“{self.text}” in the id or the payload" if self.text else "",
            f"“{self.error}” in the error" if self.error else "",
            f"from {moment(self.since).replace('T', ' ')} UTC on" if self.since is not None else "",
            f"until {moment(self.until).replace('T', ' ')} UTC" if self.until is not None else "",
            f"as of {moment(self.as_of).replace('T', ' ')} UTC" if self.as_of is not None else "",
        )
        return ", ".join(filter(None, parts))


def moment(at: float | None, timespec: str = "seconds") -> str:
    """Return a time as a form's datetime-local field has it, in UTC."""
    if at is None:
        return ""
    return datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat(timespec=timespec)


def _instant(text: str, name: str) -> float | None:
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
        raise InvalidInput(f"{name} has {len(text):,} characters; {LONGEST} are allowed")
    return text
