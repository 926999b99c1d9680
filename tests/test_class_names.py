"""One name for one thing: no class name occurs twice in the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import mx_rmq

PACKAGE = Path(mx_rmq.__file__).parent


def test_no_class_name_occurs_twice() -> None:
    defined = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name != "Meta":  # as Django wants it
                defined[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}
