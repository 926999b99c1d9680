"""HTTP basic authentication with one name and password."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from starlette.responses import PlainTextResponse, Response

from mx_rmq.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    Answer = str | bool | Response | None
    """The user's name, True if anonymous access is allowed, None or False if refused, or a response
    to send instead."""
    Authorize = Callable[[Request], Answer | Awaitable[Answer]]

SHORTEST: Final = 8  # characters of a password

GUESSES: Final = 4
WRONG: Final = 1.0
"""Wrong passwords allowed in WRONG seconds, from all clients together. After that no password is
checked until the time is over, so a refused one may have been right."""

KNOWN: Final = "mx_rmq.known"
"""Scope key: whether this browser was admitted before. Its guesses are counted separately, so
that strangers cannot lock it out."""


class Password:
    """Admits one operator, by name and password. An `authorize` for Dashboard."""

    def __init__(self, user: str, password: str) -> None:
        if not user or ":" in user or not user.isprintable():
            raise InvalidInput(
                f"user name {user!r:.80} must be printable and not empty, without a colon"
            )
        if len(password) < SHORTEST:
            raise InvalidInput(f"the password must have at least {SHORTEST} characters")
        self.user = user
        self._digest = _digest(f"{user}:{password}".encode())
        self._wrong: dict[bool, deque[float]] = {  # times of wrong guesses, by KNOWN
            known: deque(maxlen=GUESSES) for known in (False, True)
        }

    def __call__(self, request: Request) -> str | Response:
        """Return the operator's name, or a response that asks for name and password."""
        given = _credentials(request.headers.get("authorization", ""))
        if given is not None:
            wrong, now = self._wrong[request.scope.get(KNOWN, False)], time.monotonic()
            if len(wrong) == GUESSES and now - wrong[0] < WRONG:
                return PlainTextResponse(
                    "Too many wrong passwords. Yours was not checked: try again.\n",
                    status_code=429,
                    headers={"Retry-After": "1"},
                )
            if hmac.compare_digest(_digest(given), self._digest):
                return self.user
            wrong.append(now)
        return PlainTextResponse(
            "Sign in with your name and password.\n",
            status_code=401,
            headers={"WWW-Authenticate": 'Basic realm="mx-rmq", charset="UTF-8"'},
        )


def _credentials(header: str) -> bytes | None:
    """Return `user:password` from an Authorization header; None: it has none."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        return None


def _digest(credentials: bytes) -> bytes:
    """Return a digest of constant length, so that comparing it leaks no timing."""
    return hashlib.sha256(credentials).digest()
