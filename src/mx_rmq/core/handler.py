"""A handler: a function, its topic, the type of its payload and its policy.

Registering a handler validates everything: its signature, its options and its payload type.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from math import ceil
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    TypedDict,
    Union,
    Unpack,
    get_args,
    get_origin,
)

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
from mx_rmq.core.names import check_subscription, check_topic
from mx_rmq.core.partition import check_partitions
from mx_rmq.core.payload import Decode, decoder, type_name
from mx_rmq.core.retry import Exponential, Policy, policy_of
from mx_rmq.core.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mx_rmq.core.batch import Batch
    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.retry import RetryOption

MAX_CRASHES: Final = 3  # crashes after which a message is dead, unless the handler overrides it
MAX_BATCH: Final = 10_000  # messages of one call: the event loop decodes them in one go
LONGEST_LINGER: Final = 3600.0  # seconds

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
    "batch",
    "linger",
)


class CronOptions(TypedDict, total=False):
    """Options of `mq.handler` and `mq.cron`. `Handler` says what they mean, and their defaults."""

    timeout: Seconds | None
    ttl: Seconds | None
    max_attempts: int
    max_crashes: int
    retry: RetryOption
    limit: Limit | None


class MessageOptions(CronOptions, total=False):
    """The options of handlers that take one message per call, with those of `CronOptions`."""

    concurrency: int | None
    partitions: int | None
    result_ttl: Seconds | None
    per_key: Limit | None
    subscription: str | None


class HandlerOptions(MessageOptions, total=False):
    """The options of `mq.handler`, with those of `MessageOptions`."""

    batch: int | None
    linger: Seconds | None


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """The function that handles the messages of a topic or a subscription, and its options."""

    topic: str  # of a subscription: topic@name
    function: Callable[..., Any]
    name: str  # module and qualified name of the function
    is_async: bool  # any other function is called in a thread
    wants_payload: bool  # false only for cron
    wants_delivery: bool  # or the Batch, if it is a batch handler
    delivery_first: bool  # true if that comes before the payload
    payload_type: Any  # of one payload, as annotated; Any: the decoded JSON, unchanged
    decode: Decode
    dependencies: Dependencies | None = None  # None: it has no parameters with Depends
    concurrency: int | None = None  # calls at a time per worker; None: the worker's own limit
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
    subscription: str | None = None  # None: it gets the topic's messages themselves
    batch: int | None = None  # messages per call, at most; None: it is called with one
    linger: float | None = None  # seconds to wait for a full batch; None: it does not wait

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
        subscription = options.pop("subscription", None)
        if subscription is not None:
            topic = f"{topic}@{check_subscription(subscription)}"
        if not callable(function) or inspect.isclass(function):
            raise _refused(f"{function!r:.80} of topic {topic!r}", "is not a function", cron)
        links = signature.chain(function)
        name = signature.name_of(links)
        is_async = any(inspect.iscoroutinefunction(signature.called(link)) for link in links)
        where = f"handler {name} of topic {topic!r}"
        checked = {name: _checked(where, name, value) for name, value in options.items()}
        batch = checked.get("batch") is not None
        if checked.get("linger") is not None and not batch:
            raise InvalidInput(f"{where}: linger={options['linger']!r:.80} needs batch=")
        shape = _shape(function, name, topic, cron, batch, names or {})
        if payload_type is _ANNOTATED:
            payload_type = shape.payload_type
        elif not _accepts(shape.payload_type, payload_type):
            raise InvalidInput(
                f"{where}: it takes {type_name(shape.payload_type)}, "
                f"but the topic's payload is {type_name(payload_type)}"
            )
        fits = _accepts_list if batch else _accepts
        if shape.result_type is not Any and not fits(result_type, shape.result_type):
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
            dependencies=read_dependencies(where, is_async, batch, shape.parameters, names or {}),
            subscription=subscription,
            **checked,
        )

    def arguments(self, payload: Any, delivery: Delivery | Batch | None) -> tuple[Any, ...]:
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
    function: Callable[..., Any],
    name: str,
    topic: str,
    cron: bool,
    batch: bool,
    names: Mapping[str, Any],
) -> _Shape:
    """Read a signature, or refuse it."""
    given, other = (signature.is_batch, signature.is_delivery)[:: 1 if batch else -1]
    word, unwanted = ("Batch", "Delivery") if batch else ("Delivery", "Batch")
    try:
        declared = signature.of(function)
    except (TypeError, ValueError) as error:
        title = f"{name}(…) of topic {topic!r}"
        raise _refused(title, "its signature cannot be inspected", cron, batch) from error
    listed = ", ".join(map(signature.shown, declared.parameters.values()))
    title = f"{name}({listed}) of topic {topic!r}"
    runs = signature.called(function)
    if inspect.isgeneratorfunction(runs) or inspect.isasyncgenfunction(runs):
        raise _refused(title, "is a generator function: calling it would not run it", cron, batch)
    places: list[inspect.Parameter] = []
    sources: dict[str, Depends | int | None] = {}
    for parameter in declared.parameters.values():
        if parameter.kind in signature.VARIADIC:
            raise _refused(title, f"takes {signature.shown(parameter)}", cron, batch)
        annotation = signature.hint(parameter, f"handler {title}", function, names)
        resolved = parameter.replace(annotation=annotation)
        depends = sources[parameter.name] = depends_of(resolved, f"handler {title}")
        if depends is not None:
            continue
        if parameter.kind is not parameter.KEYWORD_ONLY:
            places.append(resolved)
        elif signature.is_needed(resolved) or given(resolved):
            raise _refused(
                title,
                f"{parameter.name} is keyword-only; handlers are called by position",
                cron,
                batch,
            )
    for place in filter(other, places):
        why = "a batch handler has a Batch" if batch else "only a handler with batch= has one"
        raise _refused(title, f"{place.name} is a {unwanted}: {why}", cron, batch)
    deliveries = [place for place in places if given(place)]
    payloads = [place for place in places if not given(place)]
    needed = [place for place in payloads if signature.is_needed(place)]
    payloads = needed or payloads[: 0 if cron else 1]
    if len(payloads) != (0 if cron else 1):
        count = f"{len(payloads) or 'no'} payload parameter{'' if len(payloads) == 1 else 's'}"
        raise _refused(title, f"takes {count}", cron, batch)
    if len(deliveries) > 1:
        raise _refused(title, f"takes {len(deliveries)} parameters annotated {word}", cron, batch)
    taken = payloads + deliveries
    sources |= {place.name: PAYLOAD for place in payloads}
    sources |= {place.name: DELIVERY for place in deliveries}
    for place in places[len(taken) :]:
        if place in taken:
            raise _refused(
                title, f"{place.name} comes after a parameter with a default", cron, batch
            )
    payload_type = payloads[0].annotation if payloads else Any
    if batch and (payload_type := signature.item_type(payload_type)) is None:
        annotated = f"annotated as {type_name(payloads[0].annotation)}, not as a list"
        raise _refused(title, f"{payloads[0].name} is {annotated}", cron, batch)
    return _Shape(
        payload_type=payload_type,
        result_type=signature.returned(declared, function, names),
        delivery=bool(deliveries),
        delivery_first=bool(deliveries) and places[0] is deliveries[0],
        parameters=[(one, sources[name]) for name, one in declared.parameters.items()],
    )


def _refused(title: str, why: str, cron: bool, batch: bool = False) -> InvalidInput:
    who, payload, also = "a handler", "one payload", "Delivery"
    if cron:
        who, payload = "a cron handler", "no payload"
    elif batch:
        who, payload, also = "a batch handler", "a list of payloads", "Batch"
    return InvalidInput(
        f"handler {title}: {why}; "
        f"{who} takes {payload}, and may take one parameter annotated {also} "
        "and others with Depends"
    )


def _accepts_list(wanted: Any, given: Any) -> bool:
    """Return whether a batch handler that returns `given` returns results of this type."""
    if given is NoneType:
        return True
    if isinstance(given, UnionType) or get_origin(given) is Union:
        return all(_accepts_list(wanted, one) for one in get_args(given))
    if (item := signature.item_type(given)) is not None:
        return item is Any or _accepts(wanted, item)
    return not isinstance(given, type)  # else it is clear that it is no list


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
        if name == "linger":
            return as_seconds("linger=", value, most=LONGEST_LINGER)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error
    most = MAX_BATCH if name == "batch" else 2**52 - 1
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
        return value
    rule = f"from 1 to {MAX_BATCH:,}" if name == "batch" else "of at least 1"
    raise InvalidInput(f"{where}: {name}={value!r:.80} is not a whole number {rule}")


def _checked_limit(where: str, name: str, value: Any) -> Limit:
    if not isinstance(value, Limit):
        raise InvalidInput(
            f'{where}: {name}={shown(value)} is not a Limit, such as Limit(running=10, rate="50/s")'
        )
    if value.overtake and name == "limit":
        raise InvalidInput(f"{where}: overtake=True belongs to per_key: only keys have lines")
    return value
