"""A task's TaskResult, made from its message, or from its result once it has completed.

A completed message is gone, so the handler's result contains all that a TaskResult needs.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.admin.history import What
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import UNSTARTED, State
from mx_rmq.core.outcome import Reject
from mx_rmq.django.task_api import (
    InvalidTaskError,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from mx_rmq.django.task_call import TaskCall, django_time, task_of

if TYPE_CHECKING:
    from mx_rmq.admin.models import FailureView, MessageView
    from mx_rmq.core.message import Failure
    from mx_rmq.django.task_api import Task
    from mx_rmq.queue import MessageQueue

STATUS: Final = {
    State.PROCESSING: TaskResultStatus.RUNNING,
    State.COMPLETED: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.QUARANTINED: TaskResultStatus.FAILED,
}
"""Every other state is READY."""

NO_HANDLER_RAISED: Final = ("aborted", "expired")
"""How the reason of a dead letter begins if no handler raised it."""


class Finished(msgspec.Struct, frozen=True):
    """What the handler of a task returns, and the queue keeps."""

    call: TaskCall
    value: Any
    started_at: datetime | None  # the worker's clock, as for the next two
    attempted_at: datetime | None
    finished_at: datetime | None
    errors: list[tuple[str, str]]  # paths of exceptions and tracebacks
    workers: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessage:
    """A message that is a task, and when its attempts started."""

    view: MessageView
    dispatched: list[float] = field(default_factory=list)

    @property
    def started_at(self) -> datetime | None:
        """When a worker first got it, as far as the history goes back."""
        return time_of(self.dispatched[0]) if self.dispatched else None

    @property
    def attempted_at(self) -> datetime | None:
        return time_of(self.dispatched[-1]) if self.dispatched else None


async def read_task(mq: MessageQueue, topic: str, id: str) -> TaskMessage | None:
    """Return a task's message; None: there is none."""
    view = None
    with suppress(InvalidInput):  # the topic does not exist yet, or no message can have this id
        view = await mq.admin.get(topic, id)
    if view is None:
        return None
    if view.state is State.COMPLETED or (not view.attempts and view.state in UNSTARTED):
        return TaskMessage(view=view)
    happened = await mq.admin.history(topic, id)
    return TaskMessage(
        view=view, dispatched=[one.at for one in happened if one.what is What.DISPATCHED]
    )


def errors_of(view: MessageView) -> list[TaskError]:
    """Return the errors of the attempts so far, oldest first."""
    errors = [error_of(one) for one in view.errors]
    if view.state is State.DEAD and (not errors or view.reason.startswith(NO_HANDLER_RAISED)):
        errors.append(
            TaskError(exception_class_path="mx_rmq.core.errors.MessageDied", traceback=view.reason)
        )
    return errors


def workers_of(view: MessageView) -> list[str]:
    """Return the workers of the attempts so far; "" for each that is no longer known."""
    known = [one.worker for one in view.errors]
    return [""] * (view.attempts - len(known)) + known


def result_of(found: TaskMessage, *, alias: str, queue: str) -> TaskResult[Any]:
    """Return what Django shows of a task."""
    view = found.view
    if view.state is State.COMPLETED:
        return _finished(view, alias=alias, queue=queue)
    try:
        call = msgspec.json.decode(view.content, type=TaskCall)
    except msgspec.DecodeError as error:
        raise TaskResultDoesNotExist(f"{view.id}: its message cannot be read: {error}") from error
    workers = workers_of(view)
    if view.state is State.PROCESSING:
        workers.append(view.worker)
    return TaskResult(
        task=_task(view, call, alias=alias, queue=queue),
        id=view.id,
        status=STATUS.get(view.state, TaskResultStatus.READY),
        enqueued_at=time_of(view.created_at),
        started_at=found.started_at,
        last_attempted_at=found.attempted_at,
        finished_at=time_of(view.archived_at),
        args=call.args,
        kwargs=call.kwargs,
        backend=alias,
        errors=errors_of(view),
        worker_ids=workers,
    )


def _finished(view: MessageView, *, alias: str, queue: str) -> TaskResult[Any]:
    done = msgspec.json.decode(view.content, type=Finished)
    result: TaskResult[Any] = TaskResult(
        task=_task(view, done.call, alias=alias, queue=queue),
        id=view.id,
        status=TaskResultStatus.SUCCESSFUL,
        enqueued_at=time_of(view.created_at),
        started_at=django_time(done.started_at),
        last_attempted_at=django_time(done.attempted_at),
        finished_at=django_time(done.finished_at),
        args=done.call.args,
        kwargs=done.call.kwargs,
        backend=alias,
        errors=[TaskError(exception_class_path=path, traceback=text) for path, text in done.errors],
        worker_ids=done.workers,
    )
    object.__setattr__(result, "_return_value", done.value)
    return result


def _task(view: MessageView, call: TaskCall, *, alias: str, queue: str) -> Task[..., Any]:
    try:
        return task_of(call, alias=alias, queue=queue)
    except (ImportError, InvalidTaskError, Reject) as error:  # it was renamed or removed
        raise TaskResultDoesNotExist(f"{view.id}: {error}") from error


def time_of(seconds: float | None) -> datetime | None:
    """Return a server time as Django shows it."""
    return None if seconds is None else django_time(datetime.fromtimestamp(seconds, UTC))


def error_of(failure: Failure | FailureView) -> TaskError:
    """Return a failed attempt as Django shows it."""
    frames = f"Traceback (most recent call last):\n{failure.traceback}" if failure.traceback else ""
    name = failure.path or failure.type
    text = f"{name}: {failure.text}" if failure.text else name
    return TaskError(
        exception_class_path=failure.path or f"builtins.{failure.type}",
        traceback=f"{frames}{text}\n",
    )
