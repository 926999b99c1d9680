"""The check for phrases that sound translated. `make check` runs it over the tree."""

from __future__ import annotations

import pytest

from scripts.prose import relapses


@pytest.mark.parametrize(
    ("line", "phrase", "better"),
    [
        ("The map is read anew.", "anew", "again"),
        ("A message Shall wait.", "Shall", "must, or will"),
        ("It mended the counter.", "mended", "fix"),
        ("It waits for ever.", "for ever", "forever"),
        ("Wait so many seconds.", "so many seconds", "N ..."),
        ("Growth up to so many pending.", "so many pending", "this many ..."),
        ("It sends 9 commands a second.", "commands a second", "per ..."),
        ("It costs 5 µs a message.", "µs a message", "per ..."),
        ("It asks everybody.", "everybody", "name who it is: every client, any worker"),
        ("It takes 9 ms at the worst.", "at the worst", "at worst"),
        ("Nobody reads it.", "Nobody", "name who it is: every client, any worker"),
        ("Three calls at the most.", "at the most", "at most, or at least"),
        ("It has a loop of its own.", "a loop of its own", "its own ..."),
    ],
)
def test_a_relapse_is_named_with_its_place_and_the_better_words(
    line: str, phrase: str, better: str
) -> None:
    assert relapses("docs/a.md", f"Fine.\n{line}\n") == [f"docs/a.md:2: {phrase!r}: write {better}"]


@pytest.mark.parametrize(
    "line",
    [
        "for every topic",
        "for ever in counted:",
        "a shallow copy",
        "write to somebody@example.org",
        "how many messages a topic may take",
    ],
)
def test_words_that_only_look_alike_pass(line: str) -> None:
    assert relapses("a.py", line) == []
