"""A shared block of Lua that only a test has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.store import script

if TYPE_CHECKING:
    import pytest


def with_block(monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    """Let scripts that are composed from now on use a block."""
    lines, others = script.parse_block(name, source), script.block
    monkeypatch.setattr(script, "block", lambda use: lines if use == name else others(use))
