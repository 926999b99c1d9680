"""What README and docs say is true: examples run, links lead somewhere, named tests exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.tour.pages import PAGES, ROOT
from tests.tour.walk import FENCE, Block, blocks_of, fits, walk

if TYPE_CHECKING:
    from pathlib import Path

WALKED = ("tutorial.md", "web-frameworks.md", "web-servers.md")
"""Pages whose examples build on each other: test_tutorial.py and test_web.py walk them."""

NOTHING = Block("", "", 0)


def examples() -> list[object]:
    """Return each python block, and the text block right after it, if there is one."""
    return [
        pytest.param(
            one.text, after.text if after.language == "text" else None, id=f"{page.name}-{one.line}"
        )
        for page in PAGES
        if page.name not in WALKED
        for one, after in pairwise([*blocks_of(page), NOTHING])
        if one.language == "python"
    ]


@pytest.mark.parametrize(("code", "text"), examples())
def test_an_example_runs_as_printed(code: str, text: str | None, short_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=short_path,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        check=False,
        timeout=60,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout
    if text is not None:
        assert fits(ended.stdout, text), ended.stdout


def readme_commands() -> list[str]:
    shell = [block.text for block in blocks_of(ROOT / "README.md") if block.language == "sh"]
    return [line.split("  #")[0].strip() for text in shell for line in text.splitlines()]


def test_the_readme_has_exactly_two_commands_for_a_clone() -> None:
    makes = [command for command in readme_commands() if command.startswith("make ")]
    assert makes == ["make demo", "make test"]


@pytest.mark.timeout(120)
def test_the_three_commands_of_the_readme_work_together(short_path: Path) -> None:
    server, worker, produce = [
        command for command in readme_commands() if command.startswith("mx-rmq ")
    ]
    (program, *_) = [
        block.text for block in blocks_of(ROOT / "README.md") if "shop.py" in block.text
    ]
    page = short_path / "quick-start.md"
    page.write_text(
        f"```python\n{program}```\n"
        f"```sh\n{server} &\n```\n```text background\nthe server is running…\n…\n  unix:…\n```\n"
        f"```sh\n{worker} &\n```\n```text background\n…topics: order.created…\n```\n"
        f"```sh\n{produce}\n```\n```text background\nshipping 44\n…completed in…\n```\n"
    )
    walk(page, short_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_every_named_file_exists(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / link).exists(), link
    for name in re.findall(r"`((?:tests|src|docs|bench)/[\w./]+)`", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`(\w+/[\w./]+\.(?:py|lua|html|js))`", text):  # also `store/keys.py`
        folders = (ROOT, ROOT / "src/mx_rmq", ROOT / "src/mx_rmq/store", page.parent)
        assert any((folder / name).exists() for folder in folders), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_heading_leads_to_one(page: Path) -> None:
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
        target = page.parent / link if link else page
        titles = re.findall(r"^#+ (.+)$", FENCE.sub("", target.read_text()), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert anchor in anchors, f"{link}#{anchor}"


def test_every_module_that_the_table_of_layers_names_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    for folder, row in re.findall(r"^\| `(\w+)/` \|(.*)", page, re.MULTILINE):
        for name in re.findall(r"`([a-z_]+)`", row):
            assert (ROOT / "src/mx_rmq" / folder / f"{name}.py").exists(), f"{folder}/{name}.py"


def test_no_file_names_a_registry() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    hosts = re.compile(r"pypi\.org|pythonhosted|deb\.debian\.org|registry\.npmjs", re.IGNORECASE)
    for name in listed.stdout.splitlines():
        if name != "tests/tour/test_docs.py":
            assert not hosts.search((ROOT / name).read_text(errors="replace")), name
