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
