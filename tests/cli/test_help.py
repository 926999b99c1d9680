"""The full `--help` of every command, one snapshot each.

After a deliberate change: MX_RMQ_UPDATE_SNAPSHOTS=1 pytest tests/cli/test_help.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from mx_rmq.cli import COMMANDS, main

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.mark.parametrize("name", ["mx-rmq", *COMMANDS])
def test_the_help_is_as_it_was(name: str) -> None:
    words = ["--help"] if name == "mx-rmq" else [name, "--help"]
    helped = CliRunner(env={"COLUMNS": "100"}).invoke(main, words, prog_name="mx-rmq")
    assert helped.exit_code == 0
    snapshot = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("MX_RMQ_UPDATE_SNAPSHOTS"):
        snapshot.write_text(helped.stdout)
    assert helped.stdout == snapshot.read_text()


def test_no_snapshot_is_left_of_a_command_that_is_gone() -> None:
    assert {path.stem for path in SNAPSHOTS.iterdir()} == {"mx-rmq", *COMMANDS}
