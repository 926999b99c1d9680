"""Records what was produced, and asserts about it."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.middleware import Middleware
from mx_rmq.core.outgoing import Outgoing, ProduceOptions
from mx_rmq.testing.compare import ANY, json_form, option_form

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mx_rmq.core.middleware import Produce
    from mx_rmq.queue import MessageQueue

OPTIONS: Final = ("id", *ProduceOptions.__annotations__, "key")
"""What can be asked of a produced message beside topic and payload."""

SHOWN: Final = 20
"""Number of messages that a failure lists."""

WIDTH: Final = 300
"""Number of characters that it shows of a payload."""


class ProduceRecorder(Middleware):
    """Records what the server accepted, as it left the application's last middleware."""

    def __init__(self) -> None:
        self.messages: list[Outgoing] = []

    async def produce(self, messages: Sequence[Outgoing], call_next: Produce) -> list[str]:
        """Send, then record."""
        seen = [
            replace(message, payload=json_form(message.payload), headers=dict(message.headers))
            for message in messages
        ]
        ids = await call_next(messages)
        self.messages += [replace(one, id=id) for one, id in zip(seen, ids, strict=True)]
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
    said = f"produced {_times(len(found))}" if found else "never produced"
    wanted = "" if times is None else f", not {_times(times)}"
    raise AssertionError(f"{_asked(topic, payload, options)} was {said}{wanted}" + _seen(mq, topic))


def assert_not_produced(mq: MessageQueue, topic: str, payload: Any = ANY, **options: Any) -> None:
    """Fail if a matching message was produced; payload and options as in `assert_produced`."""
    __tracebackhide__ = True
    if found := _matching(mq, topic, payload, options):
        said = f"{_asked(topic, payload, options)} was produced {_times(len(found))}"
        raise AssertionError(said + _seen(mq, topic))


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
            raise TypeError(f"{name!r} is no option of produce: {', '.join(OPTIONS)}")
    payload = json_form(payload)
    wanted = {name: option_form(name, value) for name, value in options.items()}
    return [
        message
        for message in produced(mq, topic)
        if payload == message.payload
        and all(
            value == option_form(name, getattr(message, name)) for name, value in wanted.items()
        )
    ]


# the text of a failure


def _asked(topic: str, payload: Any, options: dict[str, Any]) -> str:
    asked = [] if payload is ANY else [f"payload {payload!r}"]
    asked += [f"{name}={value!r}" for name, value in options.items()]
    return f"{topic!r}" + (f" with {', '.join(asked)}" if asked else "")


def _seen(mq: MessageQueue, topic: str) -> str:
    """Return what was produced instead."""
    messages = produced(mq, topic)
    lines = [f"Produced to {topic!r}: {len(messages) or 'nothing'}"]
    for number, message in enumerate(messages[:SHOWN], 1):
        shown = f"  {number}. {message.payload!r:.{WIDTH}}"
        lines.append("  ".join([shown, *_unusual(message)]))
    if len(messages) > SHOWN:
        lines.append(f"  and {len(messages) - SHOWN} more")
    others = Counter(message.topic for message in produced(mq) if message.topic != topic)
    told = ", ".join(f"{name!r} {count}" for name, count in others.items())
    lines.append(f"Produced to other topics: {told or 'nothing'}")
    return "\n" + "\n".join(lines)


def _unusual(message: Outgoing) -> Iterator[str]:
    """Yield the options that differ from produce's defaults."""
    usual = {known.name: known.default for known in fields(message)} | {"headers": {}}
    for name in OPTIONS[1:]:  # the id is always there
        value = getattr(message, name)
        if value != usual[name]:
            yield f"{name}={value!r}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
