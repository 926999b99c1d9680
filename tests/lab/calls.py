"""Calls that arrive twice, late or never: the effects of lost replies, without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mx_rmq.core.errors import OutcomeUnknown
from mx_rmq.net.caller import Caller
from tests.lab.messages import TOPIC
from tests.lab.snapshot import snapshot, told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redis.asyncio import Redis

    from mx_rmq.net.connection import Check, Value
    from mx_rmq.store.script import Script
    from mx_rmq.store.store import Store


class _NextCall(Caller):
    """Replaces a store's caller for one script call, then removes itself."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._caller = store.caller
        store.caller = self

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Value],
        check: Check | None = None,
    ) -> Any:
        if script.name == "register_topics":  # a topic's first produce lists the topic first
            return await self._caller.run(script, keys, args, check)
        self._store.caller = self._caller
        return await self.once(script, keys, args)

    async def command(self, name: str, *words: Value, at: str | None = None) -> Any:
        return await self._caller.command(name, *words, at=at)

    async def once(self, script: Script, keys: Sequence[str], args: Sequence[Value]) -> Any:
        raise NotImplementedError


class _Resent(_NextCall):
    def __init__(
        self, store: Store, raw: Redis, between: Callable[[], Awaitable[object]] | None
    ) -> None:
        super().__init__(store)
        self._raw = raw
        self._between = between

    async def once(self, script: Script, keys: Sequence[str], args: Sequence[Value]) -> Any:
        await self._caller.run(script, keys, args)
        if self._between is not None:
            await self._between()
        before = await snapshot(self._raw, TOPIC), await told(self._raw, TOPIC)
        reply = await self._caller.run(script, keys, args)
        after = await snapshot(self._raw, TOPIC), await told(self._raw, TOPIC)
        assert after == before, "the repeated call changed something"
        return reply


def resend_next(
    store: Store, raw: Redis, between: Callable[[], Awaitable[object]] | None = None
) -> None:
    """Run the store's next script call twice; its second reply counts and must change nothing."""
    _Resent(store, raw, between)


class Lost(_NextCall):
    """A call whose reply the client never saw."""

    def __init__(self, store: Store, *, stored: bool) -> None:
        super().__init__(store)
        self._stored = stored
        self._call: tuple[Script, Sequence[str], Sequence[Value]] | None = None

    async def once(self, script: Script, keys: Sequence[str], args: Sequence[Value]) -> Any:
        self._call = script, keys, args
        if self._stored:
            await self.arrive()
        raise OutcomeUnknown("the reply was lost")

    async def arrive(self) -> Any:
        """Let the call reach the server, late or once more."""
        assert self._call is not None
        return await self._caller.run(*self._call)


def lose_next(store: Store, *, stored: bool) -> Lost:
    """Lose the reply to the store's next script call, whether the server runs it or not."""
    return Lost(store, stored=stored)


class Answered(_NextCall):
    """A call that got a reply while a copy of it is still on its way."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._call: tuple[Script, Sequence[str], list[Value]] | None = None

    async def once(self, script: Script, keys: Sequence[str], args: Sequence[Value]) -> Any:
        self._call = script, keys, list(args)
        return await self._caller.run(script, keys, args)

    async def arrive(self, now: int) -> None:
        """Let the other copy reach the server, at this time by its clock."""
        assert self._call is not None
        script, keys, args = self._call
        if "now_ms" in script.args:
            args[script.args.index("now_ms")] = now
        await self._caller.run(script, keys, args)


def double_next(store: Store) -> Answered:
    """Send the store's next script call twice; the second copy arrives when the test says so."""
    return Answered(store)
