"""What the commands print, whatever stands in the server."""

from __future__ import annotations

import pytest

from mx_rmq.cli.output import when


@pytest.mark.parametrize("at", [1e17, 1e30])
def test_a_time_beyond_every_date_is_shown_as_a_number(at: float) -> None:
    assert when(at) == f"{at:g} s"
