"""The queue in Django's test cases: on commit, inline, inside the transaction of the test."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import SimpleTestCase

from mx_rmq import InvalidInput, NotOpen, ServerUnavailable
from mx_rmq.django import mq, produce_on_commit
from mx_rmq.django.connections import FreshConnections
from mx_rmq.django.project_queue import queue_from
from mx_rmq.django.testing import TestCase, TransactionTestCase
from mx_rmq.testing import Containing
from tests.django.project.shop.models import Order

URL = "redis://localhost"


class OnCommit(TransactionTestCase):
    databases = "__all__"

    def test_it_is_produced_when_the_transaction_commits(self) -> None:
        with transaction.atomic():
            produce_on_commit("order.placed", 1, key="ann", priority="high")
            self.assertNotProduced("order.placed")
        self.assertProduced("order.placed", 1, key="ann", priority="high")

    def test_a_rollback_produces_nothing(self) -> None:
        with self.assertRaises(KeyError), transaction.atomic():
            produce_on_commit("order.placed", 1)
            raise KeyError
        self.assertNotProduced("order.placed")

    def test_without_a_transaction_it_is_produced_at_once(self) -> None:
        produce_on_commit("order.placed", 1)
        self.assertProduced("order.placed", 1)

    def test_it_waits_for_the_database_that_is_named(self) -> None:
        with transaction.atomic(using="archive"):
            produce_on_commit("order.placed", 1)
            self.assertProduced("order.placed", 1, times=1)
            produce_on_commit("order.placed", 2, using="archive")
            self.assertNotProduced("order.placed", 2)
        self.assertProduced("order.placed", 2)

    def test_what_is_wrong_is_refused_inside_the_transaction(self) -> None:
        with transaction.atomic():
            with self.assertRaises(InvalidInput):
                produce_on_commit("order placed", 1)
            with self.assertRaises(InvalidInput):
                produce_on_commit("order.placed", object())
            with self.assertRaises(TypeError):
                produce_on_commit("order.placed", 1, prio="high")  # type: ignore[call-arg]
            with self.assertRaises(InvalidInput):
                produce_on_commit("order.placed", 1, on_duplicate="never")  # type: ignore[arg-type]

    def test_a_typed_topic_checks_the_payload(self) -> None:
        counts = mq.topic("order.counted", int)
        with self.assertRaisesMessage(InvalidInput, "payload does not fit int"):
            produce_on_commit(counts, "one")
        produce_on_commit(counts, 1)
        self.assertProduced("order.counted", 1, times=1)

    def test_payload_and_headers_are_taken_as_they_are_now(self) -> None:
        payload, headers = {"item": "book"}, {"shop": "1"}
        with transaction.atomic():
            produce_on_commit("order.placed", payload, headers=headers)
            payload["item"] = headers["shop"] = "pen"
        self.assertProduced("order.placed", {"item": "book"}, headers={"shop": "1"})

    def test_if_redis_is_away_the_row_is_stored_and_the_caller_learns_of_it(self) -> None:
        self.mq.sync.close()
        self.mq.settings = replace(self.mq.settings, url="redis://127.0.0.1:1", patience=0.1)
        with self.assertRaises(ServerUnavailable), transaction.atomic():
            Order.objects.create(item="book")
            produce_on_commit("order.placed", 1)
        with self.assertLogs("django.db.backends.base", "ERROR"), transaction.atomic():
            Order.objects.create(item="pen")
            produce_on_commit("order.placed", 2, robust=True)
        self.assertEqual(Order.objects.count(), 2)


class Drains(TestCase):
    def test_handlers_see_the_transaction_of_the_test_and_produce_on_commit(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            answer = self.client.post("/orders/", {"item": "book"})
        id = answer.json()["id"]
        self.assertProduced("order.placed", id=id, times=1)
        self.assertEqual(self.drain().completed, 2)
        self.assertEqual(Order.objects.get().state, "told")  # by the async handler, at last

    def test_the_one_before_left_nothing(self) -> None:
        self.assertEqual(Order.objects.count(), 0)
        self.assertEqual(self.drain().completed, 0)

    def test_what_a_drain_has_produced_on_commit_is_not_produced_again(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            mq.sync.produce("order.placed", Order.objects.create(item="book").pk)
            self.assertEqual(self.drain().completed, 2)
        self.assertProduced("order.shipped", times=1)
        self.assertEqual(self.drain().completed, 0)

    def test_a_failed_handler_is_counted(self) -> None:
        made = Order.objects.create(item="book")
        mq.sync.produce("order.refused", made.pk)
        done = self.drain()
        self.assertEqual((done.retried, done.dead), (4, 1))
        made.refresh_from_db()
        self.assertEqual(made.state, "refused")

    async def test_async_views_and_async_tests_need_no_open_queue(self) -> None:
        answer = await self.async_client.post("/orders/async/", {"item": "book"})
        id = answer.json()["id"]
        self.assertProduced("order.placed", id=id)
        done = await sync_to_async(self.drain)()
        self.assertEqual(done.completed, 2)
        self.assertEqual(
            (await self.async_client.get(f"/orders/{id}/")).json()["result"][-7:], "shipped"
        )
        self.assertEqual(await mq.status("order.placed", "unknown"), None)
        self.assertEqual((await self.async_client.get(f"/watch/{id}/")).content, b"completed\n")
        ids = await mq.produce_many("order.placed", [1, 2], delay=60)
        self.assertTrue(await mq.reschedule("order.placed", ids[0], delay=30))
        self.assertFalse(await mq.signal("order.placed", "unknown", "go"))

    def test_an_async_view_under_wsgi_has_a_new_loop_each_time(self) -> None:
        for item in ("book", "pen"):
            self.client.post("/orders/async/", {"item": item})
        self.assertProduced("order.placed", times=2)

    async def test_what_needs_an_open_queue_says_what_to_do_instead(self) -> None:
        with self.assertRaisesMessage(NotOpen, "mq.sync.acall(lambda mq: mq.admin"):
            _ = mq.admin
        self.assertEqual(await mq.sync.acall(lambda mq: mq.admin.topics()), [])
        with self.assertRaisesMessage(InvalidInput, "through sync_to_async"):
            self.drain()

    async def test_a_flow_needs_no_open_queue(self) -> None:
        async with mq.flow() as flow:
            first = flow.produce("order.placed", {"item": "book"})
            flow.produce("order.placed", {"item": "pen"}, after=[first])
        with self.assertRaises(ZeroDivisionError):
            async with mq.flow() as failed:
                failed.produce("order.placed", {"item": "ink"})
                raise ZeroDivisionError
        self.assertProduced("order.placed", times=2)

    def test_a_forgotten_commit_is_named(self) -> None:
        produce_on_commit("order.placed", 1)
        with self.assertRaises(AssertionError) as caught:
            self.assertProduced("order.placed")
        self.assertIn("A TestCase never commits", caught.exception.__notes__[0])

    def test_a_flow_in_plain_code_is_that_of_sync(self) -> None:
        with self.assertRaisesMessage(NotOpen, "with mq.sync.flow() as flow:"):
            mq.flow()

    def test_a_part_of_a_payload_can_be_asserted(self) -> None:
        mq.sync.produce("order.placed", {"item": "book", "count": 1})
        self.assertProduced("order.placed", Containing({"item": "book"}))


class Connections(SimpleTestCase):
    async def test_a_thread_that_is_busy_holds_back_only_who_looks_at_it(self) -> None:
        fresh, release = FreshConnections(), threading.Event()

        async def nothing(_: object) -> str:
            return "handled"

        busy = asyncio.create_task(sync_to_async(release.wait)(10))
        with patch("mx_rmq.django.connections.CHECK_EVERY", 0):
            looking: Any = asyncio.create_task(fresh.handle(None, nothing))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            async with asyncio.timeout(5):
                self.assertEqual(await fresh.handle(None, nothing), "handled")  # type: ignore[arg-type]
            self.assertFalse(looking.done())
            release.set()
            self.assertEqual(await looking, "handled")
        await busy


class Settings(SimpleTestCase):
    def refused(self, given: object, text: str) -> None:
        with self.assertRaisesMessage(ImproperlyConfigured, text):
            queue_from(given)

    def test_wrong_settings_are_refused_with_the_name_and_the_rule(self) -> None:
        self.refused("redis://:secret@localhost", "settings.MX_RMQ is of type str, not a dict")
        self.refused({"url": URL, "leese": 3}, "settings.MX_RMQ: 'leese' is not an option; the op")
        self.refused({"URL": URL}, "'URL' is not an option; did you mean 'url'?")
        self.refused({"url": URL, "concurrency": 3}, "is a setting of workers")
        self.refused(
            {"url": URL, "lease": 0}, "settings.MX_RMQ: lease=0 is not a number of seconds"
        )
        self.refused({"url": "http://localhost"}, "settings.MX_RMQ: ")
        self.refused({"url": URL, "middleware": "shop.Audit"}, 'settings.MX_RMQ["middleware"]=')
        self.refused({"url": URL, "middleware": ["shop.Audit"]}, 'settings.MX_RMQ["middleware"]: ')
        self.refused({"url": URL, "middleware": ["builtins.dict"]}, "middleware {} is not an inst")

    def test_the_environment_decides_what_settings_leave_open(self) -> None:
        with patch.dict("os.environ", {"MX_RMQ_LEASE": "7", "MX_RMQ_URL": "redis://elsewhere"}):
            self.assertEqual(queue_from({"url": URL}).settings.lease, 7)
            self.assertEqual(queue_from({"url": URL}).settings.url, URL)
            self.assertEqual(queue_from({}).settings.url, "redis://elsewhere")
            self.assertEqual(queue_from({"url": URL, "lease": 9}).settings.lease, 9)

    def test_middleware_and_lifespan_may_be_dotted_paths(self) -> None:
        path = "mx_rmq.core.middleware.Middleware"
        made = queue_from({"url": URL, "middleware": [path], "lifespan": "builtins.print"})
        self.assertEqual(type(made.middleware[-1]).__name__, "Middleware")
        self.assertIs(made.lifespan, print)

    def test_there_is_one_queue_with_the_handlers_of_every_app(self) -> None:
        from mx_rmq import django

        self.assertIs(django.mq, mq)
        self.assertIs(mq.sync, mq.sync)
        self.assertLessEqual({"order.placed", "tasks:default", "tasks:slow"}, set(mq.handlers))
