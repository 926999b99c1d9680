"""A handler: a function, its topic, the type of its payload and its policy.

Registering a handler validates everything: its signature, its options and its payload type.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, Unpack

from mx_rmq.core import signature
from mx_rmq.core.dependencies import (
    DELIVERY,
    PAYLOAD,
    Dependencies,
    Depends,
    depends_of,
    read_dependencies,
)
from mx_rmq.core.durations import SHORTEST, Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.limits import Limit, declared
from mx_rmq.core.names import check_topic
from mx_rmq.core.partition import check_partitions
from mx_rmq.core.payload import Decode, decoder, type_name
from mx_rmq.core.retry import Exponential, Policy, policy_of
from mx_rmq.core.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.retry import RetryOption

MAX_CRASHES: Final = 3  # crashes after which a message is dead, unless the handler overrides it

_ANNOTATED: Final[Any] = object()  # the payload's type is its annotation
_DEFAULT_RETRY: Final = Exponential()
_MAY_BE_NONE: Final = (
    "concurrency",
    "timeout",
    "ttl",
    "partitions",
    "result_ttl",
    "limit",
    "per_key",
)


class CronOptions(TypedDict, total=False):
    """Options of `mq.handler` and `mq.cron`. `Handler` says what they mean, and their defaults."""

    timeout: Seconds | None
    ttl: Seconds | None
    max_attempts: int
    max_crashes: int
    retry: RetryOption
    limit: Limit | None


class HandlerOptions(CronOptions, total=False):
    """The options of `mq.handler`, with those of `CronOptions`."""

    concurrency: int | None
    partitions: int | None
    result_ttl: Seconds | None
    per_key: Limit | None


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """The function that handles the messages of a topic, and its options."""

    topic: str
    function: Callable[..., Any]
    name: str  # module and qualified name of the function
    is_async: bool  # any other function is called in a thread
    wants_payload: bool  # false only for cron
    wants_delivery: bool
    delivery_first: bool  # true if the Delivery comes before the payload
    payload_type: Any  # the payload's annotation; Any: the decoded JSON, unchanged
    decode: Decode
    dependencies: Dependencies | None = None  # None: it has no parameters with Depends
    concurrency: int | None = None  # messages at a time per worker; None: the worker's own limit
    timeout: float | None = None  # seconds for one attempt; None: no limit
    ttl: float | None = None  # seconds until a message without its own ttl expires; None: never
    max_attempts: int = 5  # failed attempts after which a message is dead
    max_crashes: int = MAX_CRASHES  # worker crashes after which a message is dead
    retry: Policy = _DEFAULT_RETRY  # when the next attempt comes
    partitions: int | None = None  # minimum for the topic; None: not declared here
    result_ttl: float | None = None
    """Seconds for which its results are kept; None: not at all."""
    limit: Limit | None = None  # of the topic, over all workers
    per_key: Limit | None = None  # of each key, over all workers

    @property
    def place(self) -> str:
        """Its name with the file and line of the function: `shop.mail.send (shop/mail.py:12)`."""
        function = signature.called(signature.chain(self.function)[-1])
        code = getattr(function, "__code__", None)
        if code is None:
            return self.name
        parts = code.co_filename.split("/")
        folders = f"{function.__module__}".count(".") + (parts[-1] == "__init__.py")
        return f"{self.name} ({'/'.join(parts[-1 - folders :])}:{code.co_firstlineno})"

    @property
    def ordered(self) -> bool:
        """Whether the messages of a partition are handled one at a time across all workers."""
        return self.partitions is not None and self.concurrency == 1

    def limits_of(self, number: int, parts: int) -> str:
        """Return the limits of a partition as the server gets them; empty: none. See `declared`."""
        return declared(self.limit, self.per_key, number, parts)

    @property
    def ttl_ms(self) -> int | None:
        return None if self.ttl is None else round(self.ttl * 1000)

    @property
    def result_ttl_ms(self) -> int | None:
        return None if self.result_ttl is None else ceil(self.result_ttl * 1000)

    @classmethod
    def of(
        cls,
        topic: str,
        function: Callable[..., Any],
        *,
        names: Mapping[str, Any] | None = None,
        cron: bool = False,
        payload_type: Any = _ANNOTATED,
        result_type: Any = Any,
        **options: Unpack[HandlerOptions],
    ) -> Handler:
        """Make a handler of a function, or refuse it.

        `names` is its local namespace. `payload_type` and `result_type` are those of a typed topic;
        without it, the payload's annotation decides.
        """
        check_topic(topic)
        if not callable(function) or inspect.isclass(function):
            raise _refused(f"{function!r:.80} of topic {topic!r}", "is not a function", cron)
        links = signature.chain(function)
        name = signature.name_of(links)
        is_async = any(inspect.iscoroutinefunction(signature.called(link)) for link in links)
        shape = _shape(function, name, topic, cron, names or {})
        where = f"handler {name} of topic {topic!r}"
        if payload_type is _ANNOTATED:
            payload_type = shape.payload_type
        elif not _accepts(shape.payload_type, payload_type):
            raise InvalidInput(
                f"{where}: it takes {type_name(shape.payload_type)}, "
                f"but the topic's payload is {type_name(payload_type)}"
            )
        if shape.result_type is not Any and not _accepts(result_type, shape.result_type):
            raise InvalidInput(
                f"{where}: it returns {type_name(shape.result_type)}, "
                f"but the topic's result is {type_name(result_type)}"
            )
        return cls(
            topic=topic,
            function=function,
            name=name,
            is_async=is_async,
            wants_payload=not cron,
            wants_delivery=shape.delivery,
            delivery_first=shape.delivery_first,
            payload_type=payload_type,
            decode=decoder(payload_type, where),
            dependencies=read_dependencies(where, is_async, shape.parameters, names or {}),
            **{name: _checked(where, name, value) for name, value in options.items()},
        )

    def arguments(self, payload: Any, delivery: Delivery | None) -> tuple[Any, ...]:
        if not self.wants_delivery:
            return (payload,) if self.wants_payload else ()
        if not self.wants_payload:
            return (delivery,)
        return (delivery, payload) if self.delivery_first else (payload, delivery)


# the function


class _Shape(NamedTuple):
    """The parameters that a signature asks for."""

    payload_type: Any
    result_type: Any
    delivery: bool
    delivery_first: bool
    parameters: list[tuple[inspect.Parameter, Depends | int | None]]  # with their sources


def _shape(
    function: Callable[..., Any], name: str, topic: str, cron: bool, names: Mapping[str, Any]
) -> _Shape:
    """Read a signature, or refuse it."""
    try:
        declared = signature.of(function)
    except (TypeError, ValueError) as error:
        title = f"{name}(…) of topic {topic!r}"
        raise _refused(title, "its signature cannot be inspected", cron) from error
    listed = ", ".join(map(signature.shown, declared.parameters.values()))
    title = f"{name}({listed}) of topic {topic!r}"
    runs = signature.called(function)
    if inspect.isgeneratorfunction(runs) or inspect.isasyncgenfunction(runs):
        raise _refused(title, "is a generator function: calling it would not run it", cron)
    places: list[inspect.Parameter] = []
    sources: dict[str, Depends | int | None] = {}
    for parameter in declared.parameters.values():
        if parameter.kind in signature.VARIADIC:
            raise _refused(title, f"takes {signature.shown(parameter)}", cron)
        annotation = signature.hint(parameter, f"handler {title}", function, names)
        resolved = parameter.replace(annotation=annotation)
        depends = sources[parameter.name] = depends_of(resolved, f"handler {title}")
        if depends is not None:
            continue
        if parameter.kind is not parameter.KEYWORD_ONLY:
            places.append(resolved)
        elif signature.is_needed(resolved) or signature.is_delivery(resolved):
            raise _refused(
                title, f"{parameter.name} is keyword-only; handlers are called by position", cron
            )
    deliveries = [place for place in places if signature.is_delivery(place)]
    payloads = [place for place in places if not signature.is_delivery(place)]
    needed = [place for place in payloads if signature.is_needed(place)]
    payloads = needed or payloads[: 0 if cron else 1]
    if len(payloads) != (0 if cron else 1):
        count = f"{len(payloads) or 'no'} payload parameter{'' if len(payloads) == 1 else 's'}"
        raise _refused(title, f"takes {count}", cron)
    if len(deliveries) > 1:
        raise _refused(title, f"takes {len(deliveries)} parameters annotated Delivery", cron)
    taken = payloads + deliveries
    sources |= {place.name: PAYLOAD for place in payloads}
    sources |= {place.name: DELIVERY for place in deliveries}
    for place in places[len(taken) :]:
        if place in taken:
            raise _refused(title, f"{place.name} comes after a parameter with a default", cron)
    return _Shape(
        payload_type=payloads[0].annotation if payloads else Any,
        result_type=signature.returned(declared, function, names),
        delivery=bool(deliveries),
        delivery_first=bool(deliveries) and places[0] is deliveries[0],
        parameters=[(one, sources[name]) for name, one in declared.parameters.items()],
    )


def _refused(title: str, why: str, cron: bool) -> InvalidInput:
    who, payload = ("a cron handler", "no") if cron else ("a handler", "one")
    return InvalidInput(
        f"handler {title}: {why}; "
        f"{who} takes {payload} payload, and may take one parameter annotated Delivery "
        "and others with Depends"
    )


def _accepts(wanted: Any, given: Any) -> bool:
    """Return whether a value of one type fits where another is wanted; True if it is unclear."""
    if wanted in (Any, given):
        return True
    if not isinstance(wanted, type) or not isinstance(given, type):
        return True
    try:
        return issubclass(given, wanted) or (wanted, given) == (float, int)
    except TypeError:  # a Protocol or a TypedDict
        return True


# the options


def _checked(where: str, name: str, value: Any) -> Any:
    """Return an option's normalized value, or refuse it."""
    if name == "retry" and value is None:
        return _DEFAULT_RETRY
    if value is None and name in _MAY_BE_NONE:
        return None
    if name in ("limit", "per_key"):
        return _checked_limit(where, name, value)
    try:
        if name == "retry":
            return policy_of(value)
        if name == "partitions":
            return check_partitions(value)
        if name in ("timeout", "ttl", "result_ttl"):
            return as_seconds(f"{name}=", value, SHORTEST)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**52:
        return value
    raise InvalidInput(f"{where}: {name}={value!r:.80} is not a whole number of at least 1")


def _checked_limit(where: str, name: str, value: Any) -> Limit:
    if not isinstance(value, Limit):
        raise InvalidInput(
            f'{where}: {name}={shown(value)} is not a Limit, such as Limit(running=10, rate="50/s")'
        )
    if value.overtake and name == "limit":
        raise InvalidInput(f"{where}: overtake=True belongs to per_key: only keys have lines")
    return value
