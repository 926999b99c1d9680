"""Tables, as wide as the terminal lets them be; a pipe gets whole lines."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import rich.table
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mx_rmq.cli.output import CELL, cut, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

WIDE: Final = 10_000
"""Columns where no terminal sets a limit."""

GAP: Final = 2
"""Blanks between two columns, as rich has them."""

SHORTEST: Final = 16
"""Characters that a long text keeps, whatever else has to go."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table: numbers to the right, None as nothing."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    spare: Sequence[str] = ()
    """Columns that a narrow terminal goes without, the first one first."""
    long: Sequence[str] = ()
    """Columns of text that may be cut."""

    def within(self, width: int) -> rich.table.Table:
        """Return it for a terminal so wide."""
        shown = list(range(len(self.columns)))
        for spare in self.spare:
            if self._width(shown, SHORTEST) <= width:
                break
            shown.remove(self.columns.index(spare))
        lengths = (WIDE, *range(CELL, SHORTEST, -1))
        longest = next((one for one in lengths if self._width(shown, one) <= width), SHORTEST)
        table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
        for place in shown:
            numeric = any(isinstance(row[place], int | float) for row in self.rows)
            table.add_column(
                self.columns[place],
                justify="right" if numeric else "left",
                overflow="fold",
                no_wrap=numeric,
            )
        for row in self.rows:
            table.add_row(*(Text(self._cell(row, place, longest)) for place in shown))
        return table

    def _width(self, shown: Sequence[int], longest: int) -> int:
        width = GAP * (len(shown) - 1)
        for place in shown:
            cells = (self._cell(row, place, longest) for row in self.rows)
            width += max(map(cell_len, (self.columns[place], *cells)))
        return width

    def _cell(self, row: Sequence[object], place: int, longest: int) -> str:
        text = _cell(row[place])
        return cut(text, longest) if self.columns[place] in self.long else text


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table."""
    show_table(Table(columns, list(rows)))


def show_table(table: Table) -> None:
    """Print a table that is made already."""
    console = _console()
    console.print(table.within(console.width))


@contextmanager
def screen() -> Iterator[Callable[[Table, Sequence[str]], None]]:
    """Yield what shows a table and lines below it, in the place of those before.

    Where no terminal is, one comes below the other.
    """
    console = _console()
    if not console.is_terminal:

        def show(table: Table, below: Sequence[str]) -> None:
            console.print(table.within(WIDE), *(Text(printable(line)) for line in below), sep="\n")

        yield show
        return
    with Live(console=console, auto_refresh=False) as live:

        def update(table: Table, below: Sequence[str]) -> None:
            shown = (Text(printable(line)) for line in below)
            live.update(Group(table.within(console.width), *shown), refresh=True)

        yield update


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # rich would end the program with exit code 1  # noqa: PLE0704


def _console() -> Console:
    console = _Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDE
    return console


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else printable(str(value))
