"""How much is imported before a command does anything: counted, because seconds vary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module

import click
import pytest

import mx_rmq
from mx_rmq.cli import COMMANDS, main

HEAVY = ("asyncio", "hiredis", "msgspec", "mx_rmq.settings", "mx_rmq.store", "redis", "rich")

PROGRAM = """
import json, sys
before = set(sys.modules)
import mx_rmq.cli
try:
    mx_rmq.cli.main(prog_name="mx-rmq")
except SystemExit:
    pass
print("\\n" + json.dumps(sorted(set(sys.modules) - before)))
"""


def imported(code: str, *words: str, **environment: str) -> set[str]:
    """Run a program that prints, as its last line, which modules it has imported."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] == "mx_rmq"}


def test_the_import_of_the_package_imports_nothing_of_it() -> None:
    found = imported(
        "import json, sys; before = set(sys.modules); import mx_rmq;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    assert ours(found) == {"mx_rmq"}
    assert len(found) < 30


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (["--version"], {}),
        (["--help"], {}),
        (["no-such-command"], {}),
        ([], {"COMP_WORDS": "mx-rmq re", "COMP_CWORD": "1", "_MX_RMQ_COMPLETE": "bash_complete"}),
    ],
)
def test_what_needs_no_command_imports_none(words: list[str], environment: dict[str, str]) -> None:
    found = imported(PROGRAM, *words, **environment)
    assert ours(found) == {
        *("mx_rmq", "mx_rmq.cli", "mx_rmq.cli.output", "mx_rmq.cli.program"),
        *("mx_rmq.core", "mx_rmq.core.text"),
    }
    assert found.isdisjoint(HEAVY)
    assert len(found) < 150


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"doctor"}))
def test_the_help_of_a_command_needs_no_server(name: str) -> None:
    found = imported(PROGRAM, name, "--help")
    assert found.isdisjoint({"hiredis", "mx_rmq.store", "redis", "rich"})


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_is_there_and_has_one_line_of_help(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert isinstance(command, click.Command)
    assert command.help
    text = COMMANDS[name][1]
    assert text.endswith(".")
    assert len(text) <= 62  # beside the longest name, on a terminal of 80 columns


# the package's names


def test_every_public_name_is_there_and_listed() -> None:
    for name in mx_rmq.__all__:
        assert getattr(mx_rmq, name) is not None
        assert name in dir(mx_rmq)
    everything: dict[str, object] = {}
    exec("from mx_rmq import *", everything)
    assert mx_rmq.__all__ == sorted(everything.keys() - {"__builtins__"})
    assert everything["MessageQueue"] is import_module("mx_rmq.queue").MessageQueue


@pytest.mark.parametrize("name", ["MQConfig", "RedisMessageQueue"])
def test_to_ask_for_a_name_of_the_other_project_is_no_import_error(name: str) -> None:
    assert not hasattr(mx_rmq, name)
    with pytest.raises(AttributeError, match=r"another project .* docs/migration\.md"):
        getattr(mx_rmq, name)
