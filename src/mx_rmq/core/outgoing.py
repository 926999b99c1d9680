"""The options of a produce, and the message that is made from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

from mx_rmq.core.codec import encode_payload
from mx_rmq.core.duplicates import OnDuplicate, Terms, terms_of
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import Message, Priority
from mx_rmq.core.names import check_options
from mx_rmq.core.retry import as_dict, policy_of

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

MAX_SECONDS: Final = 1e12  # about 30,000 years; larger numbers lose their milliseconds


class ProduceOptions(TypedDict, total=False):
    """The options of `produce` and `produce_many`. Times in seconds."""

    delay: float | None
    at: datetime | float | None
    priority: str
    ttl: float | None
    headers: dict[str, str] | None
    max_attempts: int | None
    retry: Any
    confirm: str | None
    on_duplicate: OnDuplicate
    dedup: float | None


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
    """Messages with the same key go to the same partition."""
    confirm: str | None = None
    on_duplicate: OnDuplicate = "ignore"
    """What happens if the id is taken."""
    dedup: float | None = None
    """Seconds for which the id stays taken; None: the setting of the queue."""

    @classmethod
    def of(
        cls, topic: str, payload: Any, options: ProduceOptions, *, id: str | None, key: str | None
    ) -> Outgoing:
        """Return what a caller of `produce` asked for. TypeError: unknown option."""
        check_options("produce", options, ProduceOptions, "id", "key")
        given: dict[str, Any] = {**options, "headers": options.get("headers") or {}}
        given["at"] = _timestamp(options.get("at"))
        return cls(topic=topic, payload=payload, id=id, key=key, **given)

    def message(self, max_payload: int) -> Message:
        """Return the message to store, or refuse invalid options."""
        if self.delay is not None and self.at is not None:
            raise InvalidInput(f"pass either delay={self.delay!r} or at={self.at!r}, not both")
        delay, ttl = _ms("delay", self.delay) or 0, _ms("ttl", self.ttl, least=0.001)
        if ttl is not None and ttl <= delay:
            raise InvalidInput(
                f"ttl={self.ttl!r} and delay={self.delay!r}: the message would expire before its "
                "delay ends"
            )
        return Message.new(
            encode_payload(self.payload, max_payload),
            topic=self.topic,
            id=self.id,
            priority=self.priority,
            delay=delay,
            at=_ms("at", self.at),
            ttl=ttl,
            max_attempts=self.max_attempts,
            retry=None if self.retry is None else as_dict(policy_of(self.retry)),
            headers=self.headers,
        )

    def terms(self) -> Terms | None:
        """Return what to do about a duplicate; None: the default. Refuse invalid options."""
        return terms_of(self.id, self.on_duplicate, _ms("dedup", self.dedup))


def check_each(checked: Iterable[T]) -> list[T]:
    """Collect one result per message of a `produce_many`. An error says which one is wrong."""
    found: list[T] = []
    try:
        found.extend(checked)
    except InvalidInput as error:
        error.add_note(f"This is message {len(found)}, counted from 0. None was produced.")
        raise
    return found


def _timestamp(at: datetime | float | None) -> float | None:
    if not isinstance(at, datetime):
        return at
    if at.tzinfo is None:
        shown = at.isoformat()
        raise InvalidInput(f"at={shown} has no time zone; in UTC it would be {shown}+00:00")
    return at.timestamp()


def _ms(name: str, seconds: Any, least: float = 0) -> int | None:
    if seconds is None:
        return None
    wrong = isinstance(seconds, bool) or not isinstance(seconds, int | float)
    if wrong or not least <= seconds <= MAX_SECONDS:
        raise InvalidInput(
            f"{name}={seconds!r} is not a number of seconds from {least:g} to {MAX_SECONDS:g}"
        )
    return round(float(seconds) * 1000)
