"""What the commands print, whatever stands in the server."""

from __future__ import annotations

import click
import pytest

from mx_rmq.cli import main
from mx_rmq.cli.output import named, when


@pytest.mark.parametrize("at", [1e17, 1e30])
def test_a_time_beyond_every_date_is_shown_as_a_number(at: float) -> None:
    assert when(at) == f"{at:g} s"


def test_hints_name_commands_as_the_program_is_called() -> None:
    with click.Context(main, info_name="manage.py mx_rmq"):
        assert named("List them with mx-rmq list t") == "List them with manage.py mx_rmq list t"
