"""Bytes <-> Message.

Any bytes decode to a Message or raise a DecodeError that keeps them, so the caller can quarantine
them. A record of a newer release raises NewerRecord; its bytes are never changed.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from mx_rmq.core.errors import DecodeError, InvalidInput, NewerRecord, PayloadTooLarge
from mx_rmq.core.message import WITH_STEPS, Extended, Message, Priority
from mx_rmq.core.partition import base_topic

MAX_DEPTH: Final = 64  # levels of nesting in a payload; more breaks other JSON readers

STEPS_DEPTH: Final = 12  # how deep in a record the payload of a message of its flow may be

_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?')
_INNERMOST: Final = re.compile(rb"\{\}|\[\]")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def _plain(value: Any) -> Any:
    """Return a Pydantic model as JSON values that it can be rebuilt from; refuse other objects."""
    if isinstance(value, msgspec.Raw):  # the encoder copies it unchanged
        return msgspec.json.decode(value)
    if not hasattr(type(value), "model_dump"):
        raise TypeError(f"objects of type {type(value).__name__} are not supported")
    return value.model_dump(mode="json", by_alias=True, round_trip=True)


_encoder = msgspec.json.Encoder()
_payload_encoder = msgspec.json.Encoder(enc_hook=_plain)
# Refuses every dict with a key that is not a string, at C speed:
_text_keys_encoder = msgspec.json.Encoder(enc_hook=lambda _: None, order="deterministic")
_decoder = msgspec.json.Decoder(Message)
_raw_decoder = msgspec.json.Decoder(msgspec.Raw)


class _Version(msgspec.Struct):
    v: int = 0


_version_decoder = msgspec.json.Decoder(_Version)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])

_FIELDS: Final = frozenset(field.name for field in msgspec.structs.fields(Message))

_TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH} levels"

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError)


def encode_payload(payload: Any, limit: int) -> msgspec.Raw:
    """Encode a payload; refuse what is too large, too deep or not JSON."""
    try:
        data = _payload_encoder.encode(payload)
        if not data.isascii():
            data.decode()
        _raw_decoder.decode(data)  # a msgspec.Raw inside is copied, JSON or not
        if b"null" in data:  # what msgspec writes for NaN and infinity as well as for None
            _refuse_non_finite(payload)
    except RecursionError as error:
        raise InvalidInput(f"the payload is {_TOO_DEEP}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"a payload of type {type(payload).__name__} cannot be encoded as JSON: {error}"
        ) from error
    if len(data) > limit:
        raise PayloadTooLarge(len(data), limit)
    objects = data.count(b"{")
    if objects + data.count(b"[") > MAX_DEPTH and _deeper_than(data, MAX_DEPTH):
        raise InvalidInput(f"the payload is {_TOO_DEEP}")
    if objects == 1 and type(payload) is dict:
        for key in payload:
            if type(key) is not str:
                _refuse_equal_keys(payload, data)
                break
    elif objects:
        _refuse_equal_keys(payload, data)
    return msgspec.Raw(data)


def verbatim(text: str) -> msgspec.Raw:
    """Return a JSON text as a payload, without decoding: long numbers would lose digits.

    Raises ValueError or RecursionError if no worker could read it.
    """
    json.loads(text)  # its errors name the line
    data = text.encode()
    msgspec.json.decode(data)
    return msgspec.Raw(msgspec.json.format(data, indent=-1))


def encode(message: Message) -> bytes:
    try:
        if message.__class__ is not Extended:
            return _encoder.encode(message)
        known = Message(**{name: getattr(message, name) for name in _FIELDS})
        return _encoder.encode(known)[:-1] + b"," + _encoder.encode(message.unknown)[1:]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"message {message.id!r} cannot be encoded as JSON: {error}") from error


def decode(data: bytes, topic: str | None = None, id: str | None = None) -> Message:
    """Decode a record. With `topic` and `id`, refuse that of another message.

    The record of a subscription's message names the topic that it was produced to.
    """
    try:
        if not data.isascii():
            data.decode()  # the payload stays raw, so nothing else checks it
        message = _decoder.decode(data)
    except _UNREADABLE as error:
        message = _extended(data, error)
    if message.v > WITH_STEPS:
        raise NewerRecord(_newer(message.v), data)
    # msgspec's own limit depends on the interpreter. The payload is one level inside the record.
    depth = MAX_DEPTH + (STEPS_DEPTH if message.steps else 1)
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _deeper_than(data, depth):
        raise DecodeError(f"not a message record: {_TOO_DEEP}", data)
    if id is not None and (
        message.id != id or (message.topic != topic and message.topic != base_topic(topic or ""))
    ):
        raise DecodeError(
            f"the record stored under id {id!r:.80} of topic {topic!r} contains "
            f"id {message.id[:80]!r}, topic {message.topic[:80]!r}",
            data,
        )
    return message


def _extended(data: bytes, error: Exception) -> Message:
    """Decode a record with fields that we do not know, or refuse it."""
    try:
        version = _version_decoder.decode(data).v
        if version > WITH_STEPS:
            raise NewerRecord(_newer(version), data) from error
        data.decode()
        fields = _fields_decoder.decode(data)
        unknown = {name: fields.pop(name) for name in [*fields] if name not in _FIELDS}
        known = _decoder.decode(_encoder.encode(fields))
    except RecursionError as better:
        raise DecodeError(f"not a message record: {_TOO_DEEP}", data) from better
    except _UNREADABLE as better:
        raise DecodeError(f"not a message record: {better}", data) from better
    return Extended(**msgspec.structs.asdict(known), unknown=unknown)


def _refuse_non_finite(payload: Any) -> None:
    rest = [msgspec.to_builtins(payload, enc_hook=_plain)]
    while rest:
        value = rest.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is not a JSON number")
        if isinstance(value, dict):
            rest.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            rest.extend(value)


def _refuse_equal_keys(payload: Any, data: bytes) -> None:
    """Refuse a payload in which different keys, such as 1 and "1", become the same text."""
    try:
        _text_keys_encoder.encode(payload)
    except Exception:  # noqa: BLE001 - a key that is not a string, or a set that cannot be sorted
        json.loads(data, object_pairs_hook=_refuse_repeated, parse_int=str, parse_float=str)


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> None:
    keys: set[str] = set()
    for key, _ in pairs:
        if key in keys:
            raise InvalidInput(
                f"two keys of the payload become the same JSON key, {json.dumps(key):.80}: "
                "only one of them would arrive"
            )
        keys.add(key)


def _deeper_than(data: bytes, limit: int) -> bool:
    """Return whether a JSON text is nested deeper than `limit`, without recursion."""
    brackets = _STRING.sub(b"", data).translate(None, _NOT_BRACKETS)
    for _ in range(limit):
        brackets = _INNERMOST.sub(b"", brackets)
        if not brackets:
            break
    return bool(brackets)


class Glance(NamedTuple):
    """What we can read of a record in a newer format."""

    created_at: int = 0
    priority: Priority = Priority.NORMAL
    ttl: int | None = None
    key: str | None = None
    cost: int = 1


_GLANCED: Final[dict[str, Any]] = {
    "created_at": int,
    "priority": Priority,
    "ttl": int,
    "key": str,
    "cost": int,
}


def glance(data: bytes) -> Glance:
    """Read what we can of a record whose format may have changed in any way."""
    known: dict[str, Any] = {}
    with suppress(*_UNREADABLE):
        fields = _fields_decoder.decode(data)
        for name, kind in _GLANCED.items():
            with suppress(*_UNREADABLE, KeyError):
                known[name] = msgspec.json.decode(fields[name], type=kind)
    return Glance(**known)


def _newer(version: int) -> str:
    return f"record format {version} is newer than {WITH_STEPS}, the newest this release reads"
