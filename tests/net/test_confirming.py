"""The commands that wait for a confirmation, and what their replies say."""

from __future__ import annotations

import pytest

from mx_rmq.core.confirm import Confirm, Level
from mx_rmq.net.caller import missing, wait_for

REPLICATED = Confirm(Level.REPLICATED, replicas=2, within=1.5)
FSYNCED = Confirm(Level.FSYNCED, replicas=1, within=0.001)


def test_the_command_waits_for_the_level_in_milliseconds() -> None:
    assert wait_for(REPLICATED) == ("WAIT", 2, 1500)
    assert wait_for(FSYNCED) == ("WAITAOF", 1, 1, 1)


@pytest.mark.parametrize(
    ("confirm", "reply", "lacks"),
    [
        (REPLICATED, 2, ""),
        (REPLICATED, 3, ""),
        (REPLICATED, 1, "1 of 2 replicas have confirmed it"),
        (REPLICATED, 0, "0 of 2 replicas have confirmed it"),
        (FSYNCED, [1, 1], ""),
        (FSYNCED, [1, 5], ""),
        (FSYNCED, [0, 1], "the primary has not written it to its disk"),
        (FSYNCED, [1, 0], "0 of 1 replicas have confirmed it"),
        (
            FSYNCED,
            [0, 0],
            "the primary has not written it to its disk and 0 of 1 replicas have confirmed it",
        ),
    ],
)
def test_a_reply_says_what_is_missing(confirm: Confirm, reply: int | list[int], lacks: str) -> None:
    assert missing(confirm, reply) == lacks
