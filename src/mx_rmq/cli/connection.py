"""How a command reaches its server: the options that all share, and one line for each failure."""

from __future__ import annotations

import asyncio
import functools
import getpass
import logging
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.admin import Admin
from mx_rmq.cli.output import printable
from mx_rmq.core.config import QueueSettings
from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_OPTIONS = (
    click.option(
        "--url", help="The server, its Sentinels or the cluster; else MX_RMQ_URL, else mx-rmq.toml."
    ),
    click.option("--prefix", help="What all keys begin with.  [default: mx-rmq]"),
    click.option("--patience", type=float, help="Seconds to wait for the server.  [default: 10]"),
)


INTERRUPTED: Final = 130
"""The exit code of a command that somebody interrupted, as shells have it."""


class CannotDo(click.ClickException):
    """It could not be done: exit code 2, where 1 means that something was not there."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Interrupted(CannotDo):
    """Somebody interrupted it while it waited for them."""

    exit_code = INTERRUPTED

    def __init__(self) -> None:
        super().__init__("interrupted; nothing was done")


@dataclass(frozen=True, slots=True)
class Queue:
    """Which queue a command is about."""

    settings: QueueSettings

    def check(self) -> None:
        """Refuse to make an embedded server only to look at it."""
        directory = self.settings.url.removeprefix("embedded://")
        if directory != self.settings.url and not Path(directory).is_dir():
            raise InvalidInput(f"there is no directory {directory}, so there is nothing to look at")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Admin]:
        """Connect to its server."""
        self.check()
        log = logging.getLogger("mx_rmq")
        level = log.level
        log.setLevel(logging.ERROR)  # what the server may lose is the doctor's to tell
        try:
            settings = self.settings
            store = await Store.open(
                settings.address,
                prefix=settings.prefix,
                limits=settings.limits,
                patience=settings.patience,
                load_scripts=settings.load_scripts,
            )
        finally:
            log.setLevel(level)
        async with store:
            yield Admin(store, operator=_operator())


def _operator() -> str:
    """Return who sits here, for the history: as MX_RMQ_OPERATOR says, else by the login."""
    if name := os.environ.get("MX_RMQ_OPERATOR"):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, a user may be nothing but a number
        return f"uid {os.getuid()}"


def on_queue(command: Callable[..., Awaitable[int]]) -> Callable[..., None]:
    """Give a command its Queue first, from the options; end with the exit code that it returns."""

    @functools.wraps(command)
    def run(url: str | None, prefix: str | None, patience: float | None, **rest: Any) -> None:
        async def result() -> int:
            settings = QueueSettings.load(url=url, prefix=prefix, patience=patience)
            return await command(Queue(settings), **rest)

        try:
            code = asyncio.run(result())
        except MxRmqError as error:
            raise CannotDo(str(error)) from error
        except KeyboardInterrupt:
            code = INTERRUPTED
        sys.exit(code)

    return with_options(run)


def on_admin(command: Callable[..., Awaitable[int]]) -> Callable[..., None]:
    """Give a command an Admin of the queue first; end with the exit code that it returns."""

    @functools.wraps(command)
    async def run(queue: Queue, **rest: Any) -> int:
        async with queue.open() as admin:
            return await command(admin, **rest)

    return on_queue(run)


def with_options(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that all share."""
    for option in reversed(_OPTIONS):
        run = option(run)
    return run
