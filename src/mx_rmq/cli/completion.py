"""`mx-rmq completion`: what a shell needs to complete commands, options and topics."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import click
from click.shell_completion import get_completion_class

from mx_rmq.cli.connection import Queue
from mx_rmq.core.config import QueueSettings

WITHIN: Final = 1.0
"""Seconds that somebody who pressed the tab key waits at the most."""

SHOWN: Final = 100
"""Topics that are offered."""

PROGRAM: Final = "mx-rmq"


@click.command(short_help="Print what a shell needs to complete commands and topics.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  eval "$(mx-rmq completion bash)"                    in ~/.bashrc
    zsh:   eval "$(mx-rmq completion zsh)"                     in ~/.zshrc
    fish:  mx-rmq completion fish > ~/.config/fish/completions/mx-rmq.fish
    """
    made = get_completion_class(shell)
    if made is None:  # the choice above says that there is one
        raise click.UsageError(f"no completion for {shell}")
    click.echo(made(context.find_root().command, {}, PROGRAM, "_MX_RMQ_COMPLETE").source())


def complete_topic(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics that begin so, if the server tells them quickly; else none, silently."""
    log = logging.getLogger("mx_rmq")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        topics = asyncio.run(_topics(context.params))
    except Exception:  # noqa: BLE001 - nobody asked for a server, only for a word
        return []
    finally:
        log.setLevel(level)
    return [topic for topic in topics if topic.startswith(incomplete)][:SHOWN]


async def _topics(given: dict[str, str | None]) -> list[str]:
    settings = QueueSettings.load(
        url=given.get("url"), prefix=given.get("prefix"), patience=WITHIN / 2
    )
    if settings.url.startswith("embedded://"):  # it might have to be started first
        return []
    async with asyncio.timeout(WITHIN), Queue(settings).open() as admin:
        return await admin.topics()
