"""A short version of every kind of fault."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import pytest

from tests.faults.campaign import FAULTS, SEED
from tests.faults.trial import Trial


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings(  # a thread was killed while it built its loop: half a loop is left
    "ignore:unclosed event loop:ResourceWarning",
    "ignore:unclosed <socket object:ResourceWarning",
    "ignore:Exception ignored in.*<socket object:pytest.PytestUnraisableExceptionWarning",
    "ignore:Exception ignored in.*_UnixSelectorEventLoop:pytest.PytestUnraisableExceptionWarning",
    "ignore:Exception ignored in.*BaseEventLoop.__del__:pytest.PytestUnraisableExceptionWarning",
)
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.short])
async def test_nothing_is_lost_in_a_short_campaign(name: str) -> None:
    fault = FAULTS[name]
    seed = int(os.environ.get("MX_RMQ_SEED", SEED))
    with tempfile.TemporaryDirectory(prefix="mxf-") as directory:
        trial = Trial(name, fault.short, seed, Path(directory))
        await fault.hold(trial)
    assert not trial.violations, f"{trial.violations}\nAgain: {trial.replay}"
    gc.collect()  # what a killed thread left must not fail another test
