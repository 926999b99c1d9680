"""The random walk with subscriptions: each copy must be where the model has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from mx_rmq.core import codec
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import Priority
from tests.lab.messages import FAILURE, TOPIC
from tests.lab.snapshot import snapshot
from tests.lab.walk import AUDITED, Walk, counts, faults

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.lab.model import Model

NAMES = ("s1", "s2")
names = st.sampled_from(NAMES)


class SubscriptionWalk(Walk):
    """In one of three walks, the topic may have subscriptions."""

    def __init__(self) -> None:
        self.may_subscribe = False
        super().__init__()

    def play(self, fault: str, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return super().play(fault, work)
        except InvalidInput:  # a replace
            assert self.model.subscribed
            return None

    @initialize(first=st.sampled_from([[], [], ["s1"], ["s1", "s2"]]))
    def subscribe_first(self, first: list[str]) -> None:
        self.may_subscribe = bool(first)
        for name in first:
            self.subscribe(name, False, "none")

    @precondition(lambda self: self.may_subscribe)
    @rule(name=names, again=st.booleans(), fault=faults)
    def subscribe(self, name: str, again: bool, fault: str) -> None:
        self.play(fault, self.store.declare_subscription(TOPIC, name, again=again))

    @precondition(lambda self: self.model.copies)
    @rule(name=names, fault=faults, rarely=st.sampled_from([True, False, False]))
    def unsubscribe(self, name: str, fault: str, rarely: bool) -> None:
        if rarely:
            self.play(fault, self.store.remove_subscription(TOPIC, name))

    @precondition(lambda self: self.model.copies)
    @rule(
        count=counts,
        stale=st.sampled_from([None, None, None, [], ["s1"], ["s2", "s1"]]),
        fault=faults,
    )
    def fan_out(self, count: int, stale: list[str] | None, fault: str) -> None:
        chosen = self.model.names if stale is None else stale
        self.play(fault, self.store.fan_out(TOPIC, chosen, count=count))

    @precondition(lambda self: self.model.subscribed)
    @rule(
        id=st.sampled_from(["a", "b"]),
        key=st.sampled_from([None, "k"]),
        later=st.sampled_from([0, 130_000]),
        ttl=st.sampled_from([None, 31_000]),
    )
    def produce_and_fan_out(self, id: str, key: str | None, later: int, ttl: int | None) -> None:
        """Produce a custom id again, perhaps while a subscription still has it."""
        self.clock.advance(later)
        if key is None:
            self.produce("own", 1, Priority.NORMAL, 0, id, ttl, "none")
        else:
            self.produce_keyed([key], 3, Priority.HIGH, "own", id, ttl, "none")
        self.fan_out(4, None, "none")

    @precondition(lambda self: any(one.records for one in self.model.copies.values()))
    @rule(name=names, count=counts, then=st.sampled_from(["complete", "die", "leave"]))
    def handle_copies(self, name: str, count: int, then: str) -> None:
        if name in self.model.copies:
            self.run(self._handle(f"{TOPIC}@{name}", count, then))

    async def _handle(self, topic: str, count: int, then: str) -> int:
        taken = await self.store.dispatch_in_turn(topic, "c1", count=count, lease=1000)
        if taken.messages and then == "complete":
            assert all(await self.store.complete_message(topic, "c1", taken.messages))
        for one in taken.messages if then == "die" else ():
            message = codec.decode(one.record, topic, one.id).failed(FAILURE)
            assert await self.store.move_to_dlq(topic, "c1", one, message)
        return len(taken.messages)

    # after every step, and at the end

    @invariant()
    def every_subscription_holds_what_the_model_holds(self) -> None:
        for name, model in self.model.copies.items():
            found = self.run(snapshot(self.raw, f"{TOPIC}@{name}"))
            assert found == model.snapshot(), name
            if self.steps % AUDITED == 0:
                assert self.run(self.store.audit.topic(f"{TOPIC}@{name}")) == []

    async def _drain(self) -> None:
        for name in self.model.names:
            await self.store.remove_subscription(TOPIC, name)
        await super()._drain()
        for name, model in self.model.copies.items():
            await self._drain_copies(f"{TOPIC}@{name}", model)

    async def _drain_copies(self, topic: str, model: Model) -> None:
        for _ in range(10 + 2 * model.live()):
            if not model.live():
                break
            self.clock.advance(31_000)
            lost = await self.store.handle_timeout_message(
                topic, "monitor", count=100, recovery=5000
            )
            if lost.messages:
                settled = await self.store.complete_message(topic, "monitor", lost.messages)
                assert all(settled)
            await self._handle(topic, 100, "complete")
        assert not model.live()
