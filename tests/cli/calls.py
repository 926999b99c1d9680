"""Running a command: in this process, on one of the servers; or at a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result

from mx_rmq.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.servers import Server

MX_RMQ = str(Path(sys.executable).with_name("mx-rmq"))
"""The program, as it is installed beside this Python."""

HOSTILE = "\x1b[2J\x1b[31m[red]boo[/red] :smile: \x9b\r\x07\u202e\n\x7f"
"""Text that would clear the screen, colour it, ring and write backwards."""


async def run(server: Server | str, *words: str) -> Result:
    """Run a command as a user would who set MX_RMQ_URL; nobody is there to be asked.

    A server of ours is there, however long it takes; behind a plain URL there may be none.
    """
    url, patience = (server, "1") if isinstance(server, str) else (server.url, "30")
    runner = CliRunner(env={"MX_RMQ_URL": url, "MX_RMQ_PREFIX": None})
    plain = [str(word) for word in words]  # a State among them is not what a shell gives
    result = await asyncio.to_thread(runner.invoke, main, [*plain, "--patience", patience])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


async def run_json(server: Server | str, *words: str, code: int = 0) -> Any:
    """Run a command with --json; return the one document that it printed."""
    result = await run(server, *words, "--json")
    assert result.exit_code == code, result.output
    assert harmless(result.stdout)
    return json.loads(result.stdout)


@contextmanager
def at_a_terminal(
    *words: str, says: str = "", **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process of its own; somebody sits at the terminal, and says no more."""
    master, slave = os.openpty()
    os.write(master, says.encode())
    with subprocess.Popen(
        [MX_RMQ, *words],
        env={**os.environ, **environment},
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            os.close(master)
            os.close(slave)


def harmless(text: str) -> bool:
    """Say whether a terminal would show a text as it is: whole lines of printable characters."""
    return all(line.isprintable() for line in text.split("\n"))
