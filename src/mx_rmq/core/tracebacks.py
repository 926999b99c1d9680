"""The traceback of an error as text, short enough to be stored.

It shows the error and what it was raised from, as Python prints them, without the last line: the
caller stores type and text of the error itself. If it is too long, frames are left out, each run of
them as one line that says how many: first those of libraries, then the user's own, both from the
middle. The frame that raised stays longest.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import TYPE_CHECKING, Final

from mx_rmq.core.text import MAX_ERROR_TEXT, brief, count, ends_of, named, storable

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_GROUP: Final = 5  # exceptions shown of a group
MAX_CHAIN: Final = 6  # errors shown of a chain: the last ones, and the first

CAUSE: Final = "The above exception was the direct cause of the following exception:"
CONTEXT: Final = "During handling of the above exception, another exception occurred:"

_PACKAGE: Final = Path(__file__).parents[1]
_AROUND_HANDLERS: Final = tuple(
    str(_PACKAGE / name) for name in ("runtime", "core", "django", "traces.py", "logs.py")
)
_LIBRARIES: Final = (
    f"{_PACKAGE}/",
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<frozen ",
)


@dataclass(slots=True)
class _Frame:
    text: str
    rank: tuple[bool, int]  # the frame with the least one is left out first
    shown: bool = True


@dataclass(slots=True)
class _Section:
    """The frames of one error, and the lines before and after them."""

    before: str
    frames: list[_Frame]
    after: str

    def __str__(self) -> str:
        return self.before + "".join(_lines(self.frames)) + self.after


def traceback_of(error: BaseException, limit: int = MAX_ERROR_TEXT) -> str:
    """Return where an error came from, in at most `limit` characters that UTF-8 can hold."""
    sections = [*_sections(error)]
    frames = sorted((one for part in sections for one in part.frames), key=lambda one: one.rank)
    length = sum(len(str(part)) for part in sections)
    for frame in frames:
        if length <= limit:
            break
        frame.shown = False
        length -= len(frame.text)
        if length <= limit:  # the lines that say how many are left out count, too
            length = sum(len(str(part)) for part in sections)
    return ends_of("".join(map(str, sections)), limit)


def _sections(error: BaseException) -> Iterator[_Section]:
    """Yield the chain of an error, the first cause at the top, and then what a group contains."""
    chain, hows, known = [error], [""], {id(error)}
    while (earlier := _earlier(chain[-1])) and id(earlier[0]) not in known:
        known.add(id(earlier[0]))
        chain.append(earlier[0])
        hows.append(earlier[1])
    left = len(chain) - MAX_CHAIN
    if left > 0:
        chain[MAX_CHAIN - 1 : -1], hows[MAX_CHAIN - 1 : -1] = [], []
    links = [
        how and f"{brief(named(one))}\n\n{how}\n\n" for one, how in zip(chain, hows, strict=True)
    ]
    if left > 0:
        links[-1] += f"… {count(left, 'exception')} left out …\n\n"
    for one, link in zip(reversed(chain), reversed(links), strict=True):
        yield _Section("", _frames(one), link)
    if isinstance(error, BaseExceptionGroup):
        parts = error.exceptions
        for number, one in enumerate(parts[:MAX_GROUP], 1):
            title = f"--- {number} of {len(parts)}: {brief(named(one))}\n"
            yield _Section(title, _frames(one), "")


def _earlier(error: BaseException) -> tuple[BaseException, str] | None:
    """Return the error that this one was raised from or after, and how Python puts it."""
    if error.__cause__ is not None:
        return error.__cause__, CAUSE
    if error.__context__ is not None and not error.__suppress_context__:
        return error.__context__, CONTEXT
    return None


def _frames(error: BaseException) -> list[_Frame]:
    """Return an error's frames, without those of our own code around the handler."""
    found = [*extract_tb(error.__traceback__)]
    theirs = [one for one in found if not one.filename.startswith(_AROUND_HANDLERS)] or found
    last = len(theirs) - 1
    return [
        _Frame(_text(one), (number == last or not _of_library(one), -min(number, last - number)))
        for number, one in enumerate(theirs)
    ]


def _of_library(frame: FrameSummary) -> bool:
    name = frame.filename
    return name.startswith(_LIBRARIES) or "/site-packages/" in name or "/dist-packages/" in name


def _text(frame: FrameSummary) -> str:
    source = f"    {frame.line}\n" if frame.line else ""
    return storable(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n{source}')


def _lines(frames: list[_Frame]) -> Iterator[str]:
    """Yield the frames that are shown, and how many are left out between them."""
    for shown, run in groupby(frames, key=lambda frame: frame.shown):
        if shown:
            yield from (frame.text for frame in run)
        else:
            yield f"  … {count(len([*run]), 'frame')} left out …\n"
