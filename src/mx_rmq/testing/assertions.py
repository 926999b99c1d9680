"""Records what was produced, and asserts about it.

Payloads are compared by their JSON form, and options by their value.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import ANY

import msgspec

from mx_rmq.core.codec import encode_payload
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.middleware import Middleware
from mx_rmq.core.outgoing import Outgoing, ProduceOptions
from mx_rmq.core.retry import as_dict, policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mx_rmq.core.middleware import Produce
    from mx_rmq.queue import MessageQueue

OPTIONS: Final = ("id", *ProduceOptions.__annotations__, "key")  # beside topic and payload
SHOWN: Final = 20  # messages that a failure lists
WIDTH: Final = 300  # characters that it shows of a payload


class Containing:
    """Equal to every dict with at least these items: `Containing({"to": "ann"})`."""

    __hash__ = None  # type: ignore[assignment]  # equal things would need equal hashes

    def __init__(self, items: dict[str, Any]) -> None:
        self.items = items

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict):
            return NotImplemented
        wanted = _json_form(self.items)
        return all(key in other and wanted[key] == other[key] for key in wanted)

    def __repr__(self) -> str:
        return f"Containing({self.items!r})"


class ProduceRecorder(Middleware):
    """The innermost middleware: records what the server accepted, as the application sent it.

    `change` is applied to each message after recording.
    """

    def __init__(self, change: Callable[[Outgoing], Outgoing]) -> None:
        self.messages: list[Outgoing] = []
        self._change = change

    async def produce(self, messages: Sequence[Outgoing], call_next: Produce) -> list[str]:
        sent = [
            replace(message, payload=_json_form(message.payload), headers=dict(message.headers))
            for message in messages
        ]
        ids = await call_next([self._change(message) for message in messages])
        self.messages += [replace(one, id=id) for one, id in zip(sent, ids, strict=True)]
        return ids


def assert_produced(
    mq: MessageQueue, topic: str, payload: Any = ANY, *, times: int | None = None, **options: Any
) -> list[Outgoing]:
    """Fail unless this was produced, at least once or exactly `times` times; return what was.

    Payloads are compared by their JSON form. Options are those of `produce`; options that you leave
    out match anything. ANY and Containing can replace a value, also inside a dict or a list.
    """
    __tracebackhide__ = True
    found = _matching(mq, topic, payload, options)
    if len(found) == times or (times is None and found):
        return found
    happened = f"produced {_times(len(found))}" if found else "never produced"
    wanted = "" if times is None else f", not {_times(times)}"
    asked = _asked(topic, payload, options)
    raise AssertionError(f"{asked} was {happened}{wanted}{_seen(mq, topic)}")


def assert_not_produced(mq: MessageQueue, topic: str, payload: Any = ANY, **options: Any) -> None:
    """Fail if a matching message was produced; payload and options as in `assert_produced`."""
    __tracebackhide__ = True
    if found := _matching(mq, topic, payload, options):
        asked = _asked(topic, payload, options)
        raise AssertionError(f"{asked} was produced {_times(len(found))}{_seen(mq, topic)}")


def produced(mq: MessageQueue, topic: str | None = None) -> list[Outgoing]:
    """Return the messages produced in test mode, to one topic or to all, in order.

    Payloads are JSON values, and ids are set. Messages of crons and operators are not included.
    """
    __tracebackhide__ = True
    for one in reversed(mq.middleware):
        if isinstance(one, ProduceRecorder):
            return [message for message in one.messages if topic in (None, message.topic)]
    raise InvalidInput("the queue is not in test mode: put `with testing.use(mq):` around this")


def _matching(
    mq: MessageQueue, topic: str, payload: Any, options: dict[str, Any]
) -> list[Outgoing]:
    __tracebackhide__ = True
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"{name!r} is not an option of produce: {', '.join(OPTIONS)}")
    payload = _json_form(payload)
    wanted = {name: _option_form(name, value) for name, value in options.items()}
    return [
        message
        for message in produced(mq, topic)
        if payload == message.payload
        and all(
            value == _option_form(name, getattr(message, name)) for name, value in wanted.items()
        )
    ]


def _json_form(value: Any) -> Any:
    """Return the JSON value that a worker would decode; objects without one, such as ANY, stay."""
    try:
        return msgspec.json.decode(encode_payload(value, limit=2**63))
    except InvalidInput:
        if isinstance(value, dict):
            return {next(iter(_json_form({key: 0}))): _json_form(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [_json_form(one) for one in value]
        return value


def _option_form(name: str, value: Any) -> Any:
    """Return an option of produce in one form, so that equal values compare equal."""
    if name == "at" and isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if name == "retry" and value is not None:
        try:
            return as_dict(policy_of(value))
        except InvalidInput:  # ANY, for example
            return value
    return _json_form(value)


# the text of a failure


def _asked(topic: str, payload: Any, options: dict[str, Any]) -> str:
    asked = [] if payload is ANY else [f"payload {payload!r}"]
    asked += [f"{name}={value!r}" for name, value in options.items()]
    return f"{topic!r}" + (f" with {', '.join(asked)}" if asked else "")


def _seen(mq: MessageQueue, topic: str) -> str:
    """Return what was produced instead."""
    messages = produced(mq, topic)
    lines = ["", f"Produced to {topic!r}: {len(messages) or 'nothing'}"]
    for number, message in enumerate(messages[:SHOWN], 1):
        shown = f"  {number}. {message.payload!r:.{WIDTH}}"
        lines.append("  ".join([shown, *_unusual(message)]))
    if len(messages) > SHOWN:
        lines.append(f"  and {len(messages) - SHOWN} more")
    others = Counter(message.topic for message in produced(mq) if message.topic != topic)
    each = ", ".join(f"{name!r} {count}" for name, count in others.items())
    return "\n".join([*lines, f"Produced to other topics: {each or 'nothing'}"])


def _unusual(message: Outgoing) -> Iterator[str]:
    """Yield the options that differ from produce's defaults."""
    usual = {known.name: known.default for known in fields(message)} | {"headers": {}}
    for name in OPTIONS[1:]:  # the id is always set
        value = getattr(message, name)
        if value != usual[name]:
            yield f"{name}={value!r}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
