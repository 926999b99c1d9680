"""The campaign itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.faults import campaign, report
from tests.faults.trial import Fault

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.trial import Trial


def test_a_kind_that_crashes_leaves_no_older_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def crash(_: Trial) -> None:
        raise RuntimeError("as planned")

    fault = Fault("boom", "it crashes", crash, unit="times", short=1, full=2)
    monkeypatch.setattr(campaign, "FAULTS", {"boom": fault})
    monkeypatch.setattr(campaign, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["faults", "boom"])
    older = tmp_path / "boom.json"
    older.write_text("{}")
    with pytest.raises(RuntimeError, match="as planned"):
        campaign.main()
    assert not older.exists()
    assert "**no result**" in report._summary([fault], {"boom": report.read(older)})
