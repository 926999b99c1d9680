"""What all commands share: how they fail without a server, and by whom their acts are."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from mx_rmq import MessageQueue
from mx_rmq.admin import Admin
from mx_rmq.cli import main
from mx_rmq.cli.host import Host
from mx_rmq.cli.server import default_directory
from tests.cli.calls import run
from tests.lab.messages import TOPIC, pending
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from mx_rmq.store.store import Store
    from tests.lab.servers import Server


@pytest.mark.parametrize(
    "words",
    [
        ("stats",),
        ("list", TOPIC, "--state", "dead"),
        ("show", TOPIC, "id"),
        ("workers",),
        ("audit",),
        ("doctor",),
        ("requeue", TOPIC, "id"),
        ("discard", TOPIC, "id", "--yes"),
        ("cancel", TOPIC, "id", "--yes"),
        ("pause", TOPIC),
        ("resume", TOPIC),
    ],
)
async def test_a_server_that_is_away_is_one_clear_line(words: tuple[str, ...]) -> None:
    for url in ("redis://user:secret@127.0.0.1:1", "http://x", "embedded://no/such"):
        failed = await run(url, *words)
        assert (failed.exit_code, failed.stdout) == (2, "")
        assert failed.stderr.startswith("Error: ")
        assert failed.stderr.count("\n") == 1
        assert "secret" not in failed.stderr


@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
async def test_the_history_tells_by_whom_a_command_was(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def by() -> str:
        (id,) = await pending(store)
        assert (await run(server, "cancel", TOPIC, id, "--yes")).exit_code == 0
        return (await Admin(store).history(TOPIC, id))[-1].by

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    assert await by() == getpass.getuser()
    monkeypatch.setattr(getpass, "getuser", nobody)
    assert (await by()).startswith("uid ")
    monkeypatch.setenv("MX_RMQ_OPERATOR", "ann\n" + "x" * 5000)
    assert await by() == "ann"


@pytest.mark.parametrize(
    ("url", "directory"), [("embedded://./queue", "queue"), ("redis://localhost", "mx-rmq-data")]
)
def test_the_server_of_a_framework_runs_where_its_settings_say(url: str, directory: str) -> None:
    framework = Host(queue=lambda: MessageQueue(url), command=[], modules=[], hint="")
    with click.Context(main, obj=framework):
        assert default_directory() == Path(directory)
