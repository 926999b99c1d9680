"""read_news: what is published for those who wait."""

from __future__ import annotations

from itertools import islice

import pytest

from mx_rmq.core.message import State
from mx_rmq.store.waiter_calls import read_news


def test_each_message_is_told_with_its_result_if_that_is_included() -> None:
    data = b"completed 3 5\none12\n34progress 3 -1\ntwodead 5 -1\nthreecompleted 4 0\nfour"
    assert list(read_news(data)) == [
        (State.COMPLETED, "one", b"12\n34"),
        (None, "two", None),
        (State.DEAD, "three", None),
        (State.COMPLETED, "four", b""),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"text",
        b"one word\n",
        b"dead 2 x\nid",
        b"dead x 2\nid",
        b"a -8 -1\n",  # would begin again at its first byte, for ever
        b"abc 0 -9\n",
        b"dead 3 -1\nid",
        b"completed 2 9\nidshort",
    ],
)
def test_what_no_script_publishes_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(islice(read_news(data), 100))
