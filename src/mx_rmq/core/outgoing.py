"""The options of a produce, and the message that is made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar

import msgspec

from mx_rmq.core.codec import encode_payload
from mx_rmq.core.duplicates import DuplicatePolicy, OnDuplicate, duplicate_policy_of
from mx_rmq.core.durations import SHORTEST, Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import Message, Priority
from mx_rmq.core.names import check_options
from mx_rmq.core.retry import as_dict, policy_of
from mx_rmq.core.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mx_rmq.core.confirm import Level
    from mx_rmq.core.retry import RetryOption

T = TypeVar("T")

MAX_SECONDS: Final = 1e12  # about 30,000 years; larger numbers lose their milliseconds


class OutboxOptions(TypedDict, total=False):
    """The options of `outbox.produce`."""

    delay: Seconds | None
    at: datetime | float | None
    priority: Priority | Literal["high", "normal", "low"]
    ttl: Seconds | None
    headers: dict[str, str] | None
    max_attempts: int | None
    retry: RetryOption
    cost: int


class ProduceOptions(OutboxOptions, total=False):
    """The options of `produce` and `produce_many`."""

    confirm: Level | Literal["stored", "replicated", "fsynced"] | None
    on_duplicate: OnDuplicate
    dedup: Seconds | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to produce, as the caller gave it. Change it with `dataclasses.replace`."""

    topic: str
    payload: Any
    id: str | None = None
    delay: float | None = None
    """Seconds."""
    at: float | None = None
    """Seconds since 1970."""
    priority: str = Priority.NORMAL
    ttl: float | None = None
    """Seconds."""
    max_attempts: int | None = None
    retry: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    key: str | None = None
    """Whose line it stands in. Messages with the same key go to the same partition."""
    confirm: str | None = None
    on_duplicate: OnDuplicate = "ignore"
    """What happens if the id is taken."""
    dedup: float | None = None
    """Seconds for which the id stays taken; None: the setting of the queue."""
    cost: int = 1
    """How much it counts against a rate."""

    def __post_init__(self) -> None:
        """Check the times. Middleware and tests see them as numbers, whatever the caller gave."""
        given: dict[str, float] = {}
        if self.delay is not None:
            given["delay"] = as_seconds("delay=", self.delay, most=MAX_SECONDS)
        if self.at is not None:
            given["at"] = _timestamp(self.at)
        if self.ttl is not None:
            given["ttl"] = as_seconds("ttl=", self.ttl, SHORTEST, MAX_SECONDS)
        if self.dedup is not None:
            given["dedup"] = as_seconds("dedup=", self.dedup, most=MAX_SECONDS)
        for name, value in given.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(
        cls, topic: str, payload: Any, options: OutboxOptions, *, id: str | None, key: str | None
    ) -> Outgoing:
        """Return what a caller of `produce` asked for. TypeError: unknown option."""
        check_options("produce", options, ProduceOptions, "id", "key")
        given: dict[str, Any] = {**options, "headers": options.get("headers") or {}}
        return cls(topic=topic, payload=payload, id=id, key=key, **given)

    def message(self, max_payload: int) -> Message:
        """Return the message to store, or refuse invalid options."""
        if self.delay is not None and self.at is not None:
            raise InvalidInput(f"pass either delay={self.delay:g} or at={self.at:.16g}, not both")
        delay, ttl = _ms(self.delay) or 0, _ms(self.ttl)
        if ttl is not None and ttl <= delay:
            raise InvalidInput(
                f"ttl={self.ttl:g} and delay={self.delay:g}: the message would expire before its "
                "delay ends"
            )
        return Message.new(
            encode_payload(self.payload, max_payload),
            topic=self.topic,
            id=self.id,
            priority=self.priority,
            delay=delay,
            at=_ms(self.at),
            ttl=ttl,
            max_attempts=self.max_attempts,
            retry=None if self.retry is None else as_dict(policy_of(self.retry)),
            headers=self.headers,
            key=self.key,
            cost=self.cost,
        )

    def as_sent(self, message: Message) -> Outgoing:
        """Return this as its message has it: the caller may have changed the payload since."""
        return replace(self, payload=msgspec.json.decode(message.payload))

    def duplicate_policy(self) -> DuplicatePolicy | None:
        """Return what to do about a duplicate; None: the default. Refuse invalid options."""
        return duplicate_policy_of(self.id, self.on_duplicate, _ms(self.dedup))


def payload_list(payloads: Iterable[T]) -> list[T]:
    """Collect the payloads of a `produce_many`; refuse a single one that can be iterated over."""
    if isinstance(payloads, str | bytes | bytearray | Mapping):
        raise InvalidInput(
            f"produce_many takes a list of payloads, not one {type(payloads).__name__}"
        )
    return list(payloads)


def check_per_payload(name: str, given: Sequence[Any] | None, payloads: int) -> None:
    """Refuse ids or keys of a `produce_many` that are not a list with one per payload."""
    if given is None:
        return
    if isinstance(given, str | bytes | set | frozenset) or not isinstance(given, Sized):
        raise InvalidInput(f"{name}={shown(given)} is not a list, with one per payload")
    if len(given) != payloads:
        raise InvalidInput(f"{len(given)} {name} for {payloads} payloads")


def new_due_time(delay: Seconds | None, at: datetime | float | None) -> tuple[int, int | None]:
    """Return a new due time in ms: a delay from now, or a time since 1970, which overrides it."""
    if (delay is None) == (at is None):
        raise InvalidInput(f"pass either delay or at, not delay={delay!r} and at={at!r}")
    if at is not None:
        return 0, _ms(_timestamp(at))
    return _ms(as_seconds("delay=", delay, most=MAX_SECONDS)) or 0, None


def check_each(checked: Iterable[T]) -> list[T]:
    """Collect one result per message of a `produce_many`. An error says which one is wrong."""
    found: list[T] = []
    try:
        found.extend(checked)
    except InvalidInput as error:
        error.add_note(f"This is message {len(found)}, counted from 0. None was produced.")
        raise
    return found


def _timestamp(at: datetime | float) -> float:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            naive = at.isoformat()
            raise InvalidInput(f"at={naive} has no time zone; in UTC it would be {naive}+00:00")
        return at.timestamp()
    number = isinstance(at, int | float) and not isinstance(at, bool)
    if not number or not 0 <= at <= MAX_SECONDS:
        raise InvalidInput(f"at={shown(at)} is not a datetime or a number of seconds since 1970")
    return float(at)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
