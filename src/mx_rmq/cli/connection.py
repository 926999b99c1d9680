"""How a command reaches its server: the options and arguments that commands share.

What needs a server is imported when one is asked for: `--help` and shell completion need none.
"""

from __future__ import annotations

import functools
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.program import INTERRUPTED, CannotDo
from mx_rmq.core.errors import InvalidInput, MxRmqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from mx_rmq.admin import Admin
    from mx_rmq.settings import QueueSettings

COMPLETE_WITHIN: Final = 1.0
"""Seconds to wait for the server after a press of the tab key."""

COMPLETED: Final = 100
"""Topics offered at most."""

_OPTIONS = (
    click.option(
        "--url", help="Server, Sentinels or cluster.  [default: MX_RMQ_URL, then mx-rmq.toml]"
    ),
    click.option("--prefix", help="Prefix of all keys.  [default: mx-rmq]"),
    click.option("--patience", type=float, help="Seconds to wait for the server.  [default: 10]"),
)


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue that a command works on."""

    settings: QueueSettings

    def check(self) -> None:
        """Refuse an embedded server that does not exist: a mistyped path must not create one."""
        directory = self.settings.url.removeprefix("embedded://")
        if directory != self.settings.url and not Path(directory).is_dir():
            raise InvalidInput(f"no such directory: {directory}")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Admin]:
        """Connect to its server."""
        import logging

        from mx_rmq.admin import Admin
        from mx_rmq.store import Store

        self.check()
        log = logging.getLogger("mx_rmq")
        level = log.level
        log.setLevel(logging.ERROR)  # `doctor` reports unsafe server settings
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
    """Return the operator's name for the history: MX_RMQ_OPERATOR, else the login name."""
    import getpass

    if name := os.environ.get("MX_RMQ_OPERATOR"):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the user may have no name
        return f"uid {os.getuid()}"


def on_queue(command: Callable[..., Awaitable[int]]) -> Callable[..., None]:
    """Pass a Queue made from the options to a command; exit with the code that it returns."""

    @functools.wraps(command)
    def run(url: str | None, prefix: str | None, patience: float | None, **rest: Any) -> None:
        import asyncio

        from mx_rmq.settings import QueueSettings

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

    return with_server(run)


def on_admin(command: Callable[..., Awaitable[int]]) -> Callable[..., None]:
    """Pass a connected Admin to a command; exit with the code that it returns."""

    @functools.wraps(command)
    async def run(queue: Queue, **rest: Any) -> int:
        async with queue.open() as admin:
            return await command(admin, **rest)

    return on_queue(run)


def options(*every: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Combine decorators into one. They apply in the order given."""

    def give(run: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(every):
            run = option(run)
        return run

    return give


with_server = options(*_OPTIONS)
"""Add --url, --prefix and --patience to a command."""


def _complete_topic(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return matching topics if the server answers in time, else none. Never fails."""
    import asyncio
    import logging

    log = logging.getLogger("mx_rmq")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        topics = asyncio.run(_topics(context.params))
    except Exception:  # noqa: BLE001 - completion must stay silent
        return []
    finally:
        log.setLevel(level)
    return [topic for topic in topics if topic.startswith(incomplete)][:COMPLETED]


async def _topics(given: dict[str, str | None]) -> list[str]:
    import asyncio

    from mx_rmq.settings import QueueSettings

    settings = QueueSettings.load(
        url=given.get("url"), prefix=given.get("prefix"), patience=COMPLETE_WITHIN / 2
    )
    directory = settings.url.removeprefix("embedded://")
    if directory != settings.url:
        from mx_rmq.embedded import EmbeddedServer

        if not EmbeddedServer.runs_in(directory):  # completion must not start a server
            return []
    async with asyncio.timeout(COMPLETE_WITHIN), Queue(settings).open() as admin:
        return await admin.topics()


with_topic = click.argument("topic", shell_complete=_complete_topic)

with_topics = click.argument("topics", nargs=-1, shell_complete=_complete_topic)

with_topic_and_id = click.argument(
    "words", nargs=-1, required=True, metavar="[TOPIC] ID", shell_complete=_complete_topic
)
