"""The name: on PyPI `mx-rmq` is another project, so nothing of ours may send anybody there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import version
from typing import Final

import pytest

import mx_rmq
from tests.lab.servers import ROOT

BY_NAME: Final = re.compile(
    r"""(?:install|add|download)[ ](?:-\S+[ ])*['"]?mx[-_]rmq(?!\S*\.whl)""", re.VERBOSE
)
THEIRS: Final = "1.6.2"
ALLOWED: Final = frozenset(("tests/test_name.py", "src/mx_rmq/core/text.py"))
"""Only an installed mx-rmq prints `how_to_install`: pip keeps it and adds the packages."""


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.split("\0") if name and not name.startswith("bench/")]


def test_no_file_tells_to_install_us_from_pypi_by_name() -> None:
    guilty = []
    for name in tracked():
        path = ROOT / name
        if name in ALLOWED or path.suffix in {".png", ".svg"} or not path.is_file():
            continue
        guilty += [f"{name}: {found[0]}" for found in BY_NAME.finditer(path.read_text())]
    assert guilty == []


@pytest.mark.parametrize(
    "line",
    [
        "pip install mx-rmq",
        "pip install 'mx-rmq[dashboard]'",
        'pip install -U "mx-rmq[embedded]"',
        "uv add mx-rmq",
        "python -m pip install --quiet mx_rmq==2.0.0",
    ],
)
def test_such_a_line_would_be_found(line: str) -> None:
    assert BY_NAME.search(line)


def test_our_version_is_above_theirs() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert tuple(map(int, declared.split("."))) > tuple(map(int, THEIRS.split(".")))
    assert version("mx-rmq") == declared


def test_pages_and_deploy_files_name_this_version() -> None:
    versions = {
        (name, found)
        for name in tracked()
        if name.startswith(("docs/", "deploy/")) and name.endswith((".md", ".yml", ".yaml", "file"))
        for found in re.findall(
            r"(?:mx_rmq-|mx-rmq:)([0-9][0-9.]*[0-9])", (ROOT / name).read_text()
        )
    }
    assert versions
    assert {found for _, found in versions} == {version("mx-rmq")}


@pytest.mark.parametrize("name", ["MQConfig", "RedisMessageQueue"])
def test_a_name_of_the_other_project_points_to_the_migration_page(name: str) -> None:
    with pytest.raises(ImportError, match=rf"{name} belongs to mx-rmq 1\.6\.2.*docs/migration\.md"):
        exec(f"from mx_rmq import {name}")
    assert (ROOT / "docs" / "migration.md").exists()


def test_any_other_name_is_missing_as_usual() -> None:
    assert not hasattr(mx_rmq, "Nonsense")
    with pytest.raises(ImportError, match="cannot import name"):
        exec("from mx_rmq import Nonsense")
