"""completion: scripts that shells take, and topics that the server tells."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from mx_rmq.cli import main
from mx_rmq.embedded import EmbeddedServer
from mx_rmq.queue import MessageQueue
from tests.lab.messages import draft
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from pathlib import Path

    from mx_rmq.store.store import Store
    from tests.lab.servers import Server


async def complete(*words: str) -> list[str]:
    """Return what is offered for the last word."""
    asked = BashComplete(main, {}, "mx-rmq", "_MX_RMQ_COMPLETE")
    *before, last = words
    found = await asyncio.to_thread(asked.get_completions, before, last)
    return [one.value for one in found]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_this_program(shell: str) -> None:
    told = CliRunner().invoke(main, ["completion", shell])
    assert told.exit_code == 0
    assert "_MX_RMQ_COMPLETE" in told.stdout
    if shell == "bash":
        script = told.stdout + "complete -p mx-rmq"
        done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        assert done.stdout.rstrip().endswith("mx-rmq")


async def test_commands_and_options_are_completed() -> None:
    assert await complete("dis") == ["discard"]
    assert await complete("requeue", "--d") == ["--dry-run"]
    assert await complete("nonsense", "--d") == []
    assert await complete("bench", "--d") == []


@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
async def test_topics_are_completed_from_the_server(store: Store, server: Server) -> None:
    for topic in ("order.created", "order.paid", "mail"):
        await store.produce_normal_message(topic, [draft()])
    for command in ("list", "stats", "show", "requeue", "pause", "audit", "edit"):
        offered = await complete(command, "--url", server.url, "order.")
        assert offered == ["order.created", "order.paid"], command


async def test_topics_are_completed_from_an_embedded_server_that_runs(short_path: Path) -> None:
    url = f"embedded://{short_path}"
    async with MessageQueue(url) as mq:
        await mq.produce("order.created", 1)
        assert await complete("list", "--url", url, "order.") == ["order.created"]
    assert await complete("list", "--url", url, "order.") == []
    assert not EmbeddedServer.runs_in(short_path)


async def test_without_a_server_nothing_is_offered_and_nothing_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in ("redis://127.0.0.1:1", "nonsense", f"embedded://{tmp_path}"):
        assert await complete("list", "--url", url, "o") == []
    monkeypatch.delenv("MX_RMQ_URL", raising=False)
    assert await complete("list", "o") == []
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
