"""Turn payload bytes into what a handler asks for: one decoder per type, built once.

Pydantic models are recognized by their methods, so Pydantic need not be installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, get_origin

import msgspec
import msgspec.inspect

from mx_rmq.core.errors import DecodeError, InvalidInput
from mx_rmq.core.text import storable

Decode: TypeAlias = Callable[[msgspec.Raw | bytes], Any]
"""Payload bytes -> the value that the handler asks for. Any exception: see `unreadable`."""

SUPPORTED: Final = (
    "JSON types, dataclasses, attrs, TypedDict, NamedTuple, msgspec Struct, Enum, dates, "
    "Decimal, UUID and Pydantic models"
)


def decoder(payload_type: Any, where: str) -> Decode:
    """Build the decoder of a payload type, or refuse the type."""
    if _is_model(payload_type):
        return lambda data: payload_type.model_validate_json(bytes(data))
    try:
        unknown = [
            type_name(custom)
            for custom in _customs(msgspec.inspect.type_info(payload_type), set())
            if custom is not object and not _is_model(custom)
        ]
        decode = msgspec.json.Decoder(payload_type, dec_hook=_model).decode
    except Exception as error:  # it evaluates annotations, which are user code
        shown = type_name(payload_type)
        raise InvalidInput(
            f"{where}: no payload can be decoded as {shown}: {error}; supported are {SUPPORTED}"
        ) from error
    if unknown:
        raise InvalidInput(
            f"{where}: no payload can be decoded as {unknown[0]}; supported are {SUPPORTED}"
        )
    return decode


def unreadable(
    error: Exception, payload_type: Any, data: msgspec.Raw | bytes, what: str = "payload"
) -> DecodeError:
    """Return why a payload cannot be read, from what its decoder raised."""
    is_json = isinstance(error, msgspec.ValidationError) or not isinstance(
        error, msgspec.DecodeError | UnicodeError
    )
    wrong = f"does not fit {type_name(payload_type)}" if is_json else "is not JSON"
    return DecodeError(storable(f"{what} {wrong}: {_reason(error)}"), bytes(data))


def _customs(info: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the classes inside a type that msgspec passes to its hook."""
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    elif isinstance(info, tuple):
        for part in info:
            yield from _customs(part, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in info.__struct_fields__:
            yield from _customs(getattr(info, name), seen)


def _is_model(kind: Any) -> bool:
    """Say whether a type is a Pydantic model, without importing Pydantic."""
    return inspect.isclass(kind) and callable(getattr(kind, "model_validate_json", None))


def _model(kind: Any, value: Any) -> Any:
    """Build a Pydantic model inside another type, by the same JSON rules as at the top level."""
    if kind is object:
        return value
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        raise ValueError(_reason(error)) from error


def _reason(error: Exception) -> str:
    """Return an error's text; for Pydantic the first problem, in msgspec's format."""
    try:
        if not isinstance(error, ValueError):
            return f"{type(error).__name__}: {error}"
        if not hasattr(error, "errors"):
            return str(error)
        first, *others = error.errors()
        path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"])
        more = f" (and {len(others)} more)" if others else ""
        return f"{first['msg']} - at `${path}`{more}"
    except Exception:  # noqa: BLE001 - an error's methods are user code too
        return type(error).__name__


def type_name(kind: Any) -> str:
    if kind is Any:
        return "Any"
    if isinstance(kind, type) and get_origin(kind) is None:
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        return module + kind.__qualname__
    return repr(kind)
