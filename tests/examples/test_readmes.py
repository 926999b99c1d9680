"""The applications for web frameworks, as their READMEs say: installed, started, used, tested."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.lab.environment import make_environment
from tests.lab.ports import free_port
from tests.tour.pages import ROOT
from tests.tour.walk import blocks_of, walk

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = ROOT / "examples"
APPLICATIONS = ["fastapi_reports", "flask_newsletter", "litestar_invoices", "starlette_exports"]

INSTALL = """\
python3 -m venv .venv
. .venv/bin/activate
pip install '..[embedded]' -r {name}/requirements.txt
"""


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_commands_of_its_readme_run(name: str, short_path: Path) -> None:
    readme = EXAMPLES / name / "README.md"
    home = short_path / "page"
    shutil.copytree(EXAMPLES, home, ignore=shutil.ignore_patterns("mx-rmq-data", "__pycache__"))
    (install,) = (block.text for block in blocks_of(readme) if "pip install" in block.text)
    assert install == INSTALL.format(name=name)
    requirements = (EXAMPLES / name / "requirements.txt").read_text().splitlines()
    listed = [line for line in requirements if line and not line.startswith("#")]
    programs = make_environment(home / ".venv", ["mx-rmq[embedded]", *listed])
    page = short_path / "README.md"
    text = readme.read_text().replace(f"```sh\n{install}```\n", "")
    for port in ("8000", "8001"):
        text = re.sub(rf"\b{port}\b", str(free_port()), text)
    page.write_text(text)
    walk(page, short_path, programs)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_what_connects_it_is_less_than_ten_lines(name: str) -> None:
    code = (EXAMPLES / name / "app.py").read_text()
    _, _, table = (EXAMPLES / name / "README.md").read_text().partition("|---|---|\n")
    lines = re.findall(r"^\| `(.+?)` \| ", table, re.MULTILINE)
    assert 5 < len(lines) < 10
    for line in lines:
        first, *more = line.split("…")
        assert first in code, line
        assert all(one in code for one in more), line
