"""Asking the user: for confirmation, and for a payload in an editor. Ctrl-C ends it at once."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from mx_rmq.cli.program import CommandFailed, PromptInterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def ask(action: str, *, yes: bool) -> None:
    """Ask for confirmation; raise unless the answer is yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"not a terminal, cannot ask for confirmation to {action}: pass --yes")
    with waiting():
        if not click.confirm(f"{action[0].upper()}{action[1:]}?", err=True):
            raise CommandFailed("cancelled, nothing was changed")


@contextmanager
def waiting() -> Iterator[None]:
    """Let Ctrl-C end a wait for input at once; under asyncio it would only set a flag."""
    with _on_interrupt(signal.default_int_handler):
        try:
            yield
        except KeyboardInterrupt:
            raise PromptInterrupted from None
        except click.Abort as aborted:  # click raises it for Ctrl-C and for Ctrl-D
            click.echo(err=True)
            if isinstance(aborted.__context__, KeyboardInterrupt):
                raise PromptInterrupted from None
            raise CommandFailed("cancelled, nothing was changed") from None


async def open_editor(text: str) -> str | None:
    """Open a text in $VISUAL or $EDITOR; return the result, or None if it was not saved.

    Ctrl-C goes to the editor: many use the key themselves, the others exit with a failure.
    """
    pressed = False

    def note(*_: object) -> None:  # not SIG_IGN: the editor would inherit it
        nonlocal pressed
        pressed = True

    with _on_interrupt(note):
        try:
            return await asyncio.to_thread(click.edit, text, extension=".json")
        except click.ClickException as error:
            if pressed:
                raise PromptInterrupted from None
            raise CommandFailed(f"{error.message}; nothing was changed") from None


@contextmanager
def _on_interrupt(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # it gets no signals
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
