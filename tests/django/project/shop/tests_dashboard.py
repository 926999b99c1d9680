"""The dashboard in the project: who may see it, its forms, its events under WSGI and ASGI."""

from __future__ import annotations

import re
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from mx_rmq.django import mq
from mx_rmq.django.testing import TestCase

HOSTILE = "<script>alert(1)</script>"
ORIGIN: Any = {"HTTP_ORIGIN": "http://testserver"}


def token_of(answer: Any) -> str:
    found = re.search(r'name="token" value="([^"]+)"', answer.content.decode())
    assert found
    return found[1]


class Dashboard(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.staff = User.objects.create_user("ann", password="secret", is_staff=True)
        mq.sync.produce("order.refused", {"item": HOSTILE})
        self.drain()

    def get(self, path: str = "") -> Any:
        return self.client.get(f"/mx-rmq/{path}")

    def test_strangers_sign_in_first_and_users_who_are_not_staff_are_refused(self) -> None:
        for path in ("", "topics/order.refused", "static/x/app.js", "healthz", "metrics"):
            answer = self.get(path)
            self.assertRedirects(
                answer, f"/sign-in/?next=/mx-rmq/{path}", fetch_redirect_response=False
            )
        self.client.force_login(User.objects.create_user("bob"))
        self.assertEqual(self.get().status_code, 403)
        self.staff.is_active = False
        self.staff.save()
        self.client.force_login(self.staff)
        self.assertEqual(self.get().status_code, 302)

    def test_staff_see_pages_files_and_escaped_payloads(self) -> None:
        self.client.force_login(self.staff)
        page = self.get()
        self.assertContains(page, "order.refused")
        self.assertIn("default-src 'none'", page.headers["Content-Security-Policy"])
        style = re.search(r'href="(/mx-rmq/static/[^"]+\.css)"', page.content.decode())
        assert style
        self.assertEqual(self.client.get(style[1]).headers["Content-Type"][:8], "text/css")
        dead = self.get("quarantine?topic=order.refused")
        self.assertNotContains(dead, HOSTILE)
        self.assertContains(dead, "&lt;script&gt;")
        self.assertEqual(self.get("topics/unknown").status_code, 404)

    def test_a_form_needs_its_token_and_our_origin(self) -> None:
        client = Client(enforce_csrf_checks=True)
        client.force_login(self.staff)
        path = "/mx-rmq/topics/order.refused/pause"
        token = token_of(client.get("/mx-rmq/topics/order.refused"))
        self.assertEqual(client.post(path, {}, **ORIGIN).status_code, 415)

        def post(token: str, **more: Any) -> int:
            body = f"token={token}"
            kind = "application/x-www-form-urlencoded"
            return client.post(path, body, content_type=kind, **more).status_code

        self.assertEqual(post("wrong", **ORIGIN), 403)
        self.assertEqual(post(token), 403)
        self.assertEqual(post(token, HTTP_ORIGIN="http://evil.example"), 403)
        self.assertFalse(self.paused())
        self.assertEqual(post(token, **ORIGIN), 303)
        self.assertTrue(self.paused())
        happened = mq.sync.call(self.happened)
        self.assertIn("ann", happened)

    def paused(self) -> bool:
        stats = mq.sync.call(lambda mq: mq.admin.stats("order.refused"))
        return stats.paused

    @staticmethod
    async def happened(mq: Any) -> list[str]:
        """Return who did the latest thing to the topic."""
        async for one in mq.admin.tail("order.refused", since=0):
            if one.what == "paused":
                return [one.by]
        return []

    def test_under_wsgi_live_events_end_after_the_first(self) -> None:
        self.client.force_login(self.staff)
        answer = self.get("live")
        self.assertFalse(answer.streaming)
        self.assertEqual(answer.headers["Content-Type"].partition(";")[0], "text/event-stream")
        self.assertIn(b"event: sample", answer.content)
        self.assertTrue(answer.content.endswith(b'event: again\ndata: {"after": 3000}\n\n'))

    async def test_under_asgi_live_events_are_streamed(self) -> None:
        await self.async_client.aforce_login(self.staff)
        answer: Any = await self.async_client.get("/mx-rmq/live")
        self.assertTrue(answer.streaming)
        text, stream = b"", aiter(answer.streaming_content)
        while b"event: sample" not in text:
            text += await anext(stream)
        await stream.aclose()
        page = await self.async_client.get("/mx-rmq/topics/order.refused")
        self.assertEqual(page.status_code, 200)
