"""Jobs: requeue, discard, cancel or abort many messages in the background of this process."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.core.text import count
from mx_rmq.dashboard.audit_log import AuditEntry
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from mx_rmq.admin import Admin, Progress
    from mx_rmq.core.message import State
    from mx_rmq.dashboard.audit_log import AuditLog
    from mx_rmq.dashboard.search import Search
    from mx_rmq.queue import MessageQueue

logger = get_logger(__name__)

AT_ONCE: Final = 4  # jobs that may run at the same time
KEPT: Final = 50  # jobs that are remembered


DONE: Final = {
    "requeue": "requeued",
    "discard": "discarded",
    "cancel": "cancelled",
    "abort": "aborted",
}


@dataclass(slots=True, kw_only=True)
class Job:
    """One action on many messages."""

    who: str
    where: str
    act: str
    topic: str
    state: State
    search: Search
    limit: int | None
    rate: float | None
    reason: str = ""  # of an abort
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    """Random. Processes behind a load balancer would use the same numbers for different jobs."""
    started: float = field(default_factory=time.time)
    ended: float | None = None
    stage: Literal["running", "done", "stopped", "failed"] = "running"
    done: int = 0
    checked: int = 0
    total: int | None = None
    error: str = ""

    def update(self, progress: Progress) -> None:
        self.done, self.checked, self.total = progress.done, progress.looked, progress.total


async def run_bulk(
    admin: Admin, act: str, topic: str, state: State, search: Search, **options: Any
) -> int:
    """Requeue, discard, cancel or abort the messages of a state that match; return how many.

    The options are those of `Admin.requeue_all`.
    """
    acts = {
        "requeue": admin.requeue_all,
        "discard": admin.discard_all,
        "cancel": admin.cancel_all,
        "abort": admin.abort_all,
    }
    return await acts[act](topic, state, filter=search.filter(), **options)


class Jobs:
    """The jobs of this process."""

    def __init__(self, mq: MessageQueue, audit_log: AuditLog) -> None:
        self._mq = mq
        self._audit_log = audit_log
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[int]] = {}

    def start(self, job: Job) -> None:
        """Start a job; the audit log records its start and its end."""
        if len(self._tasks) >= AT_ONCE:
            raise InvalidInput(
                f"{AT_ONCE} jobs are already running; stop one, or wait until one ends"
            )
        self._jobs[job.id] = job
        for id in list(self._jobs)[:-KEPT]:
            if id not in self._tasks:
                del self._jobs[id]
        self._note(job, "started")
        task = asyncio.create_task(self._run(job), name="mx-rmq dashboard job")
        self._tasks[job.id] = task
        task.add_done_callback(partial(self._ended, job))

    def get(self, id: str) -> Job | None:
        """Return a job; None: unknown, or no longer remembered."""
        return self._jobs.get(id)

    def latest(self) -> list[Job]:
        """Return the jobs, newest first."""
        return list(reversed(self._jobs.values()))

    def stop(self, id: str) -> None:
        """Stop a job. What it has done is not undone."""
        if task := self._tasks.get(id):
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job) -> int:
        admin = self._mq.admin.as_operator(job.who)
        options: dict[str, Any] = {
            "limit": job.limit,
            "rate": job.rate,
            "progress": job.update,
        }
        if job.act == "abort":
            options["reason"] = job.reason
        return await run_bulk(admin, job.act, job.topic, job.state, job.search, **options)

    def _ended(self, job: Job, task: asyncio.Task[int]) -> None:
        """Record the outcome, also of a job that was stopped before it began."""
        del self._tasks[job.id]
        job.ended = time.time()
        if task.cancelled():
            job.stage = "stopped"
        elif error := task.exception():
            job.stage, job.error = "failed", str(error) or type(error).__name__
            if not isinstance(error, MxRmqError):
                logger.error("job %s failed", job.id, exc_info=error)
        else:
            job.stage, job.done = "done", task.result()
        outcome = f"{job.stage}: {count(job.done, 'message')}"
        self._note(job, f"{outcome}: {job.error}" if job.error else outcome)

    def _note(self, job: Job, outcome: str) -> None:
        parts = (
            f"job {job.id}: all {job.state}",
            job.search.words(),
            job.reason,
            f"at most {job.limit:,}" if job.limit is not None else "",
            f"at most {job.rate:g} per second" if job.rate is not None else "",
        )
        entry = AuditEntry(
            who=job.who,
            where=job.where,
            did=f"{job.act} many",
            topic=job.topic,
            about=", ".join(filter(None, parts)),
            outcome=outcome,
        )
        self._audit_log.add(entry)
