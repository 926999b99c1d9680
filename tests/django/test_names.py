"""The public names of mx_rmq.django are on its pages. No Django is set up here."""

from __future__ import annotations

import ast

import mx_rmq.django
from tests.tour.pages import DOCS, ROOT


def test_every_public_name_is_in_the_reference() -> None:
    names = mx_rmq.django.__all__
    assert names == sorted(names)
    assert set(names) <= set(dir(mx_rmq.django))
    page = (DOCS / "reference.md").read_text()
    section = page.partition("## mx_rmq.django\n")[2].partition("\n## ")[0]
    testing = ast.parse((ROOT / "src/mx_rmq/django/testing.py").read_text())
    (public,) = [
        ast.literal_eval(one.value)
        for one in testing.body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"
    ]
    assert [name for name in (*names, *public) if f"`{name}" not in section] == []
