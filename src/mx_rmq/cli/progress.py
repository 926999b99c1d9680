"""A bar for long work, on standard error, where somebody watches."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mx_rmq.admin import Progress


@contextmanager
def bar(deed: str, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Yield what shows how far it has come; quiet, or if nobody watches, it shows nothing."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("looked at, {task.fields[done]:,} " + deed),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with Bar(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,  # it would come out on standard error
        redirect_stderr=False,
    ) as shown:
        task = shown.add_task("", total=None, done=0)

        def tell(progress: Progress) -> None:
            shown.update(task, completed=progress.looked, total=progress.total, done=progress.done)

        yield tell
