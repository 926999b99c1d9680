"""What errors of the client mean: whether they pass, what was sent, why we are not let in."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Final

from redis import exceptions as redis_errors
from redis.asyncio.sentinel import MasterNotFoundError

from mx_rmq.core.errors import ServerUnavailable
from mx_rmq.core.login import shown_url
from mx_rmq.store.wire import Unreached

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
"""What passes by itself: nobody there, or a refusal before the script's first write."""

_NO_DATABASE: Final = re.compile("DB index is out of range|SELECT is not allowed in cluster mode")
_OTHER_URL: Final = re.compile(r"of a cluster: use redis\S*:// for it")


def passes(error: Exception) -> bool:
    """Say whether it is over in a while: nobody is there, or it was refused before any write."""
    if no_entry(error) is not None:
        return False
    if isinstance(error, _LATER):
        return True
    return any(code in str(error) for code in _LATER_CODES)


def was_sent(error: Exception) -> bool:
    """Say whether the server may have run the call."""
    before = Unreached | MasterNotFoundError | redis_errors.BusyLoadingError
    if isinstance(error, before | redis_errors.ResponseError):
        return False
    return "connecting to" not in str(error)


def no_entry(error: BaseException) -> str | None:
    """Say why a server is not to be used as it was tried, if that does not pass by itself."""
    words = str(error)
    if "NOAUTH" in words or "HELLO must be called" in words:
        return (
            "the server wants a login, and none was given (in the URL, or as MX_RMQ_PASSWORD): "
            + words
        )
    if _is_login(error):
        return f"the server does not let this user in with this password: {words}"
    if _is_tls(error):
        return f"no TLS with this server: {words}"
    if _NO_DATABASE.search(words):
        return f"the server has no database of this number: {words}"
    return words if _OTHER_URL.search(words) else None


def not_loaded(server: str) -> redis_errors.NoScriptError:
    """Return what to say when a server lacks our scripts, and we may not bring them along."""
    return redis_errors.NoScriptError(
        f"the scripts of this version of mx-rmq are not loaded on {server} (load_scripts is off): "
        "run `mx-rmq load-scripts`, as after every restart, failover or SCRIPT FLUSH"
    )


def cannot_use(url: str, error: Exception, patience: float) -> ServerUnavailable:
    """Return what to tell somebody whose first call to a server did not get through."""
    said = error.__cause__ or error
    if isinstance(said, redis_errors.NoScriptError):
        return ServerUnavailable(f"cannot use {shown_url(url)}: {said}")
    why = no_entry(said) or f"no answer within {patience:g} s ({said}){_advice(url, said)}"
    return ServerUnavailable(f"cannot use {shown_url(url)}: {why}")


def _advice(url: str, error: BaseException) -> str:
    """Return what to do about a server that cannot be reached, as far as it can be known."""
    reasons = [cause for cause in _causes(error) if isinstance(cause, OSError)]
    if not reasons:
        return ""
    silent = any(isinstance(cause, TimeoutError | ssl.SSLError) for cause in reasons)
    if silent and url.startswith(("rediss", "valkeys")):
        return "; perhaps the server does not speak TLS: then use redis://"
    return "; see whether the server runs there, and whether the URL is right"


def _is_login(error: BaseException) -> bool:
    """Say whether the server refused the user."""
    refusals = redis_errors.AuthenticationError | redis_errors.AuthorizationError
    return any(isinstance(cause, refusals) for cause in _causes(error))


def _is_tls(error: BaseException) -> bool:
    """Say whether one side refused the other's certificate, or does not speak TLS at all."""
    passing = ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
    return any(
        isinstance(cause, ssl.SSLError) and not isinstance(cause, passing)
        for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Walk through what an error wraps: the client wraps what goes wrong at the connect."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
