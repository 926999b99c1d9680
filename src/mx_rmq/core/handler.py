"""A handler: a function, its topic, the type of its payload and its policy.

Registering a handler validates everything: its signature, its options and its payload type.
"""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypedDict,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from mx_rmq.core.delivery import Delivery
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.names import check_topic
from mx_rmq.core.partition import check_partitions
from mx_rmq.core.payload import Decode, decoder
from mx_rmq.core.retry import MAX_DELAY, Exponential, Policy, policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_CRASHES: Final = 3  # crashes after which a message is dead, unless the handler overrides it

_DEFAULT_RETRY: Final = Exponential()
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class CronOptions(TypedDict, total=False):
    """Options of `mq.handler` and `mq.cron`. `Handler` says what they mean, and their defaults."""

    timeout: float | None
    max_attempts: int
    max_crashes: int
    retry: Any


class HandlerOptions(CronOptions, total=False):
    """The options of `mq.handler`, with those of `CronOptions`."""

    concurrency: int | None
    partitions: int | None
    result_ttl: float | None


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
    concurrency: int | None = None  # messages at a time per worker; None: the worker's own limit
    timeout: float | None = None  # seconds for one attempt; None: no limit
    max_attempts: int = 5  # failed attempts after which a message is dead
    max_crashes: int = MAX_CRASHES  # worker crashes after which a message is dead
    retry: Policy = _DEFAULT_RETRY  # when the next attempt comes
    partitions: int | None = None  # minimum for the topic; None: not declared here
    result_ttl: float | None = None
    """Seconds for which its results are kept; None: not at all."""

    @property
    def ordered(self) -> bool:
        """Whether the messages of a partition are handled one at a time across all workers."""
        return self.partitions is not None and self.concurrency == 1

    @classmethod
    def of(
        cls,
        topic: str,
        function: Callable[..., Any],
        *,
        names: Mapping[str, Any] | None = None,
        cron: bool = False,
        **options: Unpack[HandlerOptions],
    ) -> Handler:
        """Make a handler of a function, or refuse it. `names`: its local namespace."""
        check_topic(topic)
        if not callable(function) or inspect.isclass(function):
            raise _refused(f"{function!r:.80} of topic {topic!r}", "is not a function", cron)
        chain = _chain(function)
        name = _name(chain)
        shape = _shape(function, name, topic, cron, names or {})
        where = f"handler {name} of topic {topic!r}"
        return cls(
            topic=topic,
            function=function,
            name=name,
            is_async=any(inspect.iscoroutinefunction(_called(link)) for link in chain),
            wants_payload=not cron,
            wants_delivery=shape.delivery,
            delivery_first=shape.delivery_first,
            payload_type=shape.payload_type,
            decode=decoder(shape.payload_type, where),
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
    delivery: bool
    delivery_first: bool


def _shape(
    function: Callable[..., Any], name: str, topic: str, cron: bool, names: Mapping[str, Any]
) -> _Shape:
    """Read a signature, or refuse it."""
    try:
        signature = _signature(function)
    except (TypeError, ValueError) as error:
        title = f"{name}(…) of topic {topic!r}"
        raise _refused(title, "its signature cannot be inspected", cron) from error
    shown = ", ".join(map(_shown, signature.parameters.values()))
    title = f"{name}({shown}) of topic {topic!r}"
    runs = _called(function)
    if inspect.isgeneratorfunction(runs) or inspect.isasyncgenfunction(runs):
        raise _refused(title, "is a generator function: calling it would not run it", cron)
    places: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind in _VARIADIC:
            raise _refused(title, f"takes {_shown(parameter)}", cron)
        resolved = parameter.replace(annotation=_hint(parameter, title, function, names))
        if parameter.kind is not parameter.KEYWORD_ONLY:
            places.append(resolved)
        elif _is_needed(resolved) or _is_delivery(resolved):
            raise _refused(
                title, f"{parameter.name} is keyword-only; handlers are called by position", cron
            )
    deliveries = [place for place in places if _is_delivery(place)]
    payloads = [place for place in places if not _is_delivery(place)]
    payloads = [place for place in payloads if _is_needed(place)] or payloads[: 0 if cron else 1]
    if len(payloads) != (0 if cron else 1):
        count = f"{len(payloads) or 'no'} payload parameter{'' if len(payloads) == 1 else 's'}"
        raise _refused(title, f"takes {count}", cron)
    if len(deliveries) > 1:
        raise _refused(title, f"takes {len(deliveries)} parameters annotated Delivery", cron)
    taken = payloads + deliveries
    for place in places[len(taken) :]:
        if place in taken:
            raise _refused(title, f"{place.name} comes after a parameter with a default", cron)
    return _Shape(
        payload_type=payloads[0].annotation if payloads else Any,
        delivery=bool(deliveries),
        delivery_first=bool(deliveries) and places[0] is deliveries[0],
    )


def _refused(title: str, why: str, cron: bool) -> InvalidInput:
    who, payload = ("a cron handler", "no") if cron else ("a handler", "one")
    return InvalidInput(
        f"handler {title}: {why}; "
        f"{who} takes {payload} payload, and may take one parameter annotated Delivery"
    )


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # annotations are evaluated lazily: here, not by the signature
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def _hint(parameter: inspect.Parameter, title: str, function: Any, names: Mapping[str, Any]) -> Any:
    """Return a parameter's annotation, resolved if it is a text."""
    if parameter.annotation is parameter.empty:
        return Any
    around = getattr(_called(_chain(function)[-1]), "__globals__", {})
    around = {"Delivery": Delivery, **around}  # it may be imported under TYPE_CHECKING only

    def probe() -> None: ...

    probe.__annotations__ = {"hint": parameter.annotation}
    try:
        return get_type_hints(probe, around, dict(names), include_extras=True)["hint"]
    except Exception as error:  # the text of an annotation may hold any expression
        raise InvalidInput(
            f"handler {title}: the annotation {parameter.annotation!r:.80} of {parameter.name} "
            f"cannot be resolved: {error}"
        ) from error


def _is_delivery(parameter: inspect.Parameter) -> bool:
    hint = parameter.annotation
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        return set(get_args(hint)) == {Delivery, NoneType}
    return hint is Delivery


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty


def _shown(parameter: inspect.Parameter) -> str:
    stars = _VARIADIC.index(parameter.kind) + 1 if parameter.kind in _VARIADIC else 0
    return "*" * stars + parameter.name


def _chain(function: Any) -> list[Any]:
    """Return what is called and what it wraps in turn, by partial or functools.wraps."""
    chain = [function]
    while len(chain) < sys.getrecursionlimit():  # a wrapper may claim to wrap itself
        inside = getattr(function, "func" if _is_partial(function) else "__wrapped__", None)
        if inside is None:
            break
        chain.append(function := inside)
    return chain


def _called(link: Any) -> Any:
    """Return the function that runs when this is called."""
    while _is_partial(link):
        link = link.func
    return link if inspect.isroutine(link) else type(link).__call__


def _is_partial(link: Any) -> bool:
    return isinstance(link, functools.partial)


def _name(chain: list[Any]) -> str:
    named = next((link for link in chain if hasattr(link, "__qualname__")), type(chain[-1]))
    return f"{named.__module__}.{named.__qualname__}"


# the options


def _checked(where: str, name: str, value: Any) -> Any:
    """Return an option's normalized value, or refuse it."""
    if name == "retry" and value is None:
        return _DEFAULT_RETRY
    if value is None and name in ("concurrency", "timeout", "partitions", "result_ttl"):
        return None
    try:
        if name == "retry":
            return policy_of(value)
        if name == "partitions":
            return check_partitions(value)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in ("timeout", "result_ttl"):
        if number and 0 < value < MAX_DELAY:
            return float(value)
        rule = "is not a number of seconds above 0 (to 10 years)"
    else:
        if number and isinstance(value, int) and 1 <= value < 2**52:
            return value
        rule = "is not a whole number of at least 1"
    raise InvalidInput(f"{where}: {name}={value!r:.80} {rule}")
