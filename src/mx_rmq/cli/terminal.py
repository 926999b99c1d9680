"""Tables that fit the terminal, and progress bars. Without a terminal, lines are not cut."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mx_rmq.cli.output import CELL, cut, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import rich.table
    from rich.console import Console

    from mx_rmq.admin import Progress

WIDE: Final = 10_000  # width without a terminal
GAP: Final = 2  # blanks between two columns, as in rich
SHORTEST: Final = 16  # characters that a long text keeps in the narrowest terminal


@dataclass(frozen=True, slots=True)
class Table:
    """A table. Numbers are aligned right; None is an empty cell."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    spare: Sequence[str] = ()  # columns that a narrow terminal does without, in this order
    long: Sequence[str] = ()  # columns of text that may be cut

    def within(self, width: int) -> rich.table.Table:
        """Return the table for a terminal of this width."""
        from rich.table import Table
        from rich.text import Text

        shown = list(range(len(self.columns)))
        for spare in self.spare:
            if self._width(shown, SHORTEST) <= width:
                break
            shown.remove(self.columns.index(spare))
        lengths = (WIDE, *range(CELL, SHORTEST, -1))
        longest = next((one for one in lengths if self._width(shown, one) <= width), SHORTEST)
        table = Table(box=None, pad_edge=False, header_style="bold")
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
        from rich.cells import cell_len

        width = GAP * (len(shown) - 1)
        for place in shown:
            cells = (self._cell(row, place, longest) for row in self.rows)
            width += max(map(cell_len, (self.columns[place], *cells)))
        return width

    def _cell(self, row: Sequence[object], place: int, longest: int) -> str:
        text = _cell(row[place])
        return cut(text, longest) if self.columns[place] in self.long else text


def show_table(table: Table) -> None:
    """Print a Table."""
    console = _console()
    console.print(table.within(console.width))


@contextmanager
def screen() -> Iterator[Callable[[Table, Sequence[str]], None]]:
    """Yield a function that shows a table and lines below it, replacing the previous ones.

    Without a terminal, they are appended instead.
    """
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = _console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def show(table: Table, below: Sequence[str]) -> None:
        shown = Group(table.within(console.width), *(Text(printable(line)) for line in below))
        if live is None:
            console.print(shown)
        else:
            live.update(shown, refresh=True)

    with live or nullcontext():
        yield show


@contextmanager
def progress_bar(action: str, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows progress. Without a terminal, or if quiet, it does nothing."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress
    from rich.console import Console

    with progress.Progress(
        progress.SpinnerColumn(),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("scanned, {task.fields[done]:,} " + action),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left:"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False, markup=False, emoji=False),
        transient=True,
        redirect_stdout=False,  # it would go to standard error
        redirect_stderr=False,
    ) as shown:
        task = shown.add_task("", total=None, done=0)

        def show(now: Progress) -> None:
            shown.update(task, completed=now.looked, total=now.total, done=now.done)

        yield show


def _console() -> Console:
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            # rich calls this in its `except`, and would otherwise exit with code 1.
            raise  # noqa: PLE0704 - the error of that `except`

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
