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
    ],
)
def test_a_relapse_is_named_with_its_place_and_the_better_words(
    line: str, phrase: str, better: str
) -> None:
    assert relapses("docs/a.md", f"Fine.\n{line}\n") == [f"docs/a.md:2: {phrase!r}: write {better}"]


@pytest.mark.parametrize("line", ["for every topic", "for ever in counted:", "a shallow copy"])
def test_words_that_only_look_alike_pass(line: str) -> None:
    assert relapses("a.py", line) == []
