"""Who may use the dashboard: whoever knows a password, by HTTP basic authentication."""

from __future__ import annotations

import base64
import binascii
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
    """Who it is; True: somebody; None or False: nobody who may; or what to answer instead."""
    Authorize = Callable[[Request], Answer | Awaitable[Answer]]

LEAST: Final = 8
"""Characters of a password, at the least."""

GUESSES: Final = 4
"""Wrong passwords in WRONG seconds, from everywhere together. After them no password is looked at
until that time is over: what is refused then may have been right."""
WRONG: Final = 1.0

KNOWN: Final = "mx_rmq.known"
"""Where in the scope it says whether the browser was let in before. Guesses of strangers do not
keep it out: those of such browsers are counted apart."""


class Password:
    """Lets one operator in, by name and password. An `authorize` for Dashboard."""

    def __init__(self, user: str, password: str) -> None:
        if not user or ":" in user or not user.isprintable():
            raise InvalidInput("the user's name is empty, or holds a colon or what cannot be shown")
        if len(password) < LEAST:
            raise InvalidInput(f"the password is shorter than {LEAST} characters")
        self.user = user
        self._digest = _digest(user, password)
        self._wrong: dict[bool, deque[float]] = {
            known: deque(maxlen=GUESSES) for known in (False, True)
        }
        """When the latest wrong ones came, of strangers and of browsers that were let in before."""

    def __call__(self, request: Request) -> str | Response:
        """Return the operator's name, or an answer that asks for name and password."""
        given = _given(request.headers.get("authorization", ""))
        if given is not None:
            wrong, now = self._wrong[request.scope.get(KNOWN, False)], time.monotonic()
            if len(wrong) == GUESSES and now - wrong[0] < WRONG:
                return PlainTextResponse(
                    "Too many wrong passwords: yours was not looked at. Try again.\n",
                    status_code=429,
                    headers={"Retry-After": "1"},
                )
            if hmac.compare_digest(_digest(*given), self._digest):
                return self.user
            wrong.append(now)
        return PlainTextResponse(
            "Name and password, please.\n",
            status_code=401,
            headers={"WWW-Authenticate": 'Basic realm="mx-rmq", charset="UTF-8"'},
        )


def _given(header: str) -> tuple[str, str] | None:
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, password) if colon else None


def _digest(user: str, password: str) -> bytes:
    """Return what is compared: of one length, so that the time it takes says nothing."""
    return hashlib.sha256(f"{user}:{password}".encode()).digest()
