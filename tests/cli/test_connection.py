"""What all commands share: how they fail when there is no server to speak to."""

from __future__ import annotations

import pytest

from tests.cli.calls import run
from tests.lab.messages import TOPIC


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
