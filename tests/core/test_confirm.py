"""How far a message must have come before a produce returns."""

from __future__ import annotations

from typing import Any

import pytest

from mx_rmq.core.confirm import Confirm, Level, check_level
from mx_rmq.core.errors import InvalidInput, NotConfirmed
from mx_rmq.settings import QueueSettings


@pytest.mark.parametrize("level", ["stored", "replicated", "fsynced", *Level])
def test_a_level_may_be_given_by_its_name(level: str) -> None:
    assert check_level(level) is Level(level)


@pytest.mark.parametrize("level", ["", "Stored", "all", None, 1, ["stored"], "x" * 1000])
def test_another_level_is_refused_with_those_that_there_are(level: Any) -> None:
    with pytest.raises(InvalidInput, match="is not one of stored, replicated, fsynced") as caught:
        check_level(level)
    assert len(str(caught.value)) < 200


# from the settings


def test_a_queue_confirms_what_is_stored_unless_it_is_told_more() -> None:
    settings = QueueSettings(url="redis://h")
    assert settings.confirmation() is None
    assert settings.confirmation("stored") is None
    assert settings.confirmation("replicated") == Confirm(Level.REPLICATED, 1, 1.0)


def test_a_call_may_ask_for_more_or_for_less_than_its_queue() -> None:
    settings = QueueSettings(
        url="redis://h", confirm="fsynced", confirm_replicas=2, confirm_within=0.5
    )
    assert settings.confirmation() == Confirm(Level.FSYNCED, 2, 0.5)
    assert settings.confirmation("replicated") == Confirm(Level.REPLICATED, 2, 0.5)
    assert settings.confirmation("stored") is None
    for level in ("", "none"):
        with pytest.raises(InvalidInput, match="confirm="):
            settings.confirmation(level)


# what is raised


def test_what_is_not_confirmed_says_what_how_far_and_how_long() -> None:
    error = NotConfirmed("0 of 1 replicas have confirmed it", "replicated", 0.5, ["a"])
    assert str(error) == (
        "the message is stored, but not replicated within 0.5 s: 0 of 1 replicas have confirmed it"
    )
    assert error.ids == ("a",)


def test_the_same_can_be_said_of_other_messages() -> None:
    error = NotConfirmed("why", "fsynced", 1, ["a"]).of(["b"] * 1234)
    assert str(error) == "1,234 messages are stored, but not fsynced within 1 s: why"
    assert (error.ids, error.level, error.within, error.what) == (
        ("b",) * 1234,
        "fsynced",
        1,
        "why",
    )
