"""What a page says when something went wrong."""

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
from mx_rmq.dashboard.ask import SAFE
from mx_rmq.dashboard.source import NoSuchTopic, TookTooLong

if TYPE_CHECKING:
    from starlette.responses import Response

    from mx_rmq.dashboard.ask import Ask

_Kind = type[Exception] | tuple[type[Exception], ...]

AWAY: Final = (
    503,
    "The server is away",
    "Messages are safe; workers go on by themselves when it is back. Look at it: mx-rmq doctor.",
)
KNOWN: Final[tuple[tuple[_Kind, tuple[int, str, str]], ...]] = (
    (NoSuchTopic, (404, "No such topic", "A topic exists from its first message on.")),
    (
        TookTooLong,
        (
            503,
            "It took too long",
            "The server answers. Search for less, or open one topic instead of all.",
        ),
    ),
    (InvalidInput, (400, "That cannot be done", "Go back and change it.")),
    (
        OutcomeUnknown,
        (
            503,
            "Done or not done",
            "The answer of the server was lost. Look at the message before you repeat it.",
        ),
    ),
    ((ServerUnavailable, OutcomeUnknown, TimeoutError), AWAY),
    (
        NotOpen,
        (503, "The queue is not open", "The application around must open it: async with mq."),
    ),
    (
        ScriptFailed,
        (502, "The server refused", "Run mx-rmq audit: a key may hold what it should not."),
    ),
    (MxRmqError, (500, "It did not work", "Run mx-rmq doctor.")),
)
ADVICE: Final = {
    404: "Begin at the overview.",
    405: "Begin at the overview.",
}


def error_page(ask: Ask, error: Exception) -> Response:
    """Return the page about an error."""
    if isinstance(error, HTTPException):
        return ask.page(
            "error.html",
            status=error.status_code,
            title=HTTPStatus(error.status_code).phrase.capitalize(),
            text="" if error.detail == HTTPStatus(error.status_code).phrase else error.detail,
            advice=ADVICE.get(error.status_code, ""),
        )
    changes = ask.request.method not in SAFE
    for kind, (status, title, advice) in KNOWN:
        if isinstance(error, kind) and (changes or kind is not OutcomeUnknown):
            text = str(error) or "It did not answer in time."
            return ask.page("error.html", status=status, title=title, text=text, advice=advice)
    return ask.page(
        "error.html",
        status=500,
        title="A fault of the dashboard",
        text=f"{type(error).__name__}. Its log says more.",
        advice="Nothing is known to be wrong with the queue.",
    )
