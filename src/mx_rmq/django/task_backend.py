"""A backend for Django's Tasks framework. A task is a message; any worker of the queue runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.utils import timezone

from mx_rmq.core.message import Priority
from mx_rmq.django.project_queue import shared_queue
from mx_rmq.django.task_api import (
    BaseTaskBackend,
    InvalidTaskBackendError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from mx_rmq.django.task_call import TaskCall, with_zone
from mx_rmq.django.task_results import read_task, result_of
from mx_rmq.django.task_topics import OPTIONS, declare, topic_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.django.task_api import Task
    from mx_rmq.queue import MessageQueue


class TaskBackend(BaseTaskBackend):
    """`TASKS = {"default": {"BACKEND": "mx_rmq.django.TaskBackend"}}`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        if apps.apps_ready and not apps.is_installed("mx_rmq.django"):
            raise InvalidTaskBackendError(
                f"TASKS[{alias!r}]: mx_rmq.django.TaskBackend needs its app: add "
                '"mx_rmq.django" to INSTALLED_APPS'
            )
        if misplaced := next((name for name in params if name.lower() in OPTIONS), None):
            raise InvalidTaskBackendError(f"TASKS[{alias!r}]: {misplaced!r} belongs in OPTIONS")
        try:
            declare(alias, self.queues, self.options)
        except ValueError as error:
            raise InvalidTaskBackendError(str(error)) from error

    def enqueue(
        self, task: Task[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> TaskResult[Any]:
        """Enqueue a task now, without waiting for the transaction to commit."""
        result, message = self._new(task, args, kwargs)
        id = shared_queue().sync.produce(**message)
        object.__setattr__(result, "id", id)
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    async def aenqueue(
        self, task: Task[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> TaskResult[Any]:
        """Enqueue a task from async code."""
        result, message = self._new(task, args, kwargs)
        id = await shared_queue().produce(**message)
        object.__setattr__(result, "id", id)
        await task_enqueued.asend_robust(type(self), task_result=result)
        return result

    def _new(
        self, task: Task[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[TaskResult[Any], dict[str, Any]]:
        """Return a result without an id, and the arguments of `produce`."""
        self.validate_task(task)
        due = with_zone(task.run_after)
        result: TaskResult[Any] = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,  # type: ignore[arg-type]  # it makes a list of them, or raises TypeError
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        call = TaskCall(
            task=task.module_path,
            args=result.args,
            kwargs=result.kwargs,
            priority=task.priority,
            run_after=due,
        )
        return result, {
            "topic": topic_of(self.alias, task.queue_name),
            "payload": call,
            "priority": _priority(task.priority),
            "at": due,
        }

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """Return a task's result, or raise TaskResultDoesNotExist."""
        return shared_queue().sync.call(lambda mq: self._find(mq, result_id))

    async def aget_result(self, result_id: str) -> TaskResult[Any]:
        """Return a task's result, or raise TaskResultDoesNotExist."""
        return await shared_queue().sync.acall(lambda mq: self._find(mq, result_id))

    async def _find(self, mq: MessageQueue, id: str) -> TaskResult[Any]:
        for queue in sorted(self.queues, key=lambda name: (name != "default", name)):
            found = await read_task(mq, topic_of(self.alias, queue), id)
            if found is not None:
                return result_of(found, alias=self.alias, queue=queue)
        raise TaskResultDoesNotExist(id)


def _priority(number: int) -> Priority:
    """Map Django's priorities, -100 to 100, to our three."""
    if number == 0:
        return Priority.NORMAL
    return Priority.HIGH if number > 0 else Priority.LOW
