"""A script call, put together: its keys, its arguments, its receipt.

Ids that come from the server are decoded so that any bytes survive the way back. Times are
milliseconds here.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core.config import SECOND_NET, Limits
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import Priority, State
from mx_rmq.core.partition import topic_of
from mx_rmq.store.answers import Settled
from mx_rmq.store.budgets import Budgets
from mx_rmq.store.lane import Lanes
from mx_rmq.store.memory import Memory
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.core.message import Message
    from mx_rmq.store.call import Caller
    from mx_rmq.store.keys import Keys, TopicKeys
    from mx_rmq.store.lane import Lane
    from mx_rmq.store.script import Script, Value

MAX_BATCH: Final = 1000
"""Messages in one call: `unpack` in Lua takes no more than 7,999 values."""

CENTURY: Final = 100 * 365 * 86_400
"""Seconds; servers refuse the TTL of a field that is set for much longer."""

MAX_TOPICS: Final = 1000
"""Topics in one call."""

SHORTEST: Final = 100
"""Entries of a partition's history, at the least: the server drops them by the hundred."""

SETTLED: Final = {ord(settled): settled for settled in Settled}
"""Answers by the digit or letter that the scripts give for each message."""

_LEVELS: Final = frozenset(Priority)


class Scripted:
    """What every transition needs. `clock` is for tests: it stands in for the server's time."""

    def __init__(
        self,
        caller: Caller,
        keys: Keys,
        *,
        limits: Limits | None = None,
        hexpire: bool = False,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.keys = keys
        self.limits = limits or Limits()
        self.hexpire = hexpire
        self._caller = caller
        self._clock = clock
        self._lanes = Lanes()
        self.partitions: dict[str, int] = {}
        """How many partitions each topic has that was used here, as the server said last."""
        self.budgets = Budgets(caller, keys)
        self.memory = Memory(caller, keys)
        self._names: dict[tuple[str, str], list[str]] = {}
        """The keys of each script's call for each topic."""

    def _run(
        self,
        name: str,
        keys: TopicKeys,
        named: dict[str, Value],
        items: Sequence[Value] = (),
        *,
        lane: Lane | None = None,
        archive: State | None = None,
        maker: str | None = None,
    ) -> Awaitable[Any]:
        call = self._call(name, keys, named, items, lane=lane, archive=archive, maker=maker)
        return self._caller.run(*call)

    def _call(
        self,
        name: str,
        keys: TopicKeys,
        named: dict[str, Value],
        items: Sequence[Value] = (),
        *,
        lane: Lane | None = None,
        archive: State | None = None,
        maker: str | None = None,
        extra_keys: Sequence[str] = (),
    ) -> tuple[Script, list[str], list[Value]]:
        script = load(name)
        if "history" in script.place:
            alone = keys.topic in self.partitions and self.partitions[keys.topic] == 1
            named["remember"] = self.limits.history if alone else self._remember(keys.topic)
        known = self._names.get((name, keys.topic))
        if known is None:  # what differs from call to call is filled in below
            known = [getattr(keys, key, "") for key in script.keys]
            self._names[name, keys.topic] = known
        names = [*known, *extra_keys]
        if lane is not None:
            names[script.place["receipt"]] = keys.receipt(lane.name)
            if "maker" in script.place:  # if no lane made the id, a key that is not looked at
                names[script.place["maker"]] = keys.receipt(maker or lane.name)
        if archive is not None:
            index, contents = keys.archive_of(archive)
            names[script.place["archive"]] = index
            names[script.place["archive_payload"]] = contents
            if "kind" in script.args:
                named["kind"] = archive.value
        return script, names, script.arguments(named, items)

    def _now(self) -> Value:
        return "" if self._clock is None else self._clock()

    def _second_net(self, ttl_ms: int) -> int:
        if not self.hexpire or ttl_ms == 0:
            return 0
        return min(ceil(ttl_ms / 1000) + SECOND_NET, CENTURY)

    def _caps(self, state: State) -> tuple[int, int]:
        """Return how many messages an archive may hold, and of what age in ms.

        Each partition has its own cap: shared out, a topic that grows would be over it, and lose.
        """
        if state == State.DEAD:
            return self.limits.dlq_max, to_ms(self.limits.dlq_ttl)
        return self.limits.quarantine_max, to_ms(self.limits.quarantine_ttl)

    async def budget(self, topic: str, state: State) -> int:
        """Return how many bytes an archive of a partition may hold; 0: no bound."""
        self.keys.of(topic).archive_of(state)  # refuses a state that has none
        await self.budgets.refresh()
        known = self.partitions.get(topic_of(topic), 1)
        return self.budgets.of(topic, state, self.limits, known)

    def _remember(self, topic: str) -> int:
        """Return how long a partition's history shall be: its part of the topic's."""
        most = self.limits.history
        return min(most, max(SHORTEST, self._share(topic, most)))

    def _share(self, topic: str, most: int) -> int:
        """Return a partition's part of what its topic may have."""
        return ceil(most / self.partitions.get(topic_of(topic), 1))


def check_same(message: Message, topic: str, id: str) -> None:
    """Refuse to write one message's record under another's id."""
    if (message.topic, message.id) != (topic_of(topic), id):
        raise InvalidInput(
            f"the record is of message {message.id!r} of topic {message.topic!r}, "
            f"not of {id!r} of {topic!r}"
        )


def check_level(priority: str) -> str:
    if priority not in _LEVELS:
        raise InvalidInput(f"priority={priority!r} is not one of {', '.join(Priority)}")
    return priority


def check_batch(items: Sequence[object], width: int = 1) -> bool:
    """Refuse too many messages; say whether there are any. Each is `width` items long."""
    if len(items) > MAX_BATCH * width:
        raise InvalidInput(f"{len(items) // width} messages in one call; the limit is {MAX_BATCH}")
    return bool(items)


def check_range(what: str, value: int, least: int, most: int = 2**52) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{what}={value!r} is not a whole number from {least} to {most}")
    return value


def wait_of(ms: int) -> int | None:
    return None if ms < 0 else ms


def to_ms(seconds: float) -> int:
    return round(seconds * 1000)


def id_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
