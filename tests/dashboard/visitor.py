"""Somebody with a browser that can do no more than HTTP."""

from __future__ import annotations

import html
import re
from typing import Any, Self
from urllib.parse import urljoin

import httpx

HERE = "http://localhost"

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}\u202e\x00\x1b"
"""Text that would run, break out of an attribute, or write backwards."""


class Visitor:
    """Looks at pages and sends their forms, as a browser would."""

    def __init__(self, app: Any, *, root: str = "", **options: Any) -> None:
        transport = httpx.ASGITransport(app=app)
        self.client = httpx.AsyncClient(transport=transport, base_url=HERE, **options)
        self.root = root

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()

    async def get(self, path: str, code: int = 200, **options: Any) -> httpx.Response:
        answer = await self.client.get(self.root + path, **options)
        assert answer.status_code == code, answer.text
        return answer

    async def page(self, path: str, code: int = 200) -> str:
        """Return the HTML of a page; what was foreign in it is still escaped."""
        return (await self.get(path, code)).text

    async def token(self) -> str:
        """Return what forms of this session bring back."""
        page = await self.page("/topics/orders")
        return str(re.findall(r'name="token" value="([^"]+)"', page)[0])

    async def post(
        self, path: str, code: int = 303, *, token: str | None = None, **fields: str
    ) -> httpx.Response:
        """Send a form as a page of ours would have done."""
        if token is None:
            token = await self.token()
        answer = await self.client.post(
            self.root + path, data={"token": token, **fields}, headers={"Origin": HERE}
        )
        assert answer.status_code == code, answer.text
        return answer

    async def submit(self, path: str, button: str, **fields: str) -> httpx.Response:
        """Load a page, send its form with a button of this text, and follow to where it leads."""
        page = await self.page(path)
        form = next(
            form
            for form in re.findall(r"<form[^>]*>.*?</form>", page, re.DOTALL)
            if re.search(rf"<button[^>]*>\s*{re.escape(button)}\s*</button>", form)
        )
        action = html.unescape(re.findall(r'action="([^"]*)"', form)[0])
        hidden = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form))
        known = {name: html.unescape(value) for name, value in hidden.items()}
        answer = await self.client.post(action, data={**known, **fields}, headers={"Origin": HERE})
        assert answer.status_code == 303, answer.text
        return await self.client.get(urljoin(HERE + action, answer.headers["location"]))
