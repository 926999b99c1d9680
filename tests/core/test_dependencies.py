"""Dependencies of handlers: what is refused where it is declared, and the order of a plan."""

from __future__ import annotations

import functools
import itertools
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from mx_rmq.core.delivery import Delivery  # noqa: TC001 - annotations are evaluated
from mx_rmq.core.dependencies import DELIVERY, PAYLOAD, Depends, Plan, PlanStep, ProviderKind
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.handler import Handler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from nowhere import Missing  # type: ignore[import-not-found]

HERE = __name__


def value() -> int:
    return 1


async def coroutine() -> int:
    return 1


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def needs_value(one: Annotated[int, Depends(value)], delivery: Delivery, size: int = 5) -> int:
    return one


def taking(provider: Any, **options: Any) -> Callable[..., None]:
    """Return a handler's function whose parameter `db` has this provider."""

    def ship(order: int, db: Any) -> None: ...

    ship.__annotations__ = {"order": int, "db": Annotated[Any, Depends(provider, **options)]}
    return ship


def plan(function: Any, overrides: Any = None, **options: Any) -> Plan:
    dependencies = Handler.of("t", function, **options).dependencies
    assert dependencies is not None
    return dependencies.plan(overrides or {})


def refused(function: Any, **options: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        Handler.of("t", function, **options)
    return str(caught.value)


def functions(steps: tuple[PlanStep, ...]) -> list[Any]:
    return [step.provider.function for step in steps]


# what is declared


def test_a_handler_without_depends_has_no_dependencies() -> None:
    def ship(order: int, delivery: Delivery, note: Annotated[str, "a note"] = "") -> None: ...

    assert Handler.of("t", ship).dependencies is None


def test_the_payload_is_the_parameter_without_depends() -> None:
    def ship(db: Annotated[str, Depends(value)], order: dict[str, int]) -> None: ...

    made = Handler.of("t", ship)
    assert made.payload_type == dict[str, int]
    assert not made.wants_delivery


class Called:
    def __call__(self) -> Iterator[int]:
        yield 1


class Shop:
    def __init__(self, one: Annotated[int, Depends(value)]) -> None: ...

    async def session(self) -> int:
        return 1


@dataclass
class Settings:
    one: Annotated[int, Depends(value)]
    url: str = "redis://"


@functools.wraps(generator)
def wrapped(*args: Any) -> Any:
    return generator(*args)


@pytest.mark.parametrize(
    ("provider", "kind"),
    [
        (value, ProviderKind.PLAIN),
        (lambda: 1, ProviderKind.PLAIN),
        (coroutine, ProviderKind.COROUTINE),
        (generator, ProviderKind.GENERATOR),
        (async_generator, ProviderKind.ASYNC_GENERATOR),
        (needs_value, ProviderKind.PLAIN),
        (functools.partial(async_generator), ProviderKind.ASYNC_GENERATOR),
        (wrapped, ProviderKind.GENERATOR),
        (Called(), ProviderKind.GENERATOR),
        (Shop, ProviderKind.PLAIN),
        (Settings, ProviderKind.PLAIN),
        (Shop(1).session, ProviderKind.COROUTINE),
    ],
)
def test_functions_generators_classes_and_other_callables_are_providers(
    provider: Any, kind: ProviderKind
) -> None:
    made = plan(taking(provider)).with_handler or plan(taking(provider)).in_loop
    assert made[-1].provider.kind is kind
    assert made[-1].provider.function == provider


def test_local_names_in_annotations_are_found() -> None:
    def local() -> int:
        return 1

    def ship(order: int, db: Annotated[int, Depends(local)]) -> None: ...

    assert functions(plan(ship, names=locals()).with_handler) == [local]
    assert "Depends(local)]' of db cannot be resolved: name 'local' is not" in refused(ship)


# what is refused


def needs_something(url: str) -> int:
    return 1


def needs_missing(one: Annotated[Missing, Depends(value)]) -> int:
    return 1


def needs_wrong(one: Annotated[int, Depends("value")]) -> int:
    return 1


def hen(egg: Annotated[int, Depends(egg)]) -> int:
    return 1


def egg(hen: Annotated[int, Depends(hen)]) -> int:
    return 1


def behind(size: int = 1, one: Annotated[int, Depends(value)] = 1, /) -> int:
    return 1


def old_style(one: int = Depends(value)) -> int:  # type: ignore[assignment]
    return 1


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> int:
        return 1


@contextmanager
def managed() -> Iterator[int]:
    yield 1


@asynccontextmanager
async def managed_async() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        (5, "db: its provider 5 is not callable"),
        (None, "db: its provider None is not callable"),
        (needs_something, "something takes url, which needs Depends, Delivery or a default"),
        (
            needs_missing,
            "the annotation 'Annotated[Missing, Depends(value)]' of one cannot be",
        ),
        (needs_wrong, f"db: its provider {HERE}.needs_wrong: one: its provider 'value' is not"),
        (hen, f"hen depends on itself: {HERE}.hen -> {HERE}.egg -> {HERE}.hen"),
        (behind, "behind: one comes after a parameter with a default"),
        (
            old_style,
            "old_style: one: Depends cannot be its default; write one: Annotated[…, Depends(…)]",
        ),
        (dict, "its provider builtins.dict: its signature cannot be inspected"),
        (Unhashable(), "Unhashable cannot be hashed"),
        (
            managed,
            "managed is a context manager: remove the decorator; a provider only has to yield",
        ),
        (managed_async, "managed_async is a context manager: remove the decorator"),
    ],
    ids=itertools.count(),
)
def test_a_wrong_provider_is_refused_and_the_error_names_the_parameter(
    provider: Any, expected: str
) -> None:
    text = refused(taking(provider))
    assert text.startswith(f"handler {HERE}.taking.<locals>.ship of topic 't': db: ")
    assert expected in text


def on_delivery(delivery: Delivery) -> int:
    return 1


@pytest.mark.parametrize(
    ("provider", "scope", "expected"),
    [
        (value, "request", 'value has scope=\'request\': it must be "message" or "worker"'),
        (on_delivery, "worker", 'scope="worker", but its parameter delivery depends on the'),
        (Shop, "worker", "its parameter one depends on the message"),
    ],
)
def test_a_wrong_scope_is_refused(provider: Any, scope: Any, expected: str) -> None:
    assert expected in refused(taking(provider, scope=scope))


def as_default(order: int, db: int = Depends(value)) -> None: ...  # type: ignore[assignment]
def bare(order: int, db: Annotated[int, Depends]) -> None: ...
def twice(order: int, db: Annotated[int, Depends(value), Depends(coroutine)]) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            as_default,
            "as_default(order, db) of topic 't': db: Depends cannot be its default; write db: ",
        ),
        (bare, "db: Depends needs a provider: Depends(function)"),
        (twice, "db: has 2 Depends; a parameter can have one"),
    ],
)
def test_depends_in_the_wrong_place_is_refused(function: Any, expected: str) -> None:
    assert expected in refused(function)
    assert expected.partition("(")[0] in refused(function)


def test_depends_does_not_make_up_for_a_missing_payload() -> None:
    def ship(db: Annotated[int, Depends(value)]) -> None: ...

    assert "ship(db) of topic 't': takes no payload parameters; " in refused(ship)
    assert functions(plan(ship, cron=True).with_handler) == [value]


# the plan


def test_each_provider_is_called_once_after_what_it_needs() -> None:
    async def ship(
        order: int,
        two: Annotated[int, Depends(needs_value)],
        one: Annotated[int, Depends(value)],
        delivery: Delivery,
    ) -> None: ...

    made = plan(ship)
    assert functions(made.in_loop) == [value, needs_value]
    assert made.in_loop[1].arguments.positional == (2, DELIVERY)
    assert made.handler.positional == (PAYLOAD, 3, 2, DELIVERY)


def test_a_plain_handler_takes_its_plain_providers_into_its_thread() -> None:
    async def client(one: Annotated[int, Depends(value)]) -> int:
        return one

    def ship(
        order: int,
        a: Annotated[int, Depends(generator)],
        b: Annotated[int, Depends(client)],
        c: Annotated[int, Depends(value)],
    ) -> None: ...

    made = plan(ship, names=locals())
    assert functions(made.in_loop) == [value, client]
    assert functions(made.with_handler) == [generator]
    assert made.handler.positional == (PAYLOAD, 4, 3, 2)


def test_one_provider_may_have_both_scopes() -> None:
    def ship(
        order: int,
        mine: Annotated[int, Depends(value)],
        shared: Annotated[int, Depends(value, scope="worker")],
    ) -> None: ...

    made = plan(ship)
    assert functions(made.of_worker) == functions(made.with_handler) == [value]
    assert made.handler.positional == (PAYLOAD, 3, 2)


def test_a_deep_lattice_of_providers_is_read_once_per_provider() -> None:
    layer: Callable[..., int] = value
    for _ in range(60):

        def above(a: Any, b: Any) -> int:
            return 1

        above.__annotations__ = dict.fromkeys("ab", Annotated[int, Depends(layer)])
        layer = above
    assert len(plan(taking(layer)).with_handler) == 61


# overrides


def test_an_override_takes_the_place_and_the_scope_of_a_provider() -> None:
    made = plan(taking(value, scope="worker"), {value: coroutine})
    assert functions(made.of_worker) == [coroutine]


def test_an_override_is_not_replaced_itself_and_may_use_what_it_replaces() -> None:
    assert functions(plan(taking(value), {value: generator, generator: value}).with_handler) == [
        generator
    ]
    assert functions(plan(taking(value), {value: needs_value}).with_handler) == [value, needs_value]


def test_an_override_replaces_what_another_override_needs() -> None:
    made = plan(taking(coroutine), {coroutine: needs_value, value: generator})
    assert functions(made.with_handler) == [generator, needs_value]


def test_a_wrong_override_is_refused_and_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        plan(taking(value), {value: needs_something})
    assert f"t': dependency_overrides[{HERE}.value]: its provider {HERE}.needs_something" in str(
        caught.value
    )
