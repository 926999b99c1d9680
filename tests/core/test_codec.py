"""Bytes <-> Message"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from math import inf, nan
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError, InvalidInput, NewerRecord, PayloadTooLarge
from mx_rmq.core.message import VERSION, WITH_STEPS, Failure, Message, Priority

LIMIT = 1_048_576


def record(payload: bytes = b"1", **fields: Any) -> bytes:
    """Return a record by hand, so that a test may put anything into it."""
    head = {"v": VERSION, "id": "a", "topic": "t", **fields}
    return json.dumps(head).encode()[:-1] + b', "payload": ' + payload + b"}"


def undecodable(data: bytes) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        codec.decode(data)
    assert caught.value.data == data
    assert type(caught.value.data) is bytes
    assert caught.value.reason == str(caught.value)
    assert len(caught.value.reason) < 500
    return caught.value


def readable_or_kept(data: bytes) -> None:
    kept = data
    try:
        codec.decode(data)
    except DecodeError as error:
        kept = error.data
    assert kept == data


def nested(depth: int, kinds: str) -> Any:
    """Return a value nested so deep, of lists and dicts in turn as `kinds` says."""
    value: Any = 0
    for level in range(depth):
        value = {"a": value} if kinds[level % len(kinds)] == "{" else [value]
    return value


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
texts = st.text(max_size=20)
failures = st.builds(
    Failure, type=texts, text=texts, at=st.integers(0, 2**52), worker=texts, traceback=texts
)
messages = st.builds(
    Message,
    v=st.just(VERSION),
    id=texts,
    topic=texts,
    payload=st.builds(codec.encode_payload, json_values, st.just(LIMIT)),
    created_at=st.integers(0, 2**52),
    priority=st.sampled_from(Priority),
    attempts=st.integers(0, 2**31),
    crashes=st.integers(0, 2**31),
    max_attempts=st.none() | st.integers(1, 100),
    retry=st.none() | st.dictionaries(texts, st.integers(0, 9) | texts),
    ttl=st.none() | st.integers(0, 2**52),
    headers=st.dictionaries(texts, texts),
    errors=st.lists(failures, max_size=3),
    reason=texts,
    delay=st.integers(0, 2**52),
    due=st.none() | st.integers(0, 2**52),
)

# round trips


@given(json_values)
def test_a_json_value_comes_back_as_it_was(value: Any) -> None:
    payload = codec.encode_payload(value, LIMIT)
    stored = codec.decode(codec.encode(Message.new(payload, topic="t", id="a")))
    assert msgspec.json.decode(stored.payload) == value
    assert json.loads(bytes(stored.payload)) == value


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    data = codec.encode(message)
    assert codec.decode(data) == message
    assert codec.decode(data, message.topic, message.id) == message
    assert b"\n" not in data


def test_a_new_record_is_plain_json_that_the_server_can_stamp() -> None:
    data = codec.encode(Message.new(msgspec.Raw(b'{"b":2}'), topic="t", id="a"))
    assert data == b'{"v":1,"id":"a","topic":"t","payload":{"b":2}}'
    stamped = codec.decode(b'{"created_at":17,' + data[1:])
    assert stamped.created_at == 17
    assert stamped.payload == msgspec.Raw(b'{"b":2}')


LATER: dict[str, Any] = {
    "colour": "red",
    "é": [1.50, {"deep": None}],
    "": 0,
    "unknown": {"id": "b"},
    "n": 2**70,
}


def test_fields_of_a_later_release_survive_every_change_of_the_message() -> None:
    failure = Failure(type="E", text="x", at=1)
    message = codec.decode(record(headers={"k": "v"}, ttl=5, **LATER))
    assert (message.headers, message.ttl) == ({"k": "v"}, 5)
    for changed in (
        message,
        message.failed(failure),
        message.crashed(failure),
        message.revived(),
        msgspec.structs.replace(message, payload=msgspec.Raw(b"7"), reason="dead"),
    ):
        data = codec.encode(changed)
        written = json.loads(data)
        assert {name: written[name] for name in LATER} == LATER
        assert data.count(b'"id":"a"') == 1
        assert codec.decode(data).errors == changed.errors
        assert codec.encode(codec.decode(data)) == data


def test_a_record_without_later_fields_is_written_as_before() -> None:
    assert type(codec.decode(record())) is Message
    assert codec.encode(codec.decode(record())) == b'{"v":1,"id":"a","topic":"t","payload":1}'


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, (0, "normal")),
        ({"created_at": 5, "priority": "low"}, (5, "low")),
        ({"created_at": "today", "priority": "high"}, (0, "high")),
        ({"created_at": 5, "priority": "urgent"}, (5, "normal")),
    ],
)
def test_a_glance_at_a_newer_record_takes_what_it_can(
    fields: dict[str, Any], seen: tuple[int, str]
) -> None:
    assert codec.glance(json.dumps({"v": 99, **fields}).encode())[:2] == seen
    assert codec.glance(b"\xff")[:2] == (0, "normal")


@pytest.mark.parametrize("field", ["headers", "retry"])
def test_a_message_that_json_cannot_hold_is_refused(field: str) -> None:
    message = Message.new(msgspec.Raw(b"1"), topic="t", id="a")
    bad = msgspec.structs.replace(message, **{field: {"k": "\udcff"}})
    with pytest.raises(InvalidInput, match="message 'a' cannot be encoded as JSON"):
        codec.encode(bad)


# what is not a record

TYPES: dict[str, Any] = {
    "v": "1",
    "id": 5,
    "topic": None,
    "created_at": "now",
    "priority": "urgent",
    "attempts": 1.5,
    "crashes": "2",
    "max_attempts": "3",
    "retry": [],
    "ttl": "9",
    "headers": {"a": 1},
    "errors": [{"type": "x"}],
    "reason": 1,
    "delay": "1",
    "due": 1.5,
}


@pytest.mark.parametrize("field", TYPES)
def test_a_field_of_a_wrong_type_is_named(field: str) -> None:
    assert field in str(undecodable(record(**{field: TYPES[field]})))


@pytest.mark.parametrize("field", ["v", "id", "topic", "payload"])
def test_a_missing_field_is_named(field: str) -> None:
    whole = json.loads(record())
    del whole[field]
    assert f"missing required field `{field}`" in str(undecodable(json.dumps(whole).encode()))


@pytest.mark.parametrize("version", [WITH_STEPS + 1, 99, 2**62])
@pytest.mark.parametrize(
    "rest", [{"id": "a", "topic": "t", "payload": 1}, {}, {"id": 7, "topic": ["t"], "payload": {}}]
)
def test_a_newer_version_is_named_whatever_else_stands_there(
    version: int, rest: dict[str, Any]
) -> None:
    error = undecodable(json.dumps({"v": version, **rest}).encode())
    assert isinstance(error, NewerRecord)
    assert f"record format {version} is newer than {WITH_STEPS}" in str(error)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"null",
        b"1",
        b"[]",
        b"{}",
        b'"text"',
        b"\x00" * 100,
        b"\xff\xfe",
        record() + b"x",
        record() + record(),
        b"\xef\xbb\xbf" + record(),
        record(b"NaN"),
        record(b"01"),
        record(b"{1:2}"),
        record(b"[1,]"),
        record(b'"a\nb"'),
        record(b'"\\q"'),
        record(b'"\\ud800"'),
        record(b"'1'"),
        record(b"1").replace(b'"a"', b'"\\ud800"'),
        record(v=True),
        b'{"v":' + b"9" * 5000 + b"}",
    ],
    ids=lambda data: ascii(data[:40]),
)
def test_other_bytes_are_no_record_and_are_kept(data: bytes) -> None:
    assert str(undecodable(data)).startswith("not a message record: ")


def test_a_record_cut_short_anywhere_is_kept() -> None:
    whole = codec.encode(
        Message(
            v=VERSION,
            id="a",
            topic="t",
            payload=msgspec.Raw('{"é":[1,"\\n",null]}'.encode()),
            errors=[Failure(type="E", text="x", at=1)],
        )
    )
    codec.decode(whole)
    for length in range(len(whole)):
        undecodable(whole[:length])


@pytest.mark.parametrize("bad", [b"\xff", b"\x80", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
def test_bytes_that_are_not_utf8_are_kept_wherever_they_stand(bad: bytes) -> None:
    whole = record(b'{"k": ["v", {"k": "v"}]}', headers={"k": "v"}, reason="r")
    for at in range(len(whole) + 1):
        undecodable(whole[:at] + bad + whole[at:])


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("field", [b"payload", b"unknown", b"headers"])
def test_deep_nesting_is_no_record_and_breaks_nothing(opening: bytes, field: bytes) -> None:
    closing = {b"[": b"]", b'{"a":': b"}"}[opening]
    for data in (opening * 100_000, opening * 100_000 + b"1" + closing * 100_000):
        undecodable(b'{"v":1,"id":"a","topic":"t","' + field + b'":' + data + b"}")
        undecodable(data)


def test_a_huge_record_is_read_and_a_huge_broken_one_is_kept() -> None:
    huge = record(b'"' + b"x" * 20_000_000 + b'"')
    assert len(bytes(codec.decode(huge).payload)) == 20_000_002
    undecodable(huge[:-1])
    undecodable(b"x" * 20_000_000)


@given(st.binary())
def test_any_bytes_are_a_message_or_a_decode_error(data: bytes) -> None:
    readable_or_kept(data)


@given(st.data())
def test_a_record_with_any_bytes_replaced_is_a_message_or_a_decode_error(
    data: st.DataObject,
) -> None:
    whole = record(b'{"k":[1.5,"v",null]}', headers={"k": "v"})
    at = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, 5))
    broken = whole[:at] + data.draw(st.binary(max_size=5)) + whole[at + length :]
    readable_or_kept(broken)


@pytest.mark.parametrize(("topic", "id"), [("t", "b"), ("u", "a"), ("u", "b"), ("t", "\udcff")])
def test_another_messages_record_is_refused_and_kept(topic: str, id: str) -> None:
    with pytest.raises(DecodeError) as caught:
        codec.decode(record(), topic, id)
    assert caught.value.data == record()
    assert f"under id {id!r} of topic {topic!r} contains id 'a', topic 't'" in str(caught.value)


def test_a_record_with_a_huge_id_does_not_flood_the_error() -> None:
    with pytest.raises(DecodeError) as caught:
        codec.decode(record(id="x" * 10_000, topic="y" * 10_000), "t", "a")
    assert len(str(caught.value)) < 400


# payloads


@pytest.mark.parametrize("limit", [10, 1000, LIMIT])
def test_a_payload_at_the_limit_is_accepted_and_one_byte_more_is_refused(limit: int) -> None:
    for size in (limit - 1, limit):
        assert len(bytes(codec.encode_payload("x" * (size - 2), limit))) == size
    with pytest.raises(PayloadTooLarge) as caught:
        codec.encode_payload("x" * (limit - 1), limit)
    assert (caught.value.size, caught.value.limit) == (limit + 1, limit)
    assert f"{limit + 1:,} bytes; the limit is {limit:,}" in str(caught.value)
    assert isinstance(caught.value, InvalidInput)


def test_the_limit_counts_bytes_not_characters() -> None:
    assert bytes(codec.encode_payload("é", 4)) == '"é"'.encode()
    with pytest.raises(PayloadTooLarge):
        codec.encode_payload("é", 3)


class Order(msgspec.Struct):
    price: float
    note: str | None = None


class Model(pydantic.BaseModel):
    price: Any = pydantic.Field(alias="unitPrice")

    @pydantic.computed_field  # type: ignore[prop-decorator]  # as Pydantic documents it
    @property
    def shown(self) -> str:
        return "computed"


class Weighed(pydantic.BaseModel):
    weight: float


class Root(pydantic.RootModel[list[Any]]):
    pass


@dataclass
class Basket:
    model: pydantic.BaseModel


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (Model(unitPrice=1), {"unitPrice": 1}),
        (Model(unitPrice=Decimal("1.50")), {"unitPrice": "1.50"}),
        (Model(unitPrice=None), {"unitPrice": None}),
        (Model(unitPrice=Model(unitPrice=2)), {"unitPrice": {"unitPrice": 2}}),
        ([Model(unitPrice=1)], [{"unitPrice": 1}]),
        ({"a": (Model(unitPrice=1),)}, {"a": [{"unitPrice": 1}]}),
        (Basket(Model(unitPrice=1)), {"model": {"unitPrice": 1}}),
        (Root([1, None]), [1, None]),
    ],
    ids=repr,
)
def test_a_pydantic_model_is_encoded_as_what_makes_it_again(payload: Any, expected: Any) -> None:
    assert json.loads(bytes(codec.encode_payload(payload, LIMIT))) == expected


@pytest.mark.parametrize(
    "payload",
    [
        Model,
        Model(unitPrice=object()),
        Model(unitPrice="\ud800"),
        Basket(Weighed(weight=nan)),
        [None, Weighed(weight=inf)],
        Mock(),
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_a_model_that_json_cannot_hold_is_refused(payload: Any) -> None:
    with pytest.raises(InvalidInput, match=f"a payload of type {type(payload).__name__} cannot be"):
        codec.encode_payload(payload, LIMIT)


def test_a_model_nested_too_deeply_is_refused() -> None:
    model = Model(unitPrice=1)
    for _ in range(64):
        model = Model(unitPrice=model)
    with pytest.raises(InvalidInput, match="nested deeper than 64 levels"):
        codec.encode_payload(model, LIMIT)


@pytest.mark.parametrize(
    "payload",
    [
        nan,
        inf,
        -inf,
        [nan],
        (1, inf),
        {"a": {"b": [None, 1.0, nan]}},
        Order(nan),
        [Order(1.0), Order(inf, "null")],
        {"null": inf},
    ],
    ids=str,
)
def test_numbers_that_json_does_not_have_are_refused(payload: Any) -> None:
    with pytest.raises(InvalidInput, match=r"encoded as JSON: -?(nan|inf) is not a JSON number"):
        codec.encode_payload(payload, LIMIT)


class Colour(Enum):
    RED = "red"


@dataclass
class Prices:
    by_id: dict[Any, Any]


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        ({1: 2, "1": 3}, "1"),
        ({"1": 2, 1: 3, "é": 1}, "1"),
        ([0, {"a": ({1.5: 2, "1.5": 3},)}], "1.5"),
        (Prices({7: 1, "7": 2}), "7"),
        ({"a": Prices({Colour.RED: 1, "red": 2})}, "red"),
        ({UUID(int=1): 1, str(UUID(int=1)): 2}, str(UUID(int=1))),
        ({"{": 1, "a": {2: 1, "2": {1, "x"}}}, "2"),
    ],
)
def test_keys_that_are_the_same_in_json_are_refused(payload: Any, key: str) -> None:
    with pytest.raises(InvalidInput, match=f'become the same JSON key, "{re.escape(key)}"'):
        codec.encode_payload(payload, LIMIT)


@pytest.mark.parametrize(
    "payload",
    [
        {1: 2, "2": 3},
        {"a": {1: 1}, "b": {"1": 1}},
        [{1: 1}, {"1": 1}],
        {"a": {1, "a", 2.5}},
        {"a": {Colour.RED, 1}, 2: 10**18},
        Prices({1: {"1": 1}}),
    ],
)
def test_keys_of_several_types_are_accepted_while_they_differ_in_json(payload: Any) -> None:
    assert bytes(codec.encode_payload(payload, LIMIT)) == msgspec.json.encode(payload)


@pytest.mark.parametrize(
    "payload",
    [None, [None], "null", {"null": None}, Order(1.0), [1.5, None], Decimal("1.5")],
    ids=str,
)
def test_an_honest_null_is_accepted(payload: Any) -> None:
    assert json.loads(bytes(codec.encode_payload(payload, LIMIT))) == msgspec.to_builtins(payload)


@pytest.mark.parametrize("raw", [b"null", b"[null,0.1234567890123456789]"])
def test_a_raw_payload_is_kept_byte_for_byte_also_one_with_a_null(raw: bytes) -> None:
    assert bytes(codec.encode_payload(msgspec.Raw(raw), LIMIT)) == raw
    nested = codec.encode_payload({"a": msgspec.Raw(raw)}, LIMIT)
    assert bytes(nested) == b'{"a":' + raw + b"}"


def test_a_text_becomes_a_payload_digit_for_digit() -> None:
    text = '{ "a" : 0.1234567890123456789,\r\n "b": [1E2, "ü \\u00fc", 123456789012345678901] }'
    assert bytes(codec.verbatim(text)) == (
        '{"a":0.1234567890123456789,"b":[1E2,"ü \\u00fc",123456789012345678901]}'.encode()
    )


@pytest.mark.parametrize(
    "text", ["", "{", "1,2", "NaN", "1e400", "1" * 5000, '"\ud800"', '"\\ud800"', "[" * 100_000]
)
def test_a_text_that_no_worker_could_read_is_no_payload(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        codec.verbatim(text)


@pytest.mark.parametrize(
    "payload",
    [
        object(),
        1j,
        "\ud800",
        ["\udfff"],
        {"\ud800": 1},
        {(1, 2): 3},
        lambda: None,
        msgspec.Raw(b""),
        msgspec.Raw(b"{oops"),
        msgspec.Raw(b'1,"attempts":9'),
        msgspec.Raw(b'"\xff"'),
        {"a": msgspec.Raw(b"1,2")},
    ],
    ids=lambda payload: ascii(bytes(payload)) if type(payload) is msgspec.Raw else None,
)
def test_what_is_not_json_is_refused(payload: Any) -> None:
    with pytest.raises(InvalidInput, match=f"a payload of type {type(payload).__name__} cannot be"):
        codec.encode_payload(payload, LIMIT)


def test_a_payload_that_holds_itself_is_refused() -> None:
    payload: list[Any] = []
    payload.append(payload)
    with pytest.raises(InvalidInput):
        codec.encode_payload(payload, LIMIT)


@pytest.mark.parametrize("kinds", ["[", "{", "[{", "{[", "[[{", "{{["])
def test_64_levels_are_accepted_and_65_are_refused(kinds: str) -> None:
    codec.encode_payload(nested(64, kinds), LIMIT)
    for depth in (65, 100, 128, 900):
        with pytest.raises(InvalidInput, match="nested deeper than 64 levels"):
            codec.encode_payload(nested(depth, kinds), LIMIT)


def test_only_nesting_counts_not_how_many_nor_brackets_in_texts() -> None:
    wide: list[Any] = [[[], {}] for _ in range(1000)]
    texts = ['[[[["' * 100, "\\", "]]{{" * 100, '\\"[[' * 100, {"[" * 100: "{" * 100}]
    for payload in (wide, texts, {"a": wide, "b": texts}):
        assert json.loads(bytes(codec.encode_payload(payload, LIMIT))) == payload


@given(json_values)
def test_the_depth_of_a_value_is_measured_truly(value: Any) -> None:
    def depth(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + max(map(depth, value.values()), default=0)
        if isinstance(value, list):
            return 1 + max(map(depth, value), default=0)
        return 0

    data = bytes(codec.encode_payload(value, LIMIT))
    for limit in range(6):
        assert codec._deeper_than(data, limit) == (depth(value) > limit)


def record_with(payload: bytes) -> bytes:
    return b'{"v":1,"id":"a","topic":"t","payload":' + payload + b"}"


def test_a_record_holds_a_payload_as_deep_as_a_producer_may_send() -> None:
    deepest = b"[" * codec.MAX_DEPTH + b"]" * codec.MAX_DEPTH
    assert bytes(codec.decode(record_with(deepest)).payload) == deepest


@pytest.mark.parametrize("depth", [codec.MAX_DEPTH + 1, 1_000, 5_000, 100_000])
@pytest.mark.parametrize("field", [b"", b',"new":1'])
def test_the_limit_of_a_record_does_not_depend_on_the_interpreter(depth: int, field: bytes) -> None:
    data = record_with(b"[" * depth + b"]" * depth + field)
    with pytest.raises(DecodeError, match="nested deeper than 64 levels"):
        codec.decode(data)


@pytest.mark.parametrize("depth", [codec.MAX_DEPTH + 1, 1_000, 5_000, 100_000])
def test_the_limit_of_a_payload_does_not_depend_on_the_interpreter(depth: int) -> None:
    payload: Any = []
    for _ in range(depth):
        payload = [payload]
    with pytest.raises(InvalidInput, match="the payload is nested deeper than 64 levels"):
        codec.encode_payload(payload, 1_000_000)
