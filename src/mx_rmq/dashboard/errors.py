"""Error pages."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException

from mx_rmq.core.errors import (
    InvalidInput,
    MxRmqError,
    NotOpen,
    OutcomeUnknown,
    ScriptFailed,
    ServerUnavailable,
)
from mx_rmq.dashboard.queries import NoSuchTopic, TookTooLong
from mx_rmq.dashboard.request import SAFE

if TYPE_CHECKING:
    from starlette.responses import Response

    from mx_rmq.dashboard.request import DashboardRequest

_AWAY: Final = (
    503,
    "The server is unreachable",
    "Messages are safe, and workers continue when it is back. Check it with: mx-rmq doctor.",
)
PAGES: Final[dict[type[Exception], tuple[int, str, str]]] = {
    NoSuchTopic: (404, "No such topic", "A topic exists once a message has been produced to it."),
    TookTooLong: (
        503,
        "That took too long",
        "The server is up. Narrow the search, or open one topic.",
    ),
    InvalidInput: (400, "Invalid request", "Go back and correct it."),
    OutcomeUnknown: (503, "Outcome unknown", "Check the message before you try again."),
    ServerUnavailable: _AWAY,
    TimeoutError: _AWAY,
    NotOpen: (503, "The queue is not open", "The application must open it: async with mq."),
    ScriptFailed: (502, "The server refused", "Run mx-rmq audit: a key may have the wrong type."),
    MxRmqError: (500, "The request failed", "Run mx-rmq doctor."),
}
"""Status, title and advice. The first kind that matches is used."""


def error_page(request: DashboardRequest, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        text = "" if error.detail == phrase else error.detail
        advice = "Start at the overview." if error.status_code in (404, 405) else ""
        return request.error(error.status_code, phrase.capitalize(), text, advice)
    for kind, page in PAGES.items():
        if isinstance(error, kind):
            only_read = kind is OutcomeUnknown and request.http.method in SAFE
            status, title, advice = _AWAY if only_read else page
            return request.error(status, title, str(error) or "No answer in time.", advice)
    text = f"{type(error).__name__}. See the log."
    return request.error(500, "Dashboard error", text, "The queue itself may be fine.")
