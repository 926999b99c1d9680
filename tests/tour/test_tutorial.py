"""The tutorial is done from top to bottom, on an embedded server, and prints what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.tour.pages import DOCS
from tests.tour.walk import fits, walk

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(300)
def test_the_tutorial_prints_what_it_shows(short_path: Path) -> None:
    walk(DOCS / "tutorial.md", short_path)


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("a b\n", "a b\n"),
        ("a    b  \n", "a b\n"),
        ("id k3v9-1 at 12:00\n", "id … at …\n"),
        ("a\nb\nc\nd\n", "a\n…\nd\n"),
        ("a\nd\n", "a\n…\nd\n"),
    ],
)
def test_a_text_fits_what_was_printed(printed: str, text: str) -> None:
    assert fits(printed, text)


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("ab\n", "a b\n"),
        ("a\nb\n", "a\n"),
        ("a\n", "a\nb\n"),
        ("a\nb\n", "a…\n"),
        ("axb\n", "a.b\n"),
        ("", "a\n"),
    ],
)
def test_a_text_does_not_fit_anything_else(printed: str, text: str) -> None:
    assert not fits(printed, text)
