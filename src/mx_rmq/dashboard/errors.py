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

_Kind = type[Exception] | tuple[type[Exception], ...]

AWAY: Final = (
    503,
    "The server is away",
    "Messages are safe, and workers continue when it is back. Check it with: mx-rmq doctor.",
)
KNOWN: Final[tuple[tuple[_Kind, tuple[int, str, str]], ...]] = (
    (NoSuchTopic, (404, "No such topic", "A topic exists once a message was produced to it.")),
    (
        TookTooLong,
        (
            503,
            "That took too long",
            "The server is up. Narrow the search, or open a single topic.",
        ),
    ),
    (InvalidInput, (400, "Invalid request", "Go back and correct it.")),
    (
        OutcomeUnknown,
        (
            503,
            "Outcome unknown",
            "The server's reply was lost. Check the message before you try again.",
        ),
    ),
    ((ServerUnavailable, OutcomeUnknown, TimeoutError), AWAY),
    (
        NotOpen,
        (503, "The queue is not open", "The application must open it: async with mq."),
    ),
    (
        ScriptFailed,
        (502, "The server refused", "Run mx-rmq audit: a key may hold the wrong type."),
    ),
    (MxRmqError, (500, "That failed", "Run mx-rmq doctor.")),
)
ADVICE: Final = {
    404: "Start at the overview.",
    405: "Start at the overview.",
}


def error_page(request: DashboardRequest, error: Exception) -> Response:
    """Return the page about an error."""
    if isinstance(error, HTTPException):
        return request.page(
            "error.html",
            status=error.status_code,
            title=HTTPStatus(error.status_code).phrase.capitalize(),
            text="" if error.detail == HTTPStatus(error.status_code).phrase else error.detail,
            advice=ADVICE.get(error.status_code, ""),
        )
    changes = request.http.method not in SAFE
    for kind, (status, title, advice) in KNOWN:
        if isinstance(error, kind) and (changes or kind is not OutcomeUnknown):
            text = str(error) or "No answer in time."
            return request.page("error.html", status=status, title=title, text=text, advice=advice)
    return request.page(
        "error.html",
        status=500,
        title="Dashboard error",
        text=f"{type(error).__name__}. See its log.",
        advice="The queue itself may be fine.",
    )
