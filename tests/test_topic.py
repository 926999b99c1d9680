"""Topic: a payload is checked at the call, and handlers get the topic's type."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from mx_rmq import (
    Delivery,
    InvalidInput,
    MessageQueue,
    NotOpen,
    PayloadTooLarge,
    Router,
    State,
    Topic,
    Worker,
)
from mx_rmq.testing import drain
from tests.runtime.stage import on_servers, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from redis.asyncio import Redis

    from tests.lab.servers import Server

pytest_plugins = ["mx_rmq.testing"]


@dataclass
class Order:
    id: int


class Model(pydantic.BaseModel):
    id: int


class Struct(msgspec.Struct):
    id: int


class Typed(TypedDict):
    id: int


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


def closed() -> MessageQueue:
    return MessageQueue("redis://nowhere.invalid:1", max_payload=1000)


# producing


@on_servers
async def test_a_typed_topic_produces_what_its_handler_gets(mq: MessageQueue) -> None:
    orders = mq.topic("order", Order)
    got: list[Any] = []

    @orders.handler()
    async def ship(order: Any) -> None:  # the topic decides, not the annotation
        got.append(order)

    await orders.produce(Order(1), id="one", headers={"a": "b"})
    assert len(await orders.produce_many([Order(2), Order(3)], priority="low")) == 2
    view = await mq.admin.get("order", "one")
    assert view is not None
    assert view.headers == {"a": "b"}
    await Worker(mq).drain()
    assert sorted(order.id for order in got) == [1, 2, 3]
    assert {type(order) for order in got} == {Order}


@on_servers
async def test_nothing_of_a_list_is_produced_if_one_payload_is_wrong(mq: MessageQueue) -> None:
    orders = mq.topic("order", Order)
    wrong: Any = "x"
    with pytest.raises(InvalidInput, match="topic 'order': payload does not fit") as caught:
        await orders.produce_many([Order(1), Order(wrong)])
    assert caught.value.__notes__ == ["This is message 1, counted from 0. None was produced."]
    assert await mq.admin.topics() == []


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "expected"),
    [
        (Order, Order(1), Order("x"), "Order: Expected `int`, got `str` - at `$.id`"),  # type: ignore[arg-type]
        (Order, {"id": 1}, {}, "Order: Object missing required field `id`"),
        (Model, Model(id=1), {"id": "x"}, "Model: Input should be a valid integer"),
        (Struct, Struct(1), Order("x"), "Struct: Expected `int`, got `str` - at `$.id`"),  # type: ignore[arg-type]
        (Typed, {"id": 1}, {"id": None}, "Typed: Expected `int`, got `null` - at `$.id`"),
        (list[Order], [Order(1)], [1], "Order]: Expected `object`, got `int` - at `$[0]`"),
        (int | None, None, "x", "int | None: Expected `int | null`, got `str`"),
        (
            Annotated[int, msgspec.Meta(gt=0)],
            1,
            0,
            "typing.Annotated[int, msgspec.Meta(gt=0)]: Expected `int` >= 1",
        ),
        (int, 1, object(), "int: a payload of type object cannot be encoded as JSON"),
    ],
    ids=itertools.count(),
)
async def test_a_wrong_payload_is_refused_at_the_call_with_topic_type_and_reason(
    kind: Any, right: Any, wrong: Any, expected: str
) -> None:
    topic: Topic[Any, Any] = closed().topic("order", kind)
    topic.check(right)
    for call in (topic.check, topic.sync.produce, lambda one: topic.sync.produce_many([one])):
        with pytest.raises(InvalidInput) as caught:
            call(wrong)
        assert str(caught.value).startswith("topic 'order': payload does not fit ")
        assert expected in str(caught.value)
    with pytest.raises(InvalidInput, match="topic 'order': payload does not fit"):
        await topic.produce(wrong)


async def test_one_text_is_not_a_list_of_texts() -> None:
    topic = closed().topic("word", str)
    with pytest.raises(InvalidInput, match="takes a list of payloads, not one str"):
        await topic.produce_many("abc")
    with pytest.raises(InvalidInput, match="takes a list of payloads, not one str"):
        topic.sync.produce_many("abc")


def test_a_payload_that_is_too_large_is_refused_as_such() -> None:
    with pytest.raises(PayloadTooLarge):
        closed().topic("order", str).check("x" * 1000)


async def test_a_topic_needs_the_open_queue_as_produce_does() -> None:
    with pytest.raises(NotOpen, match="wrap this in `async with mq:`"):
        await closed().topic("order", int).produce(1)


def test_a_topic_works_without_an_event_loop(mx_rmq_use: Callable[..., MessageQueue]) -> None:
    mq = mx_rmq_use(closed())
    got: list[int] = []
    numbers = mq.topic("number", int)
    numbers.handler()(got.append)
    numbers.sync.produce(1, id="one")
    numbers.sync.produce_many([2, 3], keys=["a", "b"])
    assert drain(mq).completed == 3
    assert sorted(got) == [1, 2, 3]


@on_servers
async def test_a_misspelt_option_is_refused_with_the_list_of_options(mq: MessageQueue) -> None:
    topic = mq.topic("order", int)
    misspelt: dict[str, Any] = {"dealy": 5}
    with pytest.raises(TypeError, match=r"handler\(\) has no option 'dealy'; its options are "):
        topic.handler(**misspelt)
    with pytest.raises(TypeError, match=r"produce\(\) has no option 'dealy'; .* id, key, delay"):
        await topic.produce(1, **misspelt)
    with pytest.raises(TypeError, match=r"produce_many\(\) has no option 'dealy'; .* ids, keys"):
        await topic.produce_many([1], **misspelt)


# results


@on_servers
async def test_a_result_comes_back_as_the_type_of_the_topic(mq: MessageQueue) -> None:
    orders = mq.topic("order", int, result=Order)

    @orders.handler(result_ttl=60)
    async def ship(number: int) -> Order:
        return Order(number)

    id = await orders.produce(1)
    status = await orders.status(id)
    assert status is not None
    assert status.state == State.PENDING
    async with Worker(mq):
        assert await orders.result(id, timeout=30) == Order(1)
    assert [status.state async for status in orders.watch(id)] == [State.COMPLETED]


def test_a_result_comes_back_without_an_event_loop(
    mx_rmq_use: Callable[..., MessageQueue],
) -> None:
    mq = mx_rmq_use(closed())
    orders = mq.topic("order", int, result=Order)

    @orders.handler(result_ttl=60)
    def ship(number: int) -> Order:
        return Order(number)

    id = orders.sync.produce(1)
    drain(mq)
    assert orders.sync.result(id, timeout=30) == Order(1)
    status = orders.sync.status(id)
    assert status is not None
    assert status.state == State.COMPLETED
    assert list(orders.sync.watch(id)) == [status]


# declaring


def test_a_handler_that_returns_another_class_is_refused() -> None:
    orders = closed().topic("order", int, result=Order)

    async def wrong(number: int) -> Model:
        return Model(id=number)

    async def nothing(number: int) -> None: ...

    with pytest.raises(InvalidInput, match=r"wrong .*: it returns .*Model, but the topic's result"):
        orders.handler(result_ttl=60)(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="it returns NoneType, but the topic's result is"):
        orders.handler(result_ttl=60)(nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize("annotation", ["Special", "Order", "Any", "dict[str, int]", "Unheard"])
def test_a_handler_that_may_return_the_result_is_accepted(annotation: str) -> None:
    orders = closed().topic("order", int, result=Order)

    class Special(Order): ...

    def right(number: int) -> Any:
        return Special(number)

    right.__annotations__["return"] = annotation
    orders.handler(result_ttl=60)(right)


def test_a_result_that_the_handler_does_not_keep_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mq = closed()

    def ship(number: int) -> Any: ...

    mq.topic("plain", int).handler()(ship)
    mq.topic("kept", int, result=Order).handler(result_ttl=60)(ship)
    assert caplog.messages == []
    mq.topic("order", int, result=Order).handler()(ship)
    assert caplog.messages == [
        "topic order has a result type, but its handler keeps no results: give it result_ttl"
    ]


def test_the_types_of_a_topic_are_checked_when_it_is_made() -> None:
    mq = closed()
    with pytest.raises(InvalidInput, match="topic 'a': no payload can be decoded as complex"):
        mq.topic("a", complex)
    with pytest.raises(InvalidInput, match=r"the result of topic 'a': .* complex"):
        mq.topic("a", int, result=complex)
    with pytest.raises(InvalidInput, match="topic 'a b' must consist of"):
        mq.topic("a b", int)


@pytest.mark.parametrize(
    ("kind", "annotation"),
    [
        (Order, Order),
        (Order, object),
        (Order, Any),
        (int, float),
        (bool, int),
        (Typed, Typed),
        (Typed, dict),
        (Typed, Mapping),
        (Order, Typed),  # a TypedDict cannot be compared
        (list[int], list[int]),
        (int | None, int | None),
    ],
    ids=str,
)
def test_a_handler_may_take_the_type_or_a_wider_one(kind: Any, annotation: Any) -> None:
    mq = closed()

    def ship(order: Any, delivery: Delivery) -> None: ...

    ship.__annotations__["order"] = annotation
    mq.topic("order", kind).handler(timeout=5)(ship)
    assert mq.handlers["order"].payload_type == kind
    assert mq.handlers["order"].timeout == 5


def test_a_handler_of_another_type_is_refused() -> None:
    mq = closed()
    topic: Topic[Any, Any] = mq.topic("order", Order)

    class Local:
        pass

    def ship(order: Local) -> None: ...
    def pack(order: Struct) -> None: ...

    for function, name in ((ship, "Local"), (pack, "Struct")):
        with pytest.raises(InvalidInput) as caught:
            topic.handler()(function)
        words = str(caught.value)
        assert f"{name}, but the topic's payload is {__name__}.Order" in words
        assert words.startswith(f"handler {__name__}.{function.__qualname__} of topic 'order'")
    assert mq.handlers == {}


# of a router


async def test_a_topic_of_a_router_needs_a_queue_to_produce() -> None:
    router = Router()
    orders = router.topic("order", int)
    with pytest.raises(NotOpen, match=r"no queue includes this router: call mq\.include"):
        await orders.produce(1)


@on_servers
async def test_a_topic_of_a_router_produces_to_the_queue_that_includes_it(mq: MessageQueue) -> None:
    router = Router()
    orders = router.topic("order", int)
    mq.include(router)
    assert await mq.admin.get("order", await orders.produce(1)) is not None
