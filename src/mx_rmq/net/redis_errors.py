"""What the client's errors mean: do they pass, was the call sent, why are we refused?"""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Final

from redis import exceptions as redis_errors
from redis.asyncio.sentinel import MasterNotFoundError

from mx_rmq.core.errors import ServerUnavailable
from mx_rmq.login import shown_url
from mx_rmq.net.connection import Unreached

if TYPE_CHECKING:
    from collections.abc import Iterator

_LATER: Final = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.ReadOnlyError,
    redis_errors.TryAgainError,
    redis_errors.ClusterDownError,
    redis_errors.AskError,
    redis_errors.NoScriptError,  # an operator loads them again
)
_LATER_CODES: Final = ("BUSY ", "MASTERDOWN ", "MISCONF ", "NOREPLICAS ", "READONLY ")
"""Errors that pass: the server is away, or it refused before the script's first write."""

_LOGIN_REFUSED: Final = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)
_NO_DATABASE: Final = re.compile("DB index is out of range|SELECT is not allowed in cluster mode")
_OTHER_URL: Final = re.compile(r"of a cluster: use redis\S*:// for it")


def is_temporary(error: Exception) -> bool:
    """Return whether a retry may succeed: the server is away, or refused before any write."""
    if why_refused(error) is not None:
        return False
    if isinstance(error, _LATER):
        return True
    return any(code in str(error) for code in _LATER_CODES)


def was_sent(error: Exception) -> bool:
    """Return whether the server may have run the call."""
    before = Unreached | MasterNotFoundError | redis_errors.BusyLoadingError
    if isinstance(error, before | redis_errors.ResponseError):
        return False
    return "connecting to" not in str(error)


def why_refused(error: BaseException) -> str | None:
    """Return why the server refuses us, if a retry cannot help; None otherwise."""
    words = str(error)
    if "NOAUTH" in words or "HELLO must be called" in words:
        return (
            "the server requires a login, and none is set (in the URL, or as MX_RMQ_PASSWORD): "
            + words
        )
    if any(isinstance(cause, _LOGIN_REFUSED) for cause in _causes(error)):
        return f"the server refused this user or password: {words}"
    if _is_tls(error):
        return f"TLS with this server failed: {words}"
    if _NO_DATABASE.search(words):
        return f"the server has no database with this number: {words}"
    return words if _OTHER_URL.search(words) else None


def is_denied(error: Exception) -> bool:
    """Return whether a call was refused because the user lacks a right."""
    return isinstance(error.__cause__, redis_errors.NoPermissionError)


def not_loaded(server: str) -> redis_errors.NoScriptError:
    """Return the error for a server that lacks our scripts when we may not load them."""
    return redis_errors.NoScriptError(
        f"the scripts of this version of mx-rmq are not loaded on {server} (load_scripts is off): "
        "run `mx-rmq load-scripts`, also after every restart, failover or SCRIPT FLUSH"
    )


def cannot_use(url: str, error: Exception, patience: float) -> ServerUnavailable:
    cause = error.__cause__ or error
    if isinstance(cause, redis_errors.NoScriptError):
        return ServerUnavailable(f"cannot use {shown_url(url)}: {cause}")
    why = why_refused(cause) or f"no answer within {patience:g} s ({cause}){_advice(url, cause)}"
    return ServerUnavailable(f"cannot use {shown_url(url)}: {why}")


def _advice(url: str, error: BaseException) -> str:
    """Return advice for a server that cannot be reached; empty if we have none."""
    reasons = [cause for cause in _causes(error) if isinstance(cause, OSError)]
    if not reasons:
        return ""
    silent = any(isinstance(cause, TimeoutError | ssl.SSLError) for cause in reasons)
    if silent and url.startswith(("rediss", "valkeys")):
        return "; if the server does not speak TLS, use redis://"
    return "; check that the server runs there and that the URL is right"


def _is_tls(error: BaseException) -> bool:
    """Return whether one side refused the other's certificate, or does not speak TLS."""
    passing = ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
    return any(
        isinstance(cause, ssl.SSLError) and not isinstance(cause, passing)
        for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it wraps: the client wraps errors of connecting."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
