"""Functions as handlers: what they may take, and how their payloads are decoded."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from math import inf, nan
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from mx_rmq.core import codec
from mx_rmq.core.delivery import Delivery
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.handler import Handler
from mx_rmq.core.limits import Limit, Rate
from mx_rmq.core.payload import unreadable
from mx_rmq.core.retry import ByError, Delays, Exponential

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]

    from mx_rmq.core.errors import DecodeError

HERE = __name__
REST = "may take one parameter annotated Delivery and others with Depends"
ONE = f"a handler takes one payload, and {REST}"
NONE = f"a cron handler takes no payload, and {REST}"

DELIVERY = Delivery(
    id="a",
    topic="t",
    payload=None,
    attempt=1,
    fence=1,
    headers={},
    created_at=0.0,
    deadline=None,
    extend=lambda seconds: None,
)


def handler(function: Any, **options: Any) -> Handler:
    return Handler.of("order.created", function, **options)


def undecodable(kind: Any, data: msgspec.Raw | bytes) -> DecodeError:
    taker = handler(taking(kind))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever a validator raises
        taker.decode(data)
    return unreadable(caught.value, taker.payload_type, msgspec.Raw(data))


def refused(function: Any, **options: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        handler(function, **options)
    return str(caught.value)


# what a function may take


async def coroutine(order: int) -> None: ...
def plain(order: int) -> None: ...
def bare(order): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - no annotation
def second(order: int, delivery: Delivery) -> None: ...
def first(delivery: Delivery, order: int) -> None: ...
def quoted(order: int, delivery: "Delivery") -> None: ...  # noqa: UP037 - a text in a text
def maybe(order: int, delivery: Delivery | None = None) -> None: ...
def noted(order: int, delivery: Annotated[Delivery, "a note"]) -> None: ...
def by_position(order: int, delivery: Delivery, /) -> None: ...
def spare(order: int, user: str = "x", *, loud: bool = False) -> None: ...
def spare_after(order: int, delivery: Delivery, user: str = "x") -> None: ...
def optional(order: int = 5) -> None: ...
def returns(order: int) -> Missing: ...


class Shop:
    async def ship(self, order: int, delivery: Delivery) -> None: ...

    @classmethod
    def of_class(cls, order: int) -> None: ...

    @staticmethod
    def of_nobody(order: int) -> None: ...


class Calls:
    def __call__(self, order: int) -> None: ...


class CallsAsync:
    async def __call__(self, order: int) -> None: ...


def two(order: int, user: str) -> None: ...


async def two_async(user: str, order: int) -> None: ...


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def wrapped_async(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Decorator:
    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)

    async def __call__(self, *args: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "name", "is_async", "arguments"),
    [
        (coroutine, "coroutine", True, "p"),
        (plain, "plain", False, "p"),
        (bare, "bare", False, "p"),
        (second, "second", False, "pd"),
        (first, "first", False, "dp"),
        (quoted, "quoted", False, "pd"),
        (maybe, "maybe", False, "pd"),
        (noted, "noted", False, "pd"),
        (by_position, "by_position", False, "pd"),
        (spare, "spare", False, "p"),
        (spare_after, "spare_after", False, "pd"),
        (optional, "optional", False, "p"),
        (returns, "returns", False, "p"),
        (Shop().ship, "Shop.ship", True, "pd"),
        (Shop.of_class, "Shop.of_class", False, "p"),
        (Shop.of_nobody, "Shop.of_nobody", False, "p"),
        (staticmethod(coroutine), "coroutine", True, "p"),
        (Calls(), "Calls", False, "p"),
        (CallsAsync(), "CallsAsync", True, "p"),
        (functools.partial(two, user="x"), "two", False, "p"),
        (functools.partial(two_async, "x"), "two_async", True, "p"),
        (functools.partial(functools.partial(two_async), "x"), "two_async", True, "p"),
        (functools.partial(Shop().ship), "Shop.ship", True, "pd"),
        (functools.partial(CallsAsync()), "CallsAsync", True, "p"),
        (wrapped(first), "first", False, "dp"),
        (wrapped(coroutine), "coroutine", True, "p"),
        (wrapped_async(plain), "plain", True, "p"),
        (wrapped(wrapped_async(plain)), "plain", True, "p"),
        (functools.partial(wrapped(coroutine)), "coroutine", True, "p"),
        (wrapped(functools.partial(two_async, "x")), None, True, "p"),
        (functools.lru_cache(plain), "plain", False, "p"),
        (Decorator(first), "first", True, "dp"),
        (lambda order: order, "<lambda>", False, "p"),
    ],
)
def test_a_function_that_takes_a_payload_is_a_handler(
    function: Any, name: str | None, is_async: bool, arguments: str
) -> None:
    made = handler(function)
    assert made.topic == "order.created"
    assert made.function is function
    assert name is None or made.name == f"{HERE}.{name}"
    assert made.is_async is is_async
    assert made.wants_payload
    assert made.wants_delivery == ("d" in arguments)
    assert made.delivery_first == arguments.startswith("d")
    expected = tuple({"p": 5, "d": DELIVERY}[which] for which in arguments)
    assert made.arguments(5, DELIVERY) == expected
    assert made.decode(b"5") == 5


def no_parameter() -> None: ...
def only_delivery(delivery: Delivery) -> None: ...
def many(*args: int) -> None: ...
def named(**kwargs: int) -> None: ...
def one_and_many(order: int, *rest: int) -> None: ...
def keyword(order: int, *, user: str) -> None: ...
def keyword_delivery(order: int, *, delivery: Delivery | None = None) -> None: ...
def keyword_payload(*, order: int = 1) -> None: ...
def two_deliveries(order: int, one: Delivery, two: Delivery) -> None: ...
def behind(order: int, user: str = "x", delivery: Delivery | None = None) -> None: ...
def generator(order: int) -> Any:
    yield order


async def async_generator(order: int) -> Any:
    yield order


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (two, f"two(order, user) of topic 'order.created': takes 2 payload parameters; {ONE}"),
        (
            no_parameter,
            f"no_parameter() of topic 'order.created': takes no payload parameters; {ONE}",
        ),
        (only_delivery, "only_delivery(delivery) of topic 'order.created': takes no payload"),
        (many, "many(*args) of topic 'order.created': takes *args; "),
        (named, "named(**kwargs) of topic 'order.created': takes **kwargs; "),
        (one_and_many, "one_and_many(order, *rest) of topic 'order.created': takes *rest; "),
        (keyword, "user is keyword-only; handlers are called by position; "),
        (keyword_delivery, "delivery is keyword-only; handlers are called by position; "),
        (keyword_payload, "takes no payload parameters; "),
        (two_deliveries, "takes 2 parameters annotated Delivery; "),
        (behind, "delivery comes after a parameter with a default; "),
        (generator, "generator(order) of topic 'order.created': is a generator function: calling"),
        (async_generator, "is a generator function: calling it would not run it; "),
        (functools.partial(generator), "is a generator function: calling it would not run it; "),
        (functools.partial(plain, 5), "takes no payload parameters; "),
        (functools.partial(two, order=5), "user is keyword-only; "),
        (Shop.ship, "takes 2 payload parameters; "),
        (Shop, "handler <class '" + HERE + ".Shop'> of topic 'order.created': is not a function; "),
        (CallsAsync, "is not a function; "),
        (5, "handler 5 of topic 'order.created': is not a function; "),
        (None, "handler None of topic"),
        ("x" * 1000, "is not a function; "),
        (Shop(), "is not a function; "),
        (vars(Shop)["of_class"], "is not a function; "),
        (print, "handler builtins.print(*args"),
    ],
)
def test_another_function_is_refused_and_the_error_says_what_is_expected(
    function: Any, expected: str
) -> None:
    text = refused(function)
    assert expected in text
    assert text.endswith(ONE)
    assert len(text) < 400


def test_a_function_whose_signature_is_a_riddle_is_refused() -> None:
    def riddle(order: int) -> None: ...

    riddle.__wrapped__ = riddle  # type: ignore[attr-defined]
    assert (
        f"riddle(…) of topic 'order.created': its signature cannot be inspected; {ONE}"
        in refused(riddle)
    )


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(no_parameter, ""), (only_delivery, "d"), (optional, ""), (keyword_payload, "")],
)
def test_a_cron_handler_takes_no_payload(function: Any, arguments: str) -> None:
    made = handler(function, cron=True)
    assert not made.wants_payload
    assert made.wants_delivery == made.delivery_first == bool(arguments)
    assert made.arguments(None, DELIVERY) == ((DELIVERY,) if arguments else ())


@pytest.mark.parametrize("function", [plain, two, first, many, generator, two_deliveries, Shop, 5])
def test_a_cron_handler_with_a_payload_is_refused(function: Any) -> None:
    assert refused(function, cron=True).endswith(NONE)


def test_handlers_are_told_apart_and_may_stand_in_a_set() -> None:
    assert len({handler(plain, retry={OSError: 1}), handler(plain, retry={OSError: 1})}) == 2


# annotations


def test_a_type_of_the_place_where_the_handler_stands_is_found() -> None:
    @dataclass
    class Local:
        id: int

    def ship(order: Local) -> None: ...

    assert handler(ship, names=locals()).decode(b'{"id":1}') == Local(1)
    assert "the annotation 'Local' of order cannot be resolved: name 'Local'" in refused(ship)


def test_a_local_name_goes_before_a_global_one() -> None:
    def ship(order: Order) -> None: ...

    assert handler(ship).payload_type is Order
    assert handler(ship, names={"Order": int}).payload_type is int


def missing(order: Missing) -> None: ...
def wrong(order: Order.nothing) -> None: ...  # type: ignore[name-defined]
def missing_beside(order: int, user: Missing = None) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (missing, "missing(order) of topic 'order.created': the annotation 'Missing' of order"),
        (wrong, "the annotation 'Order.nothing' of order cannot be resolved"),
        (missing_beside, "the annotation 'Missing' of user cannot be resolved"),
    ],
)
def test_an_annotation_that_cannot_be_resolved_is_refused_and_named(
    function: Any, expected: str
) -> None:
    assert expected in refused(function)


def test_delivery_may_be_imported_for_types_only() -> None:
    scope: dict[str, Any] = {}
    exec("def ship(order: 'int', delivery: 'Delivery | None'): ...", scope)
    assert handler(scope["ship"]).wants_delivery


def test_another_class_called_delivery_is_a_payload() -> None:
    @dataclass
    class Delivery:
        street: str

    def ship(parcel: Delivery) -> None: ...

    made = handler(ship, names=locals())
    assert made.decode(b'{"street":"x"}') == Delivery("x")
    assert not made.wants_delivery


# options


def test_the_options_are_those_of_the_contract_unless_given() -> None:
    made = handler(plain)
    assert (made.concurrency, made.timeout, made.max_attempts, made.max_crashes, made.retry) == (
        None,
        None,
        5,
        3,
        Exponential(),
    )
    made = handler(
        plain, concurrency=50, timeout=30, max_attempts=1, max_crashes=1, retry={OSError: [1, 2]}
    )
    assert (made.concurrency, made.timeout, made.max_attempts, made.max_crashes, made.retry) == (
        50,
        30.0,
        1,
        1,
        ByError({OSError: Delays((1, 2))}),
    )


@pytest.mark.parametrize("option", ["concurrency", "max_attempts", "max_crashes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "5", nan, 2**60])
def test_a_count_is_a_whole_number_from_1(option: str, value: Any) -> None:
    assert refused(plain, **{option: value}) == (
        f"handler {HERE}.plain of topic 'order.created': "
        f"{option}={value!r} is not a whole number of at least 1"
    )


@pytest.mark.parametrize("option", ["max_attempts", "max_crashes"])
def test_a_bound_cannot_be_taken_away(option: str) -> None:
    assert f"{option}=None is not a whole number" in refused(plain, **{option: None})


@pytest.mark.parametrize("value", [0, -1, inf, nan, True, "5"])
def test_a_timeout_is_a_finite_number_above_nought(value: Any) -> None:
    assert f"timeout={value!r} is not a number of seconds" in refused(plain, timeout=value)


def test_a_wrong_retry_policy_is_refused_where_it_stands() -> None:
    assert refused(plain, retry=[-1]).startswith(
        f"handler {HERE}.plain of topic 'order.created': retry delay -1 is not a number of seconds"
    )


def test_limits_are_declared_with_the_handler() -> None:
    made = handler(plain, limit=Limit(running=200, rate="50/s"), per_key=Limit(running=1))
    assert made.limits_of(0, 1) == "200 20 5 1 - - 0"
    assert made.limits_of(3, 4) == "50 80 1.25 1 - - 0"
    assert handler(plain, limit=None, per_key=None).limits_of(0, 1) == ""


@pytest.mark.parametrize("option", ["limit", "per_key"])
@pytest.mark.parametrize("value", [5, "50/s", Rate(5), Limit, {"running": 1}], ids=str)
def test_a_limit_is_a_limit(option: str, value: Any) -> None:
    assert refused(plain, **{option: value}) == (
        f"handler {HERE}.plain of topic 'order.created': {option}={value!r} is not a Limit, "
        'such as Limit(running=10, rate="50/s")'
    )


def test_only_the_messages_of_a_key_overtake_each_other() -> None:
    overtaking = Limit(running=1, overtake=True)
    assert handler(plain, per_key=overtaking).limits_of(0, 1) == "- - - 1 - - 1"
    assert refused(plain, limit=overtaking) == (
        f"handler {HERE}.plain of topic 'order.created': overtake=True belongs to per_key: only "
        "keys have lines"
    )


@pytest.mark.parametrize("topic", ["", "a b", "a@", "@b", "a@b@c", None, 5])
def test_a_wrong_topic_is_refused(topic: Any) -> None:
    with pytest.raises(InvalidInput, match=r"topic .* must consist of"):
        Handler.of(topic, plain)


def test_a_subscription_is_not_part_of_the_topic() -> None:
    with pytest.raises(InvalidInput, match=r"@mq.handler\('a', subscription='b'\)"):
        Handler.of("a@b", plain)
    declared = Handler.of("a", plain, subscription="b")
    assert (declared.topic, declared.subscription) == ("a@b", "b")
    assert Handler.of("a", plain).subscription is None
    with pytest.raises(InvalidInput, match="subscription 'b c' must consist of"):
        Handler.of("a", plain, subscription="b c")


# payload types


@dataclass
class Order:
    id: int
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.id == 13:
            raise ValueError("13 is bad luck")
        if self.id == 14:
            raise KeyError("fourteen")


@attrs.define
class Attrs:
    id: int


class Typed(TypedDict):
    id: int


class Named(NamedTuple):
    id: int


class Struct(msgspec.Struct):
    id: int
    next: Struct | None = None


class Colour(Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    id: int
    at: datetime | None = None


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    at: datetime


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    id: int = pydantic.Field(alias="orderId")

    @pydantic.computed_field  # type: ignore[prop-decorator]  # as Pydantic documents it
    @property
    def double(self) -> int:
        return self.id * 2


class Root(pydantic.RootModel[list[int]]):
    pass


@dataclass
class Basket:
    model: Model
    more: dict[str, list[Model]] = field(default_factory=dict)


class Picky(pydantic.BaseModel):
    id: int

    @pydantic.field_validator("id")
    @classmethod
    def check(cls, value: int) -> int:
        raise {1: ValueError, 2: KeyError, 3: RuntimeError}[value]("picky")


NOON = datetime(2024, 1, 2, 12, tzinfo=UTC)

DECODED: list[tuple[Any, bytes, Any]] = [
    (Any, b'{"a":[1,2.5,null,true]}', {"a": [1, 2.5, None, True]}),
    (object, b'{"a":[1]}', {"a": [1]}),
    (dict, b'{"a":1}', {"a": 1}),
    (dict[str, object], b'{"a":[1]}', {"a": [1]}),
    (list, b"[1]", [1]),
    (list[int], b"[1]", [1]),
    (str, b'"x"', "x"),
    (int, b"5", 5),
    (float, b"5", 5.0),
    (bool, b"true", True),
    (None, b"null", None),
    (int | None, b"null", None),
    (int | str, b'"x"', "x"),
    (Literal["a", "b"], b'"b"', "b"),
    (Annotated[int, msgspec.Meta(gt=0)], b"1", 1),
    (msgspec.Raw, b"[1]", msgspec.Raw(b"[1]")),
    (Order, b'{"id":1,"tags":["x"],"extra":1}', Order(1, ["x"])),
    (list[Order], b'[{"id":1}]', [Order(1)]),
    (Attrs, b'{"id":1}', Attrs(1)),
    (Typed, b'{"id":1}', {"id": 1}),
    (Named, b"[1]", Named(1)),
    (Struct, b'{"id":1,"next":{"id":2}}', Struct(1, Struct(2))),
    (Colour, b'"red"', Colour.RED),
    (datetime, b'"2024-01-02T12:00:00Z"', NOON),
    (date, b'"2024-01-02"', date(2024, 1, 2)),
    (Decimal, b'"1.50"', Decimal("1.50")),
    (UUID, b'"12345678-1234-5678-1234-567812345678"', UUID("12345678123456781234567812345678")),
    (set[int], b"[1,2]", {1, 2}),
    (Model, b'{"id":1,"at":"2024-01-02T12:00:00Z"}', Model(id=1, at=NOON)),
    (Model | None, b'{"id":1}', Model(id=1)),
    (Model | None, b"null", None),
    (list[Model], b'[{"id":1}]', [Model(id=1)]),
    (
        Basket,
        b'{"model":{"id":1},"more":{"a":[{"id":2}]}}',
        Basket(Model(id=1), {"a": [Model(id=2)]}),
    ),
    (Strict, b'{"at":"2024-01-02T12:00:00Z"}', Strict(at=NOON)),
    (list[Strict], b'[{"at":"2024-01-02T12:00:00Z"}]', [Strict(at=NOON)]),
    (Root, b"[1,2]", Root([1, 2])),
    (Aliased, b'{"orderId":1}', Aliased(orderId=1)),
]


def taking(kind: Any) -> Callable[..., None]:
    def ship(order: Any) -> None: ...

    ship.__annotations__ = {"order": kind}
    return ship


@pytest.mark.parametrize(("kind", "data", "expected"), DECODED, ids=itertools.count())
def test_a_payload_becomes_what_the_annotation_says(kind: Any, data: bytes, expected: Any) -> None:
    decode = handler(taking(kind)).decode
    for given in (data, msgspec.Raw(data)):
        found = decode(given)
        assert found == expected
        assert type(found) is type(expected)


@pytest.mark.parametrize(("kind", "data", "expected"), DECODED, ids=itertools.count())
def test_what_is_produced_comes_back_as_it_was(kind: Any, data: bytes, expected: Any) -> None:
    produced = codec.encode_payload(expected, 1000)
    assert handler(taking(kind)).decode(produced) == expected


class Unknown:
    pass


@dataclass
class Holds:
    inner: list[Unknown]


@dataclass
class Dangling:
    inner: Missing


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Unknown, f"no payload can be decoded as {HERE}.Unknown"),
        (list[Unknown], f"no payload can be decoded as {HERE}.Unknown"),
        (Holds, f"no payload can be decoded as {HERE}.Unknown"),
        (Unknown | None, f"no payload can be decoded as {HERE}.Unknown"),
        (complex, "no payload can be decoded as complex"),
        (Callable[[], None], "no payload can be decoded as "),
        (5, "no payload can be decoded as 5: "),
        (Model | int, "may not contain any additional types"),
        (Order | Struct, "may not contain more than one "),
        (Dangling, f"no payload can be decoded as {HERE}.Dangling: name 'Missing' is not defined"),
    ],
    ids=str,
)
def test_a_type_that_no_payload_can_have_is_refused_and_named(kind: Any, expected: str) -> None:
    text = refused(taking(kind))
    assert text.startswith(f"handler {HERE}.taking.<locals>.ship of topic 'order.created': ")
    assert expected in text
    assert "supported are JSON types, dataclasses, " in text


# payloads that do not fit


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@dataclass
class Spiteful:
    id: int

    def __post_init__(self) -> None:
        raise Unprintable


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (Order, b'{"id":"x"}', f"{HERE}.Order: Expected `int`, got `str` - at `$.id`"),
        (Order, b"{}", f"{HERE}.Order: Object missing required field `id`"),
        (Order, b'{"id":13}', f"{HERE}.Order: 13 is bad luck"),
        (Order, b'{"id":14}', f"{HERE}.Order: KeyError: 'fourteen'"),
        (list[Order], b'[{"id":13}]', f"list[{HERE}.Order]: 13 is bad luck - at `$[0]`"),
        (int, b'"5"', "int: Expected `int`, got `str`"),
        (int, b"null", "int: Expected `int`, got `null`"),
        (int | None, b"[]", "int | None: Expected `int | null`, got `array`"),
        (Colour, b'"blue"', f"{HERE}.Colour: Invalid enum value 'blue'"),
        (Model, b'{"id":"x"}', f"{HERE}.Model: Input should be a valid integer, unable to parse"),
        (Model, b'{"at":5.5}', f"{HERE}.Model: Field required - at `$.id`"),
        (Model, b'{"at":"x"}', " (and 1 more)"),
        (Root, b'[1,"x"]', " - at `$[1]`"),
        (
            list[Model],
            b'[{"id":1},{}]',
            f"list[{HERE}.Model]: Field required - at `$.id` - at `$[1]`",
        ),
        (Basket, b'{"model":{"id":[]}}', f"{HERE}.Basket: Input should be a valid integer"),
        (Basket, b'{"model":5}', " - at `$.model`"),
        (Picky, b'{"id":1}', f"{HERE}.Picky: Value error, picky - at `$.id`"),
        (Picky, b'{"id":2}', f"{HERE}.Picky: KeyError: 'picky'"),
        (Picky, b'{"id":3}', f"{HERE}.Picky: RuntimeError: picky"),
        (list[Picky], b'[{"id":1}]', "Value error, picky - at `$.id` - at `$[0]`"),
        (list[Picky], b'[{"id":3}]', "RuntimeError: picky"),
        (Spiteful, b'{"id":1}', f"{HERE}.Spiteful: Unprintable"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_payload_that_does_not_fit_is_refused_with_the_reason_and_kept(
    kind: Any, data: bytes, expected: str
) -> None:
    for given in (data, msgspec.Raw(data)):
        error = undecodable(kind, given)
        assert expected in error.reason
        assert error.reason.startswith("payload does not fit ")
        assert "\n" not in error.reason
        assert error.data == data
        assert type(error.data) is bytes


@pytest.mark.parametrize("kind", [Any, object, dict, Order, Model, list[Model], str, Struct])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[",
        b"x",
        b'"\xff"',
        b'"\\ud800"',
        b"[" * 100_000,
        b'{"id":' * 100_000,
        b'{"id":1,"next":' * 100_000,
        b"1 2",
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_bytes_that_are_not_json_are_refused_and_kept(kind: Any, data: bytes) -> None:
    error = undecodable(kind, data)
    assert error.reason.startswith("payload ")
    assert error.data == data
    assert len(error.reason) < 500


def test_a_reason_is_short_and_fit_to_be_stored() -> None:
    class Loud(msgspec.Struct):
        id: int

        def __post_init__(self) -> None:
            raise ValueError("\ud800" + "x" * 100_000)

    assert len(undecodable(Loud, b'{"id":1}').reason.encode()) < 3000


def test_pydantic_is_never_imported_by_us() -> None:
    code = "import sys, mx_rmq.core.handler, mx_rmq.core.codec; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
