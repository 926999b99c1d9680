"""A short version of every kind of fault."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.faults.campaign import FAULTS, SEED
from tests.faults.trial import Trial


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.short])
async def test_nothing_is_lost_in_a_short_campaign(name: str) -> None:
    fault = FAULTS[name]
    seed = int(os.environ.get("MX_RMQ_SEED", SEED))
    with tempfile.TemporaryDirectory(prefix="mxf-") as directory:
        trial = Trial(name, fault.short, seed, Path(directory))
        await fault.hold(trial)
    assert not trial.violations, f"{trial.violations}\nAgain: {trial.replay}"
