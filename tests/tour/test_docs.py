"""What README and docs say is true: examples run, links lead somewhere, named tests exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        texts = [text for name, text in BLOCK.findall(page.read_text()) if name == language]
        found += [(f"{page.name}-{number}", text) for number, text in enumerate(texts, 1)]
    return found


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in blocks("python")])
def test_an_example_runs_as_printed(code: str, short_path: Path) -> None:
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    subprocess.run(
        [sys.executable, "-c", code], cwd=short_path, env=environment, check=True, timeout=60
    )


def test_the_readme_has_exactly_two_commands() -> None:
    shell = [text for name, text in blocks("sh") if name.startswith("README")]
    commands = [line.split("#")[0].strip() for text in shell for line in text.splitlines()]
    assert commands == ["make demo", "make test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_every_named_file_exists(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / link).exists(), link
    for name in re.findall(r"`((?:tests|src|docs|bench)/[\w./]+)`", text):
        assert (ROOT / name).exists(), name


def test_no_file_names_a_registry() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    hosts = re.compile(r"pypi\.org|pythonhosted|deb\.debian\.org|registry\.npmjs", re.IGNORECASE)
    for name in listed.stdout.splitlines():
        if name != "tests/tour/test_docs.py":
            assert not hosts.search((ROOT / name).read_text(errors="replace")), name
