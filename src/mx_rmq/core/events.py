"""What happens in a worker: one value per event. Logs, metrics, live views and tests subscribe.

worker    WorkerStarted, WorkerStopping, WorkerStopped
message   Completed, Retried, Snoozed, Parked, Died, Quarantined, Released, Postponed, Replaced,
          Aborted, Due, BatchHandled
lease     LeaseLost, TakenOver
trouble   LoopBlocked, ServerLost, ServerBack, PartDied, PartRestarted, WorkerFailed
cron      CronFired, CronMissed
outbox    OutboxMeasured
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PARTS: Final = (
    "abort listener",
    "caretaker",
    "consumer",
    "crons",
    "doorbell listener",
    "expirer",
    "janitor",
    "lease keeper",
    "lifecycle",
    "monitor",
    "progress",
    "registry",
    "scheduler",
    "schedules",
    "survey",
    "thread pool",
    "waiting check",
)
"""The parts of a worker that the watchdog restarts, as PartDied names them."""


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    worker: str
    topics: tuple[str, ...]
    concurrency: int


@dataclass(frozen=True, slots=True)
class WorkerStopping:
    worker: str
    running: int
    grace: float


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    worker: str
    clean: bool
    """Whether everything was settled or handed back."""


@dataclass(frozen=True, slots=True)
class Completed:
    topic: str
    id: str
    attempt: int
    seconds: float
    """How long the handler took."""
    waited: float | None = None
    """Seconds from when it was due until its handler started; None: unknown."""


@dataclass(frozen=True, slots=True)
class Retried:
    topic: str
    id: str
    attempt: int
    delay: float
    """Seconds until the next attempt."""
    error: str
    traceback: str = ""
    """With its causes; shortened."""
    seconds: float | None = None
    """How long the handler took; None: no handler ran here."""
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler raised Snooze. No attempt is counted."""

    topic: str
    id: str
    attempt: int
    delay: float
    """Seconds until the handler gets it again."""
    reason: str = ""
    seconds: float | None = None
    """How long the handler took."""
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class Parked:
    """The message waits for a signal, or for other messages. No attempt is counted."""

    topic: str
    id: str
    timeout: float | None
    """Seconds until it runs again in any case; None: it waits as long as it takes."""
    reason: str
    """What it waits for."""
    seconds: float | None = None
    """How long the handler took."""
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class Died:
    topic: str
    id: str
    attempts: int
    """How many there were."""
    reason: str
    traceback: str = ""
    """The last attempt's; shortened."""
    seconds: float | None = None
    """How long the handler took; None: no handler ran here."""
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class Quarantined:
    topic: str
    id: str
    error: str


@dataclass(frozen=True, slots=True)
class Released:
    topic: str
    id: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """Only a newer release can read the message. It waits unchanged, and nothing is counted."""

    topic: str
    id: str
    delay: float
    """Seconds until it is offered to a worker again."""
    reason: str


@dataclass(frozen=True, slots=True)
class Aborted:
    """An operator aborted a message that this worker held: it is in the dead letters."""

    topic: str
    id: str
    handler: str
    seconds: float | None = None
    """How long the handler ran until it stopped; None: it had not started."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A produce replaced the message while this worker held it. The new one waits to be handled."""

    topic: str
    id: str
    error: str = ""
    """Why the handler failed on the old one; empty if it did not."""
    seconds: float | None = None
    """How long the handler took; None: no handler ran here."""
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """This worker moved messages of a topic from delayed to pending, because their time came."""

    topic: str
    count: int


@dataclass(frozen=True, slots=True)
class BatchHandled:
    """A call of a batch handler has ended. Each message also has its own event."""

    topic: str
    size: int
    """How many messages it had."""
    failed: int
    """How many of them failed."""
    seconds: float
    """How long the call took."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Another worker has the message now. Its handler was cancelled, or its result refused."""

    topic: str
    id: str
    fence: int
    handler: str
    refused: str = ""
    """The outcome that the server refused; empty if its handler was cancelled or never started."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """This worker's monitor took a message over from one that went silent."""

    topic: str
    id: str
    lost_by: str


@dataclass(frozen=True, slots=True)
class LoopBlocked:
    """A handler blocks the event loop. Emitted by the thread that extends the leases."""

    handler: str
    seconds: float
    stack: str


@dataclass(frozen=True, slots=True)
class ServerLost:
    error: str


@dataclass(frozen=True, slots=True)
class ServerBack:
    seconds: float
    """How long it was away."""


@dataclass(frozen=True, slots=True)
class PartDied:
    """A part of a worker ended unexpectedly. It is restarted."""

    worker: str
    part: str
    error: str


@dataclass(frozen=True, slots=True)
class PartRestarted:
    """A part of a worker that had died runs again."""

    worker: str
    part: str
    seconds: float
    """How long it was down."""
    restarts: int
    """Restarts since it last ran for a full minute."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A part kept dying. The worker stops itself, and `Worker.run` raises `WorkerBroken`."""

    worker: str
    error: str


@dataclass(frozen=True, slots=True)
class CronFired:
    topic: str
    id: str
    tick: float
    schedule: str = ""
    """The name of the schedule; empty: the cron is declared in code."""


@dataclass(frozen=True, slots=True)
class CronMissed:
    """Ticks could not fire in time and, because of `missed="skip"`, never will."""

    topic: str
    tick: float
    """The latest of them."""
    ticks: int = 1
    """How many; at most 1,000 are counted."""
    schedule: str = ""
    """The name of the schedule; empty: the cron is declared in code."""


@dataclass(frozen=True, slots=True)
class OutboxMeasured:
    outbox: str
    """Its table."""
    waiting: int
    """Rows that are committed and not sent yet; at most 100,000 are counted."""
    oldest: float
    """For how long the first of them has waited, in seconds."""
    parked: int
    """Rows that can never be sent as they are."""


OUTCOMES: Final = {
    Completed: "completed",
    Retried: "retried",
    Snoozed: "snoozed",
    Parked: "parked",
    Died: "dead",
    Quarantined: "quarantined",
    Released: "released",
    Postponed: "postponed",
    Replaced: "replaced",
    Aborted: "aborted",
}
"""The outcomes of a message that a worker held, as metrics and logs call them."""

Event = (
    WorkerStarted
    | WorkerStopping
    | WorkerStopped
    | Completed
    | Retried
    | Snoozed
    | Parked
    | Died
    | Quarantined
    | Released
    | Postponed
    | Aborted
    | Replaced
    | Due
    | BatchHandled
    | LeaseLost
    | TakenOver
    | LoopBlocked
    | ServerLost
    | ServerBack
    | PartDied
    | PartRestarted
    | WorkerFailed
    | CronFired
    | CronMissed
    | OutboxMeasured
)
