"""The handler of all tasks: a worker runs a task as it runs any message."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any

import msgspec
from django.utils import timezone

from mx_rmq.core.delivery import Delivery  # noqa: TC001 - read when the handler is declared
from mx_rmq.core.message import VERSION, Failure, Message
from mx_rmq.core.outcome import Circumstances, DeadLetter, after_error
from mx_rmq.django.project_queue import shared_queue
from mx_rmq.django.task_api import (
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from mx_rmq.django.task_call import TaskCall, task_of, with_zone
from mx_rmq.django.task_results import (
    Finished,
    TaskMessage,
    error_of,
    errors_of,
    read_task,
    time_of,
    workers_of,
)
from mx_rmq.runtime import current
from mx_rmq.runtime.steps import encode_kept


class TaskHandler:
    """Runs the tasks of one queue of a backend."""

    def __init__(self, alias: str, queue: str) -> None:
        self._alias = alias
        self._queue = queue

    def run(self, call: TaskCall, delivery: Delivery) -> Any:
        """Run a task in this thread; return a coroutine if the task is async."""
        attempt = _Attempt(call, delivery, alias=self._alias, queue=self._queue)
        task_started.send_robust(attempt.sender, task_result=attempt.result)
        if iscoroutinefunction(attempt.result.task.func):
            return attempt.run_async()
        return attempt.run()


class _Attempt:
    """One attempt of a task."""

    def __init__(self, call: TaskCall, delivery: Delivery, *, alias: str, queue: str) -> None:
        task = task_of(call, alias=alias, queue=queue)
        now = timezone.now()
        earlier = self._earlier = _read_earlier(delivery) if delivery.attempt > 1 else None
        self._call = call
        self._delivery = delivery
        self.sender = type(task_backends[alias])
        self.result: TaskResult[Any] = TaskResult(
            task=task,
            id=delivery.id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=time_of(delivery.created_at),
            started_at=(earlier and earlier.started_at) or now,
            last_attempted_at=now,
            finished_at=None,
            args=call.args,
            kwargs=call.kwargs,
            backend=alias,
            errors=errors_of(earlier.view) if earlier else [],
            worker_ids=[*(workers_of(earlier.view) if earlier else ()), current.worker.get() or ""],
        )
        context = (TaskContext(task_result=self.result),) if task.takes_context else ()
        self._args = (*context, *self.result.args)

    def run(self) -> msgspec.Raw:
        try:
            finished = self._succeeded(self._function(*self._args, **self._call.kwargs))
        except Exception as error:
            if self._failed(error):
                task_finished.send_robust(self.sender, task_result=self.result)
            raise
        task_finished.send_robust(self.sender, task_result=self.result)
        return finished

    async def run_async(self) -> msgspec.Raw:
        try:
            finished = self._succeeded(await self._function(*self._args, **self._call.kwargs))
        except Exception as error:
            if self._failed(error):
                await task_finished.asend_robust(self.sender, task_result=self.result)
            raise
        await task_finished.asend_robust(self.sender, task_result=self.result)
        return finished

    @property
    def _function(self) -> Any:
        return self.result.task.func

    def _succeeded(self, returned: Any) -> msgspec.Raw:
        """Note a success; return what is kept. A value that cannot be kept is a failure."""
        result, value, now = self.result, normalize_json(returned), timezone.now()
        finished = Finished(
            call=self._call,
            value=value,
            started_at=with_zone(result.started_at),
            attempted_at=with_zone(result.last_attempted_at),
            finished_at=with_zone(now),
            errors=[(one.exception_class_path, one.traceback) for one in result.errors],
            workers=result.worker_ids,
        )
        limit = shared_queue().settings.max_payload
        kept = encode_kept(f"the result of {self._call.task}", finished, limit)
        object.__setattr__(result, "_return_value", value)
        object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
        object.__setattr__(result, "finished_at", now)
        return kept

    def _failed(self, error: Exception) -> bool:
        """Return whether this was the last attempt; if so, mark the result as failed."""
        view = self._earlier.view if self._earlier else None
        message = Message(
            v=VERSION,
            id=self._delivery.id,
            topic=self._delivery.topic,
            payload=msgspec.Raw(b"null"),
            attempts=view.attempts if view else 0,
            crashes=view.crashes if view else 0,
        )
        handler = shared_queue().handlers[self._delivery.topic]
        outcome = after_error(message, handler, error, Circumstances(0, "", 0.0))
        if not isinstance(outcome, DeadLetter):
            return False
        self.result.errors.append(error_of(Failure.of(error, at=0)))
        object.__setattr__(self.result, "status", TaskResultStatus.FAILED)
        object.__setattr__(self.result, "finished_at", timezone.now())
        return True


def _read_earlier(delivery: Delivery) -> TaskMessage | None:
    """Read what is known of the earlier attempts."""
    return shared_queue().sync.call(lambda mq: read_task(mq, delivery.topic, delivery.id))
