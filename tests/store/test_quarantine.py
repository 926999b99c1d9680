"""What is kept of a message that could not be read: one line, then the exact bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_rmq.core.errors import DecodeError
from mx_rmq.core.text import MAX_ERROR_TEXT
from mx_rmq.store.quarantine import QuarantineReason, read

any_text = st.text(st.characters(exclude_categories=()), max_size=100)


@given(any_text, any_text, st.binary(max_size=1000))
def test_any_error_over_any_bytes_comes_back_exactly(id: str, text: str, data: bytes) -> None:
    about = QuarantineReason.of(
        id=id, topic="orders", error=ValueError(text), data=data, worker="w1"
    )
    line = about.line()
    assert b"\n" not in line
    assert read(line + b"\n" + data) == (about, data)
    assert (about.error_type, about.length, about.worker) == ("ValueError", len(data), "w1")


@pytest.mark.parametrize("text", ["plain", "ünï\n\0\"'\\", "x" * MAX_ERROR_TEXT, ""])
def test_what_utf8_can_hold_is_kept_as_it_is(text: str) -> None:
    about = QuarantineReason.of(id=text, topic="orders", error=KeyError(), data=b"")
    assert about.id == text
    about = QuarantineReason.of(id="id", topic="orders", error=RuntimeError(text), data=b"")
    assert about.error == text


def test_bytes_of_an_id_that_are_not_utf8_are_shown_by_their_numbers() -> None:
    id = b"a\xff".decode("utf-8", "surrogateescape")
    about = QuarantineReason.of(id=id, topic="orders", error=ValueError("lone \ud800"), data=b"")
    assert (about.id, about.error) == ("a\\udcff", "lone \\ud800")


@pytest.mark.parametrize("letter", ["x", "ü", "\0", "\ud800"])
def test_a_long_text_is_cut_by_characters(letter: str) -> None:
    about = QuarantineReason.of(id="id", topic="t", error=ValueError(letter * 9999), data=b"")
    assert len(about.error) <= MAX_ERROR_TEXT
    assert about.error.endswith("…")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"not JSON\nbytes",
        b"\xff\xfe\nbytes",
        b"null\nbytes",
        b"[]\nbytes",
        b"{}\nbytes",
        b'{"id":1,"topic":"t","error_type":"E","error":"e","length":0}\nbytes',
        b"[" * 100_000 + b"\nbytes",
        QuarantineReason.of(id="id", topic="t", error=ValueError("no"), data=b"").line(),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_not_such_a_line_is_an_error_that_keeps_the_bytes(data: bytes) -> None:
    with pytest.raises(DecodeError, match="not a quarantined message: ") as caught:
        read(data)
    assert caught.value.data == data


def test_a_line_of_a_later_release_can_be_read() -> None:
    line = msgspec.json.decode(
        QuarantineReason(id="id", topic="t", error_type="E", error="e", length=1).line()
    )
    about, data = read(msgspec.json.encode({**line, "new": [1]}) + b"\n\xff")
    assert (about.id, data) == ("id", b"\xff")
