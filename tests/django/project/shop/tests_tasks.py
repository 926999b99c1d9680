"""The Tasks backend: what Django's tests ask of its own backends, and what ours adds."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import django
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.test import SimpleTestCase, override_settings
from django.utils import timezone

from mx_rmq.django.task_api import (
    InvalidTaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from mx_rmq.django.testing import TestCase
from tests.django.project.shop import tasks
from tests.django.project.shop.models import Order

if TYPE_CHECKING:
    from django.dispatch import Signal

if TYPE_CHECKING or django.VERSION < (6, 0):
    from django_tasks.exceptions import TaskResultMismatch
else:
    from django.tasks.exceptions import TaskResultMismatch


class Enqueueing(TestCase):
    def test_a_task_is_ready_until_a_worker_runs_it(self) -> None:
        result = tasks.add.enqueue(1, b=2)
        self.assertEqual(result.status, TaskResultStatus.READY)
        self.assertFalse(result.is_finished)
        self.assertIsNone(result.started_at)
        self.assertIsNone(result.last_attempted_at)
        self.assertIsNone(result.finished_at)
        self.assertIsNotNone(result.enqueued_at)
        self.assertLess(len(result.id), 65)
        self.assertEqual((result.args, result.kwargs), ([1], {"b": 2}))
        self.assertEqual((result.attempts, result.errors), (0, []))
        with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
            _ = result.return_value
        found = tasks.add.get_result(result.id)
        self.assertEqual((found.task, found.args, found.kwargs), (tasks.add, [1], {"b": 2}))
        self.assertEqual(found.status, TaskResultStatus.READY)

        self.assertEqual(self.drain().completed, 1)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertTrue(result.is_finished)
        self.assertEqual(result.return_value, 3)
        self.assertEqual((result.attempts, len(result.worker_ids)), (1, 1))
        at = result.enqueued_at, result.started_at, result.finished_at
        self.assertEqual([*at], sorted(at))
        self.assertEqual(result.started_at, result.last_attempted_at)

    async def test_all_of_it_can_be_awaited(self) -> None:
        result = await tasks.add_async.aenqueue(1, b=2)
        self.assertEqual(result.status, TaskResultStatus.READY)
        await sync_to_async(self.drain)()
        await result.arefresh()
        self.assertEqual(result.return_value, 3)
        found = await tasks.add_async.aget_result(result.id)
        self.assertEqual(found.task.queue_name, "slow")
        self.assertEqual(found.return_value, 3)
        with self.assertRaises(TaskResultDoesNotExist):
            await tasks.add.aget_result("unknown")
        with self.assertRaises(TaskResultMismatch):
            await tasks.add.aget_result(result.id)

    def test_a_task_uses_the_database_of_the_test(self) -> None:
        Order.objects.create(item="book")
        result = tasks.count_orders.enqueue()
        self.drain()
        result.refresh()
        self.assertEqual(result.return_value, 1)

    def test_priorities_become_those_of_messages(self) -> None:
        for number, name in ((100, "high"), (1, "high"), (0, "normal"), (-1, "low"), (-100, "low")):
            result = tasks.add.using(priority=number).enqueue(number)
            self.assertProduced("tasks:default", id=result.id, priority=name)
            self.assertEqual(tasks.add.get_result(result.id).task.priority, number)
        for wrong in (101, -101, 1.5):
            with self.assertRaisesMessage(InvalidTaskError, "priority must be a whole number"):
                tasks.add.using(priority=wrong)  # type: ignore[arg-type]

    def test_run_after_delays(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        result = tasks.add.using(run_after=later).enqueue(1)
        self.assertEqual(self.drain().completed, 0)
        found = tasks.add.get_result(result.id)
        self.assertEqual(found.status, TaskResultStatus.READY)
        self.assertEqual(found.task.run_after, later)
        with self.assertRaisesMessage(InvalidTaskError, "aware datetime"):
            tasks.add.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001
        past = tasks.add.using(run_after=datetime(2020, 1, 1, tzinfo=UTC)).enqueue(1)
        self.drain()
        past.refresh()
        self.assertEqual(past.return_value, 1)

    def test_arguments_must_be_json(self) -> None:
        for wrong in (object(), datetime.now(UTC), {1, 2}):
            with self.assertRaisesMessage(TypeError, "Unsupported type"):
                tasks.add.enqueue(wrong)  # type: ignore[arg-type]
            with self.assertRaisesMessage(TypeError, "Unsupported type"):
                tasks.add.enqueue(1, b=wrong)  # type: ignore[arg-type]
        self.assertNotProduced("tasks:default")

    def test_other_queues_and_functions_are_refused(self) -> None:
        with self.assertRaisesMessage(InvalidTaskError, "Queue 'other' is not valid"):
            tasks.add.using(queue_name="other")

        def local() -> None: ...

        for wrong in (local, lambda: None, len):
            with self.assertRaises(InvalidTaskError):
                tasks.task(wrong)
        with self.assertRaisesMessage(InvalidTaskError, "first argument of 'context'"):
            tasks.task(takes_context=True)(tasks.add.func)  # type: ignore[arg-type]

    def test_a_result_of_another_task_or_of_none_is_refused(self) -> None:
        result = tasks.add.enqueue(1)
        with self.assertRaises(TaskResultMismatch):
            tasks.fail.get_result(result.id)
        for unknown in ("unknown", "no such id!", ""):
            with self.assertRaises(TaskResultDoesNotExist):
                tasks.add.get_result(unknown)

    def test_a_message_that_names_no_task_fails_and_has_no_result(self) -> None:
        for name, retried in (("not_a_task", 0), ("removed", 2)):
            path = f"tests.django.project.shop.tasks.{name}"
            id = self.mq.sync.produce("tasks:default", {"task": path})
            done = self.drain()
            self.assertEqual((done.retried, done.dead), (retried, 1))
            with self.assertRaisesMessage(TaskResultDoesNotExist, name):
                tasks.add.get_result(id)

    def test_a_message_imports_no_module_from_outside_of_the_project(self) -> None:
        self.assertNotIn("this", sys.modules)
        id = self.mq.sync.produce("tasks:once:default", {"task": "this.s"})
        self.assertEqual(self.drain().dead, 1)
        with self.assertRaisesMessage(TaskResultDoesNotExist, "this.s is not in the project"):
            task_backends["once"].get_result(id)
        self.assertNotIn("this", sys.modules)

    def test_a_message_with_what_no_task_may_have_has_no_result(self) -> None:
        call = {"task": tasks.add.module_path, "priority": 1000}
        id = self.mq.sync.produce("tasks:default", call)
        with self.assertRaisesMessage(TaskResultDoesNotExist, "priority must be"):
            tasks.add.get_result(id)


class Failing(TestCase):
    def failed(self, result: TaskResult[Any], attempts: int) -> None:
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        with self.assertRaisesMessage(ValueError, "Task failed"):
            _ = result.return_value
        self.assertEqual((result.attempts, len(result.errors)), (attempts, attempts))
        self.assertIs(result.errors[-1].exception_class, tasks.Refused)
        self.assertIn("Traceback", result.errors[-1].traceback)
        self.assertIn('raise Refused("no")', result.errors[-1].traceback)
        self.assertTrue(result.errors[-1].traceback.endswith("tasks.Refused: no\n"))
        self.assertIsNotNone(result.finished_at)
        assert result.started_at is not None
        assert result.last_attempted_at is not None
        self.assertLessEqual(result.started_at, result.last_attempted_at)

    def test_it_is_retried_and_then_failed_with_every_error(self) -> None:
        result = tasks.fail.enqueue()
        done = self.drain()
        self.assertEqual((done.retried, done.dead), (2, 1))
        self.failed(result, 3)

    def test_an_async_task_too(self) -> None:
        result = tasks.fail_async.enqueue()
        self.drain()
        self.failed(result, 3)

    def test_each_backend_has_its_own_options(self) -> None:
        result = tasks.fail_once.enqueue()
        self.assertEqual(self.drain().dead, 1)
        self.assertProduced("tasks:once:default", id=result.id)
        self.failed(result, 1)

    def test_the_context_says_which_attempt_it_is(self) -> None:
        result = tasks.attempts.enqueue(3)
        self.drain()
        result.refresh()
        self.assertEqual(result.return_value, [3, 2, result.id])
        self.assertEqual((result.attempts, len(result.errors)), (3, 2))

    def test_a_return_value_that_is_not_json_fails(self) -> None:
        result = tasks.not_json.enqueue()
        self.drain()
        result.refresh()
        self.assertIs(result.errors[0].exception_class, TypeError)

    def test_a_return_value_that_is_too_large_fails_and_nobody_hears_of_a_success(self) -> None:
        heard: list[TaskResultStatus] = []

        def listen(task_result: TaskResult[Any], **_: object) -> None:
            heard.append(task_result.status)

        task_finished.connect(listen)
        self.addCleanup(task_finished.disconnect, listen)
        result = tasks.repeat.enqueue("x", 2_000_000)
        self.drain()
        result.refresh()
        self.assertEqual(heard, [TaskResultStatus.FAILED])
        self.assertIn(
            "the result of tests.django.project.shop.tasks.repeat cannot be kept: it takes",
            result.errors[0].traceback,
        )

    def test_reject_is_not_retried_and_an_aborted_task_says_so(self) -> None:
        rejected, aborted = tasks.reject.enqueue(), tasks.add.enqueue(1)
        self.mq.sync.abort("tasks:default", aborted.id, "no longer needed")
        self.assertEqual(self.drain().dead, 1)
        rejected.refresh()
        self.assertEqual(rejected.errors[0].exception_class_path, "mx_rmq.core.outcome.Reject")
        aborted.refresh()
        self.assertEqual(aborted.status, TaskResultStatus.FAILED)
        self.assertIn("no longer needed", aborted.errors[0].traceback)

    def test_a_failed_task_that_is_requeued_is_ready_again(self) -> None:
        result = tasks.fail_once.enqueue()
        self.drain()
        self.mq.sync.call(lambda mq: mq.admin.requeue("tasks:once:default", result.id))
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.READY)


class Signals(TestCase):
    def heard(self, signal: Signal) -> list[tuple[str, TaskResultStatus]]:
        heard: list[tuple[str, TaskResultStatus]] = []

        def listen(sender: type, task_result: TaskResult[Any], **_: object) -> None:
            heard.append((sender.__name__, task_result.status))
            raise KeyError("a receiver must not fail the task")

        signal.connect(listen)
        self.addCleanup(signal.disconnect, listen)
        return heard

    def test_each_is_sent_once_per_enqueue_attempt_and_end(self) -> None:
        signals = [self.heard(one) for one in (task_enqueued, task_started, task_finished)]
        with self.assertLogs("django.dispatch", "ERROR"):
            tasks.add.enqueue(1)
            tasks.add_async.enqueue(1)
            self.drain()
        enqueued, started, finished = signals
        self.assertEqual(enqueued, [("TaskBackend", TaskResultStatus.READY)] * 2)
        self.assertEqual(started, [("TaskBackend", TaskResultStatus.RUNNING)] * 2)
        self.assertEqual(finished, [("TaskBackend", TaskResultStatus.SUCCESSFUL)] * 2)

    def test_a_failure_has_finished_after_its_last_attempt(self) -> None:
        started, finished = self.heard(task_started), self.heard(task_finished)
        with self.assertLogs("django.dispatch", "ERROR"):
            tasks.fail.enqueue()
            tasks.fail_async.enqueue()
            tasks.reject.enqueue()
            self.drain()
        self.assertEqual(len(started), 7)
        self.assertEqual(finished, [("TaskBackend", TaskResultStatus.FAILED)] * 3)


class Configuring(SimpleTestCase):
    def test_it_supports_everything(self) -> None:
        backend = task_backends["default"]
        self.assertTrue(backend.supports_defer)
        self.assertTrue(backend.supports_async_task)
        self.assertTrue(backend.supports_get_result)
        self.assertTrue(backend.supports_priority)
        self.assertEqual([*backend.check()], [])

    def refused(self, text: str, **params: object) -> None:
        params["BACKEND"] = "mx_rmq.django.TaskBackend"
        with (
            override_settings(TASKS={"other": params}),
            self.assertRaisesMessage(ImproperlyConfigured, text),
        ):
            _ = task_backends["other"]

    def test_wrong_options_are_refused(self) -> None:
        self.refused("TASKS['other']: OPTIONS has no 'retries'", OPTIONS={"retries": 3})
        self.refused("TASKS['other']: handler", OPTIONS={"max_attempts": 0})
        self.refused("TASKS['other']: QUEUES is empty", QUEUES=[])
        self.refused("TASKS['other']: topic 'tasks:other:a b'", QUEUES=["a b"])
        self.refused("TASKS['other']: OPTIONS=3 is not a dict", OPTIONS=3)
        self.refused("TASKS['other']: 'RETRY' belongs in OPTIONS", RETRY=3)

    @override_settings(
        INSTALLED_APPS=[], TASKS={"default": {"BACKEND": "mx_rmq.django.TaskBackend"}}
    )
    def test_a_missing_app_is_refused(self) -> None:
        with self.assertRaisesMessage(ImproperlyConfigured, '"mx_rmq.django" to INSTALLED_APPS'):
            _ = task_backends["default"]


class NoTimeZone(TestCase):
    @override_settings(USE_TZ=False)
    def test_times_are_naive_if_the_project_has_no_time_zones(self) -> None:
        later = datetime.now() - timedelta(hours=1)  # noqa: DTZ005
        result = tasks.add.using(run_after=later).enqueue(1)
        self.drain()
        result.refresh()
        for at in (result.enqueued_at, result.started_at, result.finished_at):
            assert at is not None
            self.assertIsNone(at.tzinfo)
        self.assertEqual(tasks.add.get_result(result.id).task.run_after, later)


class Stored(TestCase):
    def test_the_message_is_readable_json(self) -> None:
        tasks.add.enqueue(1, b=2)
        (message,) = self.assertProduced("tasks:default")
        name = "tests.django.project.shop.tasks.add"
        self.assertEqual(
            json.loads(json.dumps(message.payload)), {"task": name, "args": [1], "kwargs": {"b": 2}}
        )
