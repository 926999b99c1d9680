"""The pages on web frameworks and web servers are done from top to bottom."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.lab.ports import free_port
from tests.tour.pages import DOCS
from tests.tour.walk import walk

if TYPE_CHECKING:
    from pathlib import Path


def test_the_reference_knows_every_name_that_replaces_celerys() -> None:
    table = (DOCS / "web-servers.md").read_text().partition("| with Celery | here |")[2]
    named = " ".join(
        code
        for row in table.splitlines()[2:]
        for code in re.findall(r"`([^`]+)`", row.split(" | ")[1])
    )
    named = re.sub(r'"[^"]*"', "", named)  # what the example calls its own
    own = {
        "shop",
        "handlers",
        "queue",
        "toml",
        "mail",
        "dead",
        "pending",
        "async",
        "Mail",
        "pool",
        "MX_RMQ",
        "MX_RMQ_URL",
        "settings",
    }
    known = set(re.findall(r"[\w-]+", (DOCS / "reference.md").read_text()))
    assert set(re.findall(r"[A-Za-z_][\w-]+", named)) <= known | own


@pytest.mark.parametrize("name", ["web-frameworks.md", "web-servers.md"])
def test_the_page_prints_what_it_shows(
    name: str, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # ours are not the reader's
    text = re.sub(r"^pip install .*\n", "", (DOCS / name).read_text(), flags=re.MULTILINE)
    for port in ("8000", "8001", "8002", "8003"):
        text = re.sub(rf"\b{port}\b", str(free_port()), text)
    page = short_path / name
    page.write_text(text)
    walk(page, short_path)
