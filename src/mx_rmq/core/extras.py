"""How to install an extra.

On PyPI, mx-rmq is another project (docs/install.md). Naming it is safe here: mx-rmq is installed
when this is printed, so pip keeps it and adds the packages of the extra.
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """Return what to run to get the packages of an extra."""
    return f"run pip install 'mx-rmq[{extra}]', or pip install '.[{extra}]' in a clone"
