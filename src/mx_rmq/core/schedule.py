"""A schedule that is kept on the server: its timetable, and the message of each tick."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict
from zoneinfo import ZoneInfo

import msgspec

from mx_rmq.core.cron import Cron
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import Message, Priority
from mx_rmq.core.names import check_options, check_schedule, check_topic
from mx_rmq.core.outgoing import Outgoing

if TYPE_CHECKING:
    from mx_rmq.core.durations import Seconds
    from mx_rmq.core.retry import RetryOption

TICK: Final = "cron-tick"
"""The header that names the tick."""


class ScheduleOptions(TypedDict, total=False):
    """The options of `admin.schedule`. They are those of `produce`."""

    priority: Priority | Literal["high", "normal", "low"]
    ttl: Seconds | None
    headers: dict[str, str] | None
    max_attempts: int | None
    retry: RetryOption


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A schedule as it is stored. Times are in ms."""

    name: str
    topic: str
    expression: str
    tz: str = "UTC"
    missed: str = "skip"
    payload: msgspec.Raw = msgspec.Raw(b"null")
    priority: str = Priority.NORMAL
    ttl: int | None = None
    headers: dict[str, str] = {}
    max_attempts: int | None = None
    retry: dict[str, Any] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        topic: str,
        expression: str,
        payload: Any,
        *,
        tz: str | tzinfo,
        missed: str,
        max_payload: int,
        options: ScheduleOptions,
    ) -> Schedule:
        """Return a schedule, or refuse invalid values."""
        check_schedule(name)
        check_topic(topic)
        check_options("schedule", options, ScheduleOptions, "tz", "missed")
        Cron.of(topic, expression, tz, missed)
        given: dict[str, Any] = {**options, "headers": options.get("headers") or {}}
        message = Outgoing(topic=topic, payload=payload, **given).message(max_payload)
        return cls(
            name=name,
            topic=topic,
            expression=expression,
            tz=_name_of(tz),
            missed=str(missed),
            payload=message.payload,
            priority=str(message.priority),
            ttl=message.ttl,
            headers=message.headers,
            max_attempts=message.max_attempts,
            retry=message.retry,
        )

    @property
    def cron(self) -> Cron:
        """When it ticks. InvalidInput: this release or this machine cannot say."""
        return Cron.of(self.topic, self.expression, self.tz, self.missed)

    @property
    def timetable(self) -> str:
        """A word that is the same for schedules with the same ticks."""
        words = f"{self.expression}\n{self.tz}\n{self.missed}"
        return hashlib.sha1(words.encode(), usedforsecurity=False).hexdigest()[:16]

    def message(self, at: int, *, id: str | None = None, ttl: int | None = None) -> Message:
        """Return the message for a tick at this time; `ttl` is the default of the topic."""
        return Message.new(
            self.payload,
            topic=self.topic,
            id=id,
            priority=self.priority,
            ttl=ttl if self.ttl is None else self.ttl,
            headers={**self.headers, TICK: datetime.fromtimestamp(at / 1000, UTC).isoformat()},
            max_attempts=self.max_attempts,
            retry=self.retry,
        )

    def message_id(self, tick: int) -> str:
        """Return the id of a tick's message."""
        return f"cron-{tick}@{self.name}"


def _name_of(tz: str | tzinfo) -> str:
    if isinstance(tz, str):
        return tz
    if tz is UTC:
        return "UTC"
    if isinstance(tz, ZoneInfo) and tz.key:
        return tz.key
    raise InvalidInput(f"tz={tz!r:.80} has no name to store, such as Europe/Berlin")
