"""The order of middleware, and what it may do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.delivery import Delivery
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.middleware import Middleware, around_handle, around_produce
from mx_rmq.core.outgoing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.middleware import Handle, Produce


class Noting(Middleware):
    """Writes down when it is passed."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    async def produce(self, messages: Sequence[Outgoing], call_next: Produce) -> list[str]:
        self.notes.append(f"{self.name} in")
        changed = [replace(one, headers={**one.headers, self.name: "1"}) for one in messages]
        ids = await call_next(changed)
        self.notes.append(f"{self.name} out")
        return ids

    async def handle(self, delivery: Delivery, call_next: Handle) -> Any:
        self.notes.append(f"{self.name} in")
        try:
            return await call_next(delivery)
        finally:
            self.notes.append(f"{self.name} out")


def delivery() -> Delivery:
    return Delivery(
        id="a",
        topic="t",
        payload=1,
        attempt=1,
        fence=1,
        headers={},
        created_at=0.0,
        deadline=None,
        extend=lambda seconds: 100 + seconds,
    )


async def test_the_first_one_is_the_outermost_of_a_produce() -> None:
    notes: list[str] = []

    async def send(messages: Sequence[Outgoing]) -> list[str]:
        notes.append(",".join(messages[0].headers))
        return ["id"]

    produce = around_produce([Noting("a", notes), Noting("b", notes)], send)
    assert await produce([Outgoing(topic="t", payload=1)]) == ["id"]
    assert notes == ["a in", "b in", "a,b", "b out", "a out"]


async def test_the_first_one_is_the_outermost_of_a_handler_also_when_it_raises() -> None:
    notes: list[str] = []

    async def fail(_: Delivery) -> None:
        raise KeyError("x")

    handle = around_handle([Noting("a", notes), Noting("b", notes)], fail)
    with pytest.raises(KeyError):
        await handle(delivery())
    assert notes == ["a in", "b in", "b out", "a out"]


async def test_middleware_that_overrides_nothing_is_left_out() -> None:
    async def send(messages: Sequence[Outgoing]) -> list[str]:
        return []

    async def call(_: Delivery) -> None: ...

    assert around_produce([Middleware(), Middleware()], send) is send
    assert around_handle([Middleware()], call) is call


async def test_an_override_in_a_parent_counts() -> None:
    notes: list[str] = []

    class Child(Noting): ...

    async def call(_: Delivery) -> int:
        return 5

    assert await around_handle([Child("c", notes)], call)(delivery()) == 5
    assert notes == ["c in", "c out"]


async def test_the_plain_middleware_passes_everything_on() -> None:
    async def send(messages: Sequence[Outgoing]) -> list[str]:
        return [one.topic for one in messages]

    async def call(one: Delivery) -> str:
        return one.id

    assert await Middleware().produce([Outgoing(topic="t", payload=1)], send) == ["t"]
    assert await Middleware().handle(delivery(), call) == "a"


# a delivery


def test_a_delivery_moves_its_deadline() -> None:
    one = delivery()
    one.extend(2.5)
    assert one.deadline == 102.5


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_delivery_refuses_to_be_extended_by_what_is_no_time(seconds: float) -> None:
    with pytest.raises(InvalidInput, match=r"from 0\.001 to"):
        delivery().extend(seconds)


def test_a_delivery_shows_which_one_it_is_and_not_what_is_in_it() -> None:
    assert repr(delivery()) == "<Delivery a of t, attempt 1, fence 1>"
