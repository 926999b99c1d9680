"""From values to text that a person can read and a browser cannot mistake."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright._impl._driver import compute_driver_executable

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import size
from mx_rmq.dashboard import render
from mx_rmq.dashboard.search import Search
from tests.dashboard.visitor import HOSTILE

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (render.duration, 0.0123, "12 ms"),
        (render.duration, 59.94, "59.9 s"),
        (render.duration, 61, "1 min 1 s"),
        (render.duration, 3 * 3600 + 120, "3 h 2 min"),
        (render.duration, 90_061, "1 d 1 h"),
        (render.duration, None, ""),
        (render.number, 1234567, "1,234,567"),
        (render.number, 0.25, "0.2"),
        (render.number, 1234.5, "1,234"),
        (render.number, None, "–"),
        (size, 1023, "1,023 bytes"),
        (size, 1536, "1.5 KiB"),
        (size, 3 * 1024**2, "3.0 MiB"),
        (render.when, 0, "1970-01-01 00:00:00"),
        (render.when, 1e30, "1e+30 s"),
        (render.when, 1e17, "1e+17 s"),
        (render.iso, 1e30, ""),
        (render.iso, 1e17, ""),
        (render.exact, 1.2345, "1970-01-01 00:00:01.234"),
    ],
)
def test_figures_are_written_for_people(
    form: Callable[[float | None], str], value: float | None, text: str
) -> None:
    assert form(value) == text


def test_times_are_told_from_now() -> None:
    assert render.ago(time.time() - 90) == "1 min 30 s ago"
    assert render.ago(time.time() + 7201).startswith("in 2 h")
    assert render.ago(time.time()) == "now"


def test_what_cannot_be_seen_is_written_as_json_writes_it() -> None:
    assert render.shown("a\x00b\u202ec\ud800\x7f\u200b") == (
        "a\\u0000b\\u202ec\\ud800\\u007f\\u200b"
    )
    assert render.shown("tab\tline\nünï 日本") == "tab\tline\nünï 日本"


COLOUR = """
const token = %s, ends = ['"', '\\\\', ""];
const text = JSON.stringify({a: '"'.repeat(60000)}, null, 2).slice(0, 65535);
const texts = ends.map((end) => text + end);
const spaced = ['""' + " ".repeat(65000), '"" '.repeat(20000), '{"a": [1.5e3, true, "b:"]}'];
console.log(JSON.stringify([...texts, ...spaced].map((text) => [...text.matchAll(token)].length)));
"""


def test_no_payload_holds_up_the_browser_that_colours_it() -> None:
    script = (Path(render.__file__).parent / "static" / "app.js").read_text()
    (token,) = re.findall(r"^const token = (/.*/g);", script, re.MULTILINE)
    node, _ = compute_driver_executable()
    told = subprocess.run([node, "-e", COLOUR % token], capture_output=True, timeout=15, check=True)
    assert json.loads(told.stdout) == [2, 2, 2, 1, 20000, 4]


def test_a_search_becomes_a_form_and_comes_back() -> None:
    asked = {"text": HOSTILE, "error": "Value", "since": "2026-01-31T10:00:00"}
    search = Search.of({**asked, "until": "2026-01-31T12:00+01:00"})
    assert search.fields() == {**asked, "until": "2026-01-31T11:00:00"}
    assert Search.of(search.fields()) == search
    assert not Search.of({"text": "  ", "cursor": "1"})


def test_the_last_hour_is_fixed_when_something_shall_be_done() -> None:
    search = Search.of({"last": "1h"})
    assert search.fields() == {"last": "1h"}
    assert list(search.fixed()) == ["since"]
    assert abs((search.since or 0) - time.time() + 3600) < 2
    assert Search.of(search.fixed()).since == search.since


@pytest.mark.parametrize(
    "form",
    [
        {"last": "2h"},
        {"since": "0001-01-01"},
        {"until": "99999-01-01T00:00"},
        {"until": "now"},
        {"error": "x" * 201},
    ],
)
def test_a_search_that_means_nothing_is_refused(form: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        Search.of(form)
