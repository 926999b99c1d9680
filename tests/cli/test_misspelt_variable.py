"""A misspelt variable is reported by `mx-rmq produce`, too."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def test_produce_reports_a_misspelt_variable(tmp_path: Path) -> None:
    environment = {**os.environ, "MX_RMQ_PREFX": "mine"}
    command = [sys.executable, "-m", "mx_rmq.cli", "produce", "--url", f"embedded://{tmp_path}"]
    done = subprocess.run(
        [*command, "t", "1"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "did you mean 'MX_RMQ_PREFIX'?" in done.stderr
