"""The plan for one message of the lab. Its label contains the whole plan."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mx_rmq.core.message import Priority

if TYPE_CHECKING:
    import random

TOPICS: Final = ("work", "plain")
"""The topics of an async and of a sync handler."""


class End(StrEnum):
    """How a message must end."""

    COMPLETED = "completed"
    DEAD = "dead"
    QUARANTINED = "quarantined"


class Errand(NamedTuple):
    """One message, as planned."""

    producer: str
    number: int
    """Its position among its producer's messages."""
    topic: str
    end: End
    fails: int
    """Attempts that fail before one succeeds."""
    priority: Priority
    delay: int
    """Milliseconds."""
    work: int
    """How long its handler takes, in milliseconds."""

    @property
    def label(self) -> str:
        return ",".join(map(str, self))

    @classmethod
    def of(cls, label: str) -> Errand:
        """Read a label."""
        producer, number, topic, end, fails, priority, delay, work = label.split(",")
        return cls(
            producer,
            int(number),
            topic,
            End(end),
            int(fails),
            Priority(priority),
            int(delay),
            int(work),
        )

    @property
    def payload(self) -> dict[str, Any]:
        """What its handler gets. A payload to be quarantined does not fit the handler's type."""
        body = self.label * (self.number % 3)
        return {"label": self.label, "body": body if self.end is not End.QUARANTINED else 0}


class Payload(msgspec.Struct):
    label: str
    body: str

    @property
    def is_whole(self) -> bool:
        """Whether it is unchanged."""
        return self.body == self.label * (Errand.of(self.label).number % 3)


class Mix(NamedTuple):
    """How many of a hundred messages are of each kind; the others are plain."""

    failing: float = 5
    dead: float = 0.5
    quarantined: float = 0.2
    delayed: float = 5
    longest_delay: int = 2_000
    high: float = 10
    low: float = 10
    work: int = 5
    """Milliseconds of work, at most."""
    least: int = 0
    """Milliseconds of work, at least."""


def batch(mix: Mix, random: random.Random, producer: str, first: int, most: int) -> list[Errand]:
    """Return errands of one kind, which can be sent in one call."""
    chance = random.uniform(0, 100)
    end, fails, delay = End.COMPLETED, 0, 0
    if chance < mix.quarantined:
        end = End.QUARANTINED
    elif chance < mix.quarantined + mix.dead:
        end, fails = End.DEAD, 2
    elif chance < mix.quarantined + mix.dead + mix.failing:
        fails = random.randint(1, 2)
    elif chance < mix.quarantined + mix.dead + mix.failing + mix.delayed:
        delay = random.randint(1, mix.longest_delay)
    chance = random.uniform(0, 100)
    priority = Priority.NORMAL
    if chance < mix.high:
        priority = Priority.HIGH
    elif chance < mix.high + mix.low:
        priority = Priority.LOW
    topic = TOPICS[random.random() < 0.2]
    return [
        Errand(
            producer,
            number,
            topic,
            end,
            fails,
            priority,
            delay,
            random.randint(mix.least, mix.work),
        )
        for number in range(first, first + random.randint(1, most))
    ]
