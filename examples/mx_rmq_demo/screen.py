"""What the demo shows: a live table in a terminal, otherwise one line per second."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mx_rmq.admin import Stats

TITLE: Final = "mx-rmq: a small shop, two workers, one kill -9"
REPORTS: Final = ("report-1", "report-2")
PHASES: Final = ("two workers at work", "kill -9 one of them", "the other takes over", "tally")

COLUMNS: Final = {
    "topic": "topic",
    "pending": "pend",
    "processing": "proc",
    "delayed": "delay",
    "dead": "dead",
    "quarantined": "quar",
    "done": "done",
    "per second": "/s",
}
"""Title of a column -> its short form for a narrow terminal."""
ROOMY: Final = 76  # width of a terminal in which the full titles fit


@dataclass(frozen=True, slots=True)
class Row:
    """One topic."""

    stats: Stats
    done: int
    rate: float

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers in the topic's row."""
        one = self.stats
        states = (one.pending, one.processing, one.delayed, one.dead, one.quarantined)
        return (*states, self.done, round(self.rate))


@dataclass(frozen=True, slots=True)
class View:
    """What there is to show at one moment."""

    seconds: float
    rows: Sequence[Row]
    workers: Sequence[str]

    def sums(self) -> list[int]:
        """Return the numbers of all topics together."""
        return [sum(column) for column in zip(*(row.numbers() for row in self.rows), strict=True)]


class Screen(Protocol):
    """Where the scenario is shown."""

    def begin(self, number: int, text: str) -> None:
        """Begin a phase."""

    def progress(self, text: str) -> None:
        """Show how far the phase is."""

    def conclude(self, text: str) -> None:
        """Show the result of the phase."""

    def report(self, name: str, text: str, *, ended: bool = False) -> None:
        """Show how far a report is, or what became of it."""

    def show(self, view: View) -> None:
        """Show the current numbers."""

    def end(self, lines: Sequence[str]) -> None:
        """Print the last lines."""


@contextmanager
def open_screen() -> Iterator[Screen]:
    """Yield the screen that suits stdout."""
    terminal = Console(highlight=False, markup=False, emoji=False)
    if sys.stdout.isatty() and not terminal.is_dumb_terminal:
        with Live(console=terminal, auto_refresh=False, vertical_overflow="crop") as live:
            yield Terminal(live)
    else:
        yield Pipe()


class Terminal:
    """A live table of constant height, so that nothing jumps."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._phases = list(PHASES)
        self._phase = 0
        self._reports = dict.fromkeys(REPORTS, "")
        self._view: View | None = None
        unicode = live.console.encoding.startswith("utf")
        self._over, self._now, self._none = "✓▸·" if unicode else "+>."
        self._overflow: Literal["ellipsis", "crop"] = "ellipsis" if unicode else "crop"
        self._refresh()

    def begin(self, number: int, text: str) -> None:
        self._phase = number
        self.progress(text)

    def progress(self, text: str) -> None:
        self._phases[self._phase - 1] = text
        self._refresh()

    def conclude(self, text: str) -> None:
        self.progress(text)

    def report(self, name: str, text: str, *, ended: bool = False) -> None:
        self._reports[name] = text
        self._refresh()

    def show(self, view: View) -> None:
        self._view = view
        self._refresh()

    def end(self, lines: Sequence[str]) -> None:
        if self._phase == len(PHASES):
            self._phase += 1
            self._refresh()
        self._live.stop()
        for line in ("", *lines):  # wrapped by the terminal, so that they can be copied
            self._live.console.print(line, soft_wrap=True)

    def _refresh(self) -> None:
        seconds = f"  {self._view.seconds:4.1f} s" if self._view else "  starting"
        title = Text.assemble((TITLE, "bold"), (seconds, "dim"))
        parts = [title, Text(), *map(self._line, range(1, len(PHASES) + 1)), Text()]
        below: list[Text] = []
        if self._view is not None:
            workers = self._view.workers
            below = [Text(), *(Text(line, "dim" if "killed" in line else "") for line in workers)]
            below += [Text(f"{name}  {text}") for name, text in self._reports.items()]
        for part in (*parts, *below):
            part.no_wrap, part.overflow = True, self._overflow
        table = [] if self._view is None else [self._table(self._view)]
        self._live.update(Group(*parts, *table, *below), refresh=True)

    def _line(self, number: int) -> Text:
        text = f"{number} {self._phases[number - 1]}"
        if number < self._phase:
            return Text(f"{self._over} {text}", style="green")
        if number == self._phase:
            return Text(f"{self._now} {text}", style="bold yellow")
        return Text(f"  {text}", style="dim")

    def _table(self, view: View) -> Table:
        roomy = self._live.console.width >= ROOMY
        gap = (0, 2 if roomy else 1, 0, 0)
        table = Table(box=None, pad_edge=False, header_style="dim", padding=gap)
        for number, (title, short) in enumerate(COLUMNS.items()):
            table.add_column(
                title if roomy else short,
                justify="right" if number else "left",
                min_width=5 if number else 9,
                no_wrap=True,
                overflow=self._overflow,
            )
        for row in view.rows:
            table.add_row(row.stats.topic, *map(self._cell, row.numbers()))
        table.add_row("all", *map(self._cell, view.sums()), style="bold")
        return table

    def _cell(self, number: int) -> Text:
        return Text(f"{number:,}") if number else Text(self._none, style="dim")


class Pipe:
    """Plain lines: one per phase, and one or two per second."""

    def __init__(self) -> None:
        self._console = Console(
            force_terminal=False,
            color_system=None,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
        )
        self._next = self._next_report = 0.0
        self._console.print(TITLE)

    def begin(self, number: int, text: str) -> None:
        self._console.print(f"{number} {text}")

    def progress(self, text: str) -> None:
        pass  # the lines printed every second are enough

    def conclude(self, text: str) -> None:
        self._console.print(f"  {text}")

    def report(self, name: str, text: str, *, ended: bool = False) -> None:
        if ended or time.monotonic() > self._next_report:
            self._next_report = time.monotonic() + 1
            self._console.print(f"  {name}: {text}")

    def show(self, view: View) -> None:
        if view.seconds < self._next:
            return
        self._next = view.seconds + 1
        numbers = zip(list(COLUMNS)[1:], view.sums(), strict=True)
        line = "  ".join(f"{name} {number}" for name, number in numbers)
        self._console.print(f"  {view.seconds:4.1f} s  {line}")

    def end(self, lines: Sequence[str]) -> None:
        for line in ("", *lines):
            self._console.print(line)
