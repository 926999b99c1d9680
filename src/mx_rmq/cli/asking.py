"""Asking somebody: before something is destroyed, and in an editor. Ctrl-C ends it at once."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from mx_rmq.cli.connection import CannotDo, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def ask(deed: str, *, yes: bool) -> None:
    """Go on only if somebody says yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CannotDo(f"nobody is there to be asked whether to {deed}: say --yes")
    with waiting():
        if not click.confirm(f"{deed[0].upper()}{deed[1:]}?", err=True):
            raise CannotDo("nothing was done")


@contextmanager
def waiting() -> Iterator[None]:
    """Let Ctrl-C end a wait for somebody: the event loop would only take note of it."""
    with _at_interrupt(signal.default_int_handler):
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted from None
        except click.Abort as aborted:  # what click makes of Ctrl-C, and of Ctrl-D, which is no yes
            click.echo(err=True)
            if isinstance(aborted.__context__, KeyboardInterrupt):
                raise Interrupted from None
            raise CannotDo("nothing was done") from None


async def let_edit(text: str) -> str | None:
    """Let somebody edit a text in $VISUAL or $EDITOR; return it, or None if it was not saved.

    At Ctrl-C the editor decides: many use the key themselves, the others end with a failure.
    """
    pressed = False

    def note(*_: object) -> None:  # not SIG_IGN, which the editor would inherit
        nonlocal pressed
        pressed = True

    with _at_interrupt(note):
        try:
            return await asyncio.to_thread(click.edit, text, extension=".json")
        except click.ClickException as error:
            if pressed:
                raise Interrupted from None
            raise CannotDo(f"{error.message}; nothing was done") from None


def keep(text: str) -> str:
    """Write what somebody has edited to a file that nobody else may read; return its path."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="mx-rmq-edit-", suffix=".json", delete=False
    ) as file:
        file.write(text)
    return file.name


@contextmanager
def _at_interrupt(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # no signal comes here
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
