"""How to install an extra.

From a clone, not by name from PyPI: there, mx-rmq is another project (docs/install.md).
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """Return what to run to get the packages of an extra."""
    return f"run pip install '.[{extra}]' in a clone of mx-rmq"
