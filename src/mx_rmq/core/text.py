"""Text for people: untrusted text made safe to store and show, times, sizes, how to install."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

MAX_ERROR_TEXT: Final = 2048  # characters kept of an error's text
MAX_REMARK: Final = 200  # characters kept of a text in a short note


def storable(text: str, limit: int = MAX_ERROR_TEXT) -> str:
    """Return text that UTF-8 can hold, not longer than `limit` characters.

    Errors and ids may contain any bytes, and a lone surrogate has no UTF-8 form.
    """
    shown = text[: limit + 1].encode("utf-8", "backslashreplace").decode()
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def brief(text: str) -> str:
    """Return the start of a text's first line, for a short note."""
    return storable(text.partition("\n")[0], MAX_REMARK)


def end_of(text: str, limit: int = MAX_ERROR_TEXT) -> str:
    """Return the end of a text, as `storable` returns the beginning."""
    shown = text[-limit - 1 :].encode("utf-8", "backslashreplace").decode()
    return shown if len(shown) <= limit else "…" + shown[1 - limit :]


def shown(value: object) -> str:
    """Return the start of a value's repr, for the error that refuses it."""
    try:
        return f"{value!r:.80}"
    except (RecursionError, ValueError):  # nested too deeply; an int of thousands of digits
        return f"of type {type(value).__name__}"


def ends_of(text: str, limit: int = MAX_ERROR_TEXT) -> str:
    """Like `storable`, but keep the beginning and the end of a text that is too long."""
    shown = text.encode("utf-8", "backslashreplace").decode()
    if len(shown) <= limit:
        return shown
    return storable(shown, limit // 2) + end_of(shown, limit - limit // 2 + 1)[1:]


def text_of(error: BaseException) -> str:
    """Return an error's text, fit to be stored; its own `__str__` may be broken."""
    try:
        return storable(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as broken:  # noqa: BLE001 - user code may raise anything, even CancelledError
        return f"its text cannot be read: {type(broken).__name__}"


def named(error: BaseException) -> str:
    """Return the type and the text of an exception."""
    return f"{type(error).__name__}: {text_of(error)}"


def size(count: int) -> str:
    if count < 1024:
        return f"{count:,} bytes"
    return f"{count / 1024:,.1f} KiB" if count < 1024**2 else f"{count / 1024**2:,.1f} MiB"


def instant(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):  # raised for different kinds of too large
        return f"{seconds:g} s"


def duration(seconds: float | None) -> str | None:
    """Return a span of time in its two largest units."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for unit, size, below, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {below}"
    return f"{whole // 60} min {whole % 60} s"


def took(seconds: float) -> str:
    """Return how long something took, with about two digits."""
    if seconds >= 1:
        return duration(seconds) or ""
    if seconds >= 0.01:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds * 1000:.2g} ms" if seconds >= 0.0001 else "<0.1 ms"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def how_to_install(extra: str) -> str:
    """Say how to get the packages of an extra.

    On PyPI, mx-rmq is another project (docs/install.md). Naming it is safe here: mx-rmq is already
    installed, so pip keeps it and adds the packages of the extra.
    """
    return f"run pip install 'mx-rmq[{extra}]', or pip install '.[{extra}]' in a clone"
