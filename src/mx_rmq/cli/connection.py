"""How a command reaches its server: the options and arguments that commands share.

What needs a server is imported late: `--help` and shell completion need none.
"""

from __future__ import annotations

import functools
import os
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.program import INTERRUPTED, CommandFailed
from mx_rmq.core.errors import InvalidInput, MxRmqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from mx_rmq.admin import Admin
    from mx_rmq.settings import QueueSettings
    from mx_rmq.store import Store

COMPLETE_WITHIN: Final = 1.0  # seconds to wait for the server after the Tab key
COMPLETED: Final = 100  # topics offered at most
EMBEDDED: Final = "embedded://"


def options(*every: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Combine decorators into one. They apply in the order given."""

    def decorate(run: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(every):
            run = option(run)
        return run

    return decorate


with_server = options(
    click.option(
        "--url",
        help="URL of the server, Sentinels or cluster.  [default: MX_RMQ_URL, then mx-rmq.toml]",
    ),
    click.option("--prefix", help="Prefix of all keys.  [default: mx-rmq]"),
    click.option("--patience", type=float, help="Seconds to wait for the server.  [default: 10]"),
)


def check_directory(settings: QueueSettings) -> None:
    """Refuse an embedded server that does not exist: a mistyped path must not create one."""
    directory = settings.url.removeprefix(EMBEDDED)
    if directory != settings.url and not Path(directory).is_dir():
        raise InvalidInput(
            f"no such directory: {directory}; start a server there with: mx-rmq server {directory}"
        )


@asynccontextmanager
async def open_store(settings: QueueSettings) -> AsyncIterator[Store]:
    """Connect to the server."""
    import logging

    from mx_rmq.store import Store

    check_directory(settings)
    with log_only(logging.ERROR):  # `doctor` reports unsafe server settings
        store = await Store.open(
            settings.address,
            prefix=settings.prefix,
            limits=settings.limits,
            patience=settings.patience,
            load_scripts=settings.load_scripts,
        )
    async with store:
        yield store


@asynccontextmanager
async def open_admin(settings: QueueSettings) -> AsyncIterator[Admin]:
    """Connect to the server as an operator."""
    from mx_rmq.admin import Admin

    async with open_store(settings) as store:
        yield Admin(store, operator=_operator())


@contextmanager
def log_only(level: int) -> Iterator[None]:
    """Log nothing of ours below this level."""
    import logging

    log = logging.getLogger("mx_rmq")
    before = log.level
    log.setLevel(level)
    try:
        yield
    finally:
        log.setLevel(before)


def _operator() -> str:
    """Return the operator's name for the history: MX_RMQ_OPERATOR, else the login name."""
    import getpass

    if name := os.environ.get("MX_RMQ_OPERATOR"):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the user may have no name
        return f"uid {os.getuid()}"


def on_settings(command: Callable[..., Awaitable[int]]) -> Callable[..., None]:
    """Pass the settings of the queue to a command; exit with the code that it returns."""

    @functools.wraps(command)
    def run(url: str | None, prefix: str | None, patience: float | None, **rest: Any) -> None:
        import asyncio

        from mx_rmq.cli.host import settings_of

        async def result() -> int:
            settings = settings_of(url=url, prefix=prefix, patience=patience)
            return await command(settings, **rest)

        try:
            code = asyncio.run(result())
        except MxRmqError as error:
            raise CommandFailed(str(error)) from error
        except KeyboardInterrupt:
            code = INTERRUPTED
        sys.exit(code)

    return with_server(run)


def on_admin(command: Callable[..., Awaitable[int]]) -> Callable[..., None]:
    """Pass a connected Admin to a command; exit with the code that it returns."""

    @functools.wraps(command)
    async def run(settings: QueueSettings, **rest: Any) -> int:
        async with open_admin(settings) as admin:
            return await command(admin, **rest)

    return on_settings(run)


def complete_topic(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return matching topics if the server answers in time, else none. Never fails."""
    import asyncio
    import logging

    try:
        with log_only(logging.CRITICAL):
            topics = asyncio.run(_topics(context.params))
    except Exception:  # noqa: BLE001 - completion must stay silent
        return []
    return [topic for topic in topics if topic.startswith(incomplete)][:COMPLETED]


async def _topics(given: dict[str, str | None]) -> list[str]:
    import asyncio

    from mx_rmq.embedded import EmbeddedServer
    from mx_rmq.settings import QueueSettings

    settings = QueueSettings.load(
        url=given.get("url"), prefix=given.get("prefix"), patience=COMPLETE_WITHIN / 2
    )
    directory = settings.url.removeprefix(EMBEDDED)
    if directory != settings.url and not EmbeddedServer.runs_in(directory):
        return []  # completion must not start a server
    async with asyncio.timeout(COMPLETE_WITHIN), open_admin(settings) as admin:
        return await admin.topics()


with_topic = click.argument("topic", shell_complete=complete_topic)

with_topics = click.argument("topics", nargs=-1, shell_complete=complete_topic)
