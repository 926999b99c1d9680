"""Jobs: requeue, discard or cancel many messages in the background of this process."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from mx_rmq.admin import Progress
    from mx_rmq.core.message import State
    from mx_rmq.dashboard.audit_log import AuditLog
    from mx_rmq.dashboard.queries import Queries
    from mx_rmq.dashboard.search import Search

logger = get_logger(__name__)

AT_ONCE: Final = 4
"""Jobs that may run at the same time."""

KEPT: Final = 50
"""Jobs that are remembered."""


class Stage(StrEnum):
    """How far a job has come."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class Job:
    """One action on many messages."""

    id: str
    """Random: with numbers, each process would count its own, and stop the wrong one."""
    who: str
    where: str
    act: str
    topic: str
    state: State
    search: Search
    limit: int | None
    rate: float | None
    started: float = field(default_factory=time.time)
    ended: float | None = None
    stage: Stage = Stage.RUNNING
    done: int = 0
    looked: int = 0
    total: int | None = None
    error: str = ""

    def update(self, progress: Progress) -> None:
        """Update the progress."""
        self.done, self.looked, self.total = progress.done, progress.looked, progress.total


class Jobs:
    """The jobs of this process."""

    def __init__(self, queries: Queries, audit_log: AuditLog) -> None:
        self._queries = queries
        self._audit_log = audit_log
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[int]] = {}

    def start(
        self,
        *,
        who: str,
        where: str,
        act: str,
        topic: str,
        state: State,
        search: Search,
        limit: int | None,
        rate: float | None,
    ) -> Job:
        """Start a job; the audit log records its start and its end."""
        if len(self._tasks) >= AT_ONCE:
            raise InvalidInput(f"{AT_ONCE} jobs are running already; stop one, or wait for one")
        job = Job(
            id=secrets.token_hex(6),
            who=who,
            where=where,
            act=act,
            topic=topic,
            state=state,
            search=search,
            limit=limit,
            rate=rate,
        )
        self._jobs[job.id] = job
        for id in list(self._jobs)[:-KEPT]:
            if id not in self._tasks:
                del self._jobs[id]
        self._note(job, "begun")
        task = asyncio.create_task(self._run(job), name="mx-rmq dashboard job")
        self._tasks[job.id] = task
        task.add_done_callback(partial(self._ended, job))
        return job

    def get(self, id: str) -> Job | None:
        """Return a job; None: unknown, or too old."""
        return self._jobs.get(id)

    def latest(self) -> list[Job]:
        """Return the jobs, newest first."""
        return list(reversed(self._jobs.values()))

    def stop(self, id: str) -> None:
        """Stop a job. What it has done is not undone."""
        if task := self._tasks.get(id):
            task.cancel()

    async def close(self) -> None:
        """Stop all of them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job) -> int:
        return await self._queries.bulk(
            job.who,
            job.act,
            job.topic,
            job.state,
            job.search,
            limit=job.limit,
            rate=job.rate,
            progress=job.update,
        )

    def _ended(self, job: Job, task: asyncio.Task[int]) -> None:
        """Record the outcome, also of a job that was stopped before it began."""
        del self._tasks[job.id]
        job.ended = time.time()
        if task.cancelled():
            job.stage = Stage.STOPPED
        elif error := task.exception():
            job.stage, job.error = Stage.FAILED, str(error) or type(error).__name__
            if not isinstance(error, MxRmqError):
                logger.error("job %s failed", job.id, exc_info=error)
        else:
            job.stage, job.done = Stage.DONE, task.result()
        told = f"{job.stage}: {job.done:,} messages" + (f": {job.error}" if job.error else "")
        self._note(job, told)

    def _note(self, job: Job, outcome: str) -> None:
        parts = (
            f"job {job.id}: all {job.state}",
            job.search.words(),
            f"at most {job.limit:,}" if job.limit is not None else "",
            f"at {job.rate:g} per second" if job.rate is not None else "",
        )
        self._audit_log.note(
            f"{job.act} many",
            outcome,
            who=job.who,
            where=job.where,
            topic=job.topic,
            about=", ".join(filter(None, parts)),
        )
