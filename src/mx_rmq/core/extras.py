"""How to install an extra.

Never `pip install mx-rmq[...]`: on PyPI that name belongs to another project (docs/decisions.md).
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """Return what to run to get the packages of an extra."""
    return f"run pip install '.[{extra}]' in a clone of mx-rmq"
