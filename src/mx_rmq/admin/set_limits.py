"""Limit, pause and resume topics and keys, in all the partitions that this concerns."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.admin.fanout import ask_all
from mx_rmq.core.durations import SHORTEST, Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.limits import MAX_RUNNING, Rate, rate_of, share_of_rate, share_of_running
from mx_rmq.core.partition import number_for, number_of
from mx_rmq.core.text import duration, shown
from mx_rmq.store.line_reads import FOREVER
from mx_rmq.store.operator_calls import KEEP, Keep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.store import Store
    from mx_rmq.store.line_reads import SetByOperator

    Parts = Callable[[str], Awaitable[list[str]]]

LEAST_WEIGHT: Final = 0.001
MOST_WEIGHT: Final = 1000.0


class Limiter:
    """Sets the limits of topics and keys."""

    def __init__(self, store: Store, parts: Parts, *, by: str) -> None:
        self._store = store
        self._lines = store.views.lines
        self._parts = parts  # refuses an unknown topic
        self._by = by

    async def limit(self, topic: str, key: str | None, given: dict[str, Any]) -> None:
        """Set what is given; None restores what is declared."""
        if all(value is KEEP for value in given.values()):
            raise InvalidInput("limit() changes nothing: pass running=, rate= or weight=")
        running = _check_running(given["running"])
        rate = given["rate"]
        rate = rate if rate is KEEP or rate is None else rate_of(rate)
        weight = _check_weight(given["weight"])
        if key is None and weight is not KEEP:
            raise InvalidInput("weight= needs key=: it says how many turns that key gets")

        def share(number: int, parts: int) -> dict[str, Any]:
            number, parts = (number, parts) if key is None else (0, 1)
            shares: dict[str, Any] = {"running": running, "interval": rate, "weight": weight}
            if isinstance(running, int):
                shares["running"] = share_of_running(running, number, parts)
            if isinstance(rate, Rate):
                shares["interval"] = share_of_rate(rate.interval, rate.at_once, parts)
            return shares

        await self._set(topic, key, share, _change_words(running, rate, weight))

    async def pause(self, topic: str, key: str | None, seconds: Seconds | None, why: str) -> bool:
        """Pause a key or a topic; return whether that changed anything."""
        ms = inf if seconds is None else as_seconds("seconds=", seconds, SHORTEST) * 1000
        before = await self._sets(topic, key)
        words = "paused" if seconds is None else f"paused for {duration(ms / 1000)}"
        words += f": {why}" if why else ""
        await self._set(topic, key, lambda _, __: {"pause": ms, "reason": why}, words)
        again = [one.until == FOREVER and one.reason == why for one in before]
        return not (ms == inf and again and all(again))

    async def resume(self, topic: str, key: str | None) -> bool:
        """End the pause of a key or a topic; return whether there was one."""
        before = await self._sets(topic, key)
        if all(one.until is None for one in before):
            return False
        paused = [await self._is_paused(topic, one) for one in before]
        await self._set(topic, key, lambda _, __: {"pause": None}, "resumed")
        return any(paused)

    async def pause_topic(self, topic: str, seconds: Seconds | None, why: str) -> bool:
        """Pause a topic; return whether that changed anything.

        One without an end is noted where workers of older releases look, too.
        """
        changed = seconds is None and await self._on_all(topic, self._store.pause_topic)
        if seconds is not None or why:
            changed |= await self.pause(topic, None, seconds, why)
        return changed

    async def resume_topic(self, topic: str) -> bool:
        """End the pause of a topic; return whether there was one."""
        changed = await self._on_all(topic, self._store.resume_topic)
        return await self.resume(topic, None) or changed

    async def _on_all(self, topic: str, act: Callable[..., Awaitable[bool]]) -> bool:
        """Act on each partition of a topic, including those that are added meanwhile."""
        done, changed = 0, False
        while new := (await self._parts(topic))[done:]:
            changed |= any(await ask_all(new, partial(act, by=self._by)))
            done += len(new)
        return changed

    async def _sets(self, topic: str, key: str | None) -> list[SetByOperator]:
        parts = await self._places(await self._parts(topic), key)
        name = (key or "").encode()
        return await ask_all(parts, lambda part: self._lines.limits_of(part, name))

    async def _is_paused(self, topic: str, one: SetByOperator) -> bool:
        return one.until is not None and one.is_paused((await self._lines.topic_lines(topic)).at)

    async def _set(
        self,
        topic: str,
        key: str | None,
        share: Callable[[int, int], dict[str, Any]],
        words: str,
    ) -> None:
        """Set something on the partitions that have a key, or on all of them.

        `share` returns what to set, for the number of a partition and how many there are. `words`
        say what changes. If the topic grows meanwhile, all of it is done again.
        """
        parts: list[str] = []
        about = words if key is None else f"key {key}: {words}"
        while len(now := await self._parts(topic)) > len(parts):
            parts = now

            async def one(part: str, count: int = len(parts)) -> None:
                changes = share(number_of(part), count)
                await self._store.limit_key(part, key, **changes, by=self._by, about=about)

            await ask_all(await self._places(parts, key), one)

    async def _places(self, parts: Sequence[str], key: str | None) -> list[str]:
        """Return the partitions that a key is in: before a topic grew, it may have been in another.

        Without a key: all of them.
        """
        if key is None or len(parts) == 1:
            return [*parts]
        home, name = parts[number_for(key, len(parts))], key.encode()
        there = await ask_all(parts, lambda part: self._lines.has_key(part, name))
        return [
            part for part, is_there in zip(parts, there, strict=True) if is_there or part == home
        ]


def _change_words(
    running: int | Keep | None, rate: Rate | Keep | None, weight: float | Keep | None
) -> str:
    """Say what an operator changes: "running 2, rate as declared"."""
    parts = []
    if running is not KEEP:
        parts.append("running as declared" if running is None else f"running {running:,}")
    if isinstance(rate, Rate):
        parts.append(f"rate {rate}, burst {rate.at_once:g}")
    elif rate is None:
        parts.append("rate as declared")
    if weight is not KEEP:
        parts.append(f"weight {1 if weight is None else weight:g}")
    return ", ".join(parts)


def _check_running(running: Any) -> int | Keep | None:
    if running is KEEP or running is None:
        return running
    if type(running) is not int or not 0 <= running <= MAX_RUNNING:
        raise InvalidInput(
            f"running={shown(running)} is not a whole number from 0 to {MAX_RUNNING:,}"
        )
    return running


def _check_weight(weight: Any) -> float | Keep | None:
    if weight is KEEP or weight is None:
        return weight
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise InvalidInput(
            f"weight={shown(weight)} is not a number from {LEAST_WEIGHT} to {MOST_WEIGHT:g}"
        )
    return float(weight)
