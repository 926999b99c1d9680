"""Foreign text, made fit to be stored and shown; and times, as people write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

MAX_ERROR_TEXT: Final = 2048
"""Characters kept of an error's text."""

MAX_REMARK: Final = 200
"""Characters kept of a text where it is only mentioned."""


def storable(text: str, limit: int = MAX_ERROR_TEXT) -> str:
    """Return text that UTF-8 can hold, not longer than `limit` characters.

    Errors and ids may carry bytes of anybody; a lone surrogate has no UTF-8 form.
    """
    shown = text[: limit + 1].encode("utf-8", "backslashreplace").decode()
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def brief(text: str) -> str:
    """Return the beginning of a text's first line, fit for a remark."""
    return storable(text.partition("\n")[0], MAX_REMARK)


def end_of(text: str, limit: int = MAX_ERROR_TEXT) -> str:
    """Return the end of a text, as `storable` returns the beginning."""
    shown = text[-limit - 1 :].encode("utf-8", "backslashreplace").decode()
    return shown if len(shown) <= limit else "…" + shown[1 - limit :]


def text_of(error: BaseException) -> str:
    """Return an error's text, fit to be stored; its own `__str__` may be broken."""
    try:
        return storable(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as broken:  # noqa: BLE001 - it is foreign code: CancelledError, anything
        return f"its text cannot be had: {type(broken).__name__}"


def size(count: int) -> str:
    """Return a number of bytes for people."""
    if count < 1024:
        return f"{count:,} bytes"
    return f"{count / 1024:,.1f} KiB" if count < 1024**2 else f"{count / 1024**2:,.1f} MiB"


def instant(seconds: float) -> str:
    """Return an instant as people write it, UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):  # each for another kind of too large
        return f"{seconds:g} s"
