"""A progress bar on standard error, if that is a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mx_rmq.admin import Progress


@contextmanager
def bar(action: str, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows progress. Without a terminal, or if quiet, it does nothing."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
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

    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("scanned, {task.fields[done]:,} " + action),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with Bar(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,  # it would go to standard error
        redirect_stderr=False,
    ) as shown:
        task = shown.add_task("", total=None, done=0)

        def tell(progress: Progress) -> None:
            shown.update(task, completed=progress.looked, total=progress.total, done=progress.done)

        yield tell
