"""One script call, carried through lost replies and a server that is away for a moment.

The client library's own retries are off: it would resend a call without knowing whether that is
safe. Here it is, because every script that changes something either leaves a receipt or is
harmless to repeat.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Any, Final

from redis import exceptions as redis_errors

from mx_rmq.core.errors import (
    OutcomeUnknown,
    ScriptFailed,
    ServerFull,
    ServerUnavailable,
    WrongType,
)
from mx_rmq.store.connect import CONNECTIONS
from mx_rmq.store.link import Link

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redis.asyncio import Redis

    from mx_rmq.store.script import Script, Value
    from mx_rmq.store.wire import Wires

logger = logging.getLogger(__name__)

REPLY_WITHIN: Final = 5.0
"""Seconds that one reply may take."""

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0

_LATER: Final = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.ReadOnlyError,
    redis_errors.TryAgainError,
    redis_errors.ClusterDownError,
)
_LATER_CODES: Final = ("BUSY ", "MASTERDOWN ", "MISCONF ", "NOREPLICAS ", "READONLY ")
"""What passes by itself: nobody there, or a refusal before the script's first write."""


class Caller:
    """Runs scripts on one server."""

    def __init__(
        self,
        client: Redis,
        *,
        patience: float,
        link: Link | None = None,
        reply_within: float = REPLY_WITHIN,
        wires: Wires | None = None,
    ) -> None:
        self._client: Callable[..., Awaitable[Any]] = client.execute_command
        self._wires = wires
        self._patience = patience
        self._link = link or Link()
        self._reply_within = reply_within
        self._free = asyncio.Semaphore(CONNECTIONS)
        self.closed = False

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Value]) -> Any:
        """Run a script, again and again until it has an answer or patience ends."""
        send = self._execute if self._wires is None else self._wires.send
        words = ("EVALSHA", script.sha, len(keys), *keys, *args)
        try:
            return await self._insist(script.name, send, words, script.source)
        except redis_errors.RedisError as error:
            raise await self._refusal(script, keys, error) from error

    async def command(self, name: str, *words: Value) -> Any:
        """Run a plain command that is harmless to repeat."""
        try:
            return await self._insist(name, self._execute, (name, *words))
        except redis_errors.RedisError as error:
            if _is_full(error):
                raise ServerFull(_full(name)) from error
            wrong = WrongType if "WRONGTYPE" in str(error) else ScriptFailed
            raise wrong(f"{name}: {error}") from error

    async def _insist(
        self,
        what: str,
        send: Callable[[tuple[Value, ...], float], Awaitable[Any]],
        words: tuple[Value, ...],
        source: str = "",
    ) -> Any:
        if self.closed:
            raise ServerUnavailable(f"{what}: the store is closed")
        deadline = time.monotonic() + self._patience
        pause = FIRST_PAUSE
        sent = False
        while True:
            try:
                answer = await send(words, self._reply_within)
                self._link.answered()
                return answer
            except redis_errors.NoScriptError:  # a new server, or a flush: it is sent along
                words = ("EVAL", source, *words[2:])
                continue
            except redis_errors.RedisError as error:
                passes = _passes(error)
                if passes:
                    self._link.failed(error)
                elif not sent:
                    raise
                # Refused after a lost reply: the first copy may still be on its way.
                sent = sent or _was_sent(error)
                if not passes or self.closed or time.monotonic() + pause > deadline:
                    raise self._gave_up(what, error, sent=sent) from error
                logger.debug("%s: %s; again in %.2f s", what, error, pause)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _execute(self, words: tuple[Value, ...], within: float) -> Any:
        """Send one command on a connection of the client; wait so many seconds for the reply.

        The time limit is ours, not the client's: before Python 3.12 its way of waiting could
        swallow a cancellation.
        """
        async with self._free:
            try:
                async with asyncio.timeout(within):
                    return await self._client(*words)
            except TimeoutError as error:
                raise redis_errors.TimeoutError(f"no reply within {within:g} s") from error

    def _gave_up(self, what: str, error: Exception, *, sent: bool) -> Exception:
        if sent:
            return OutcomeUnknown(
                f"{what}: the reply was lost and no other came within {self._patience:g} s; "
                f"it may or may not have been done: {error}"
            )
        return ServerUnavailable(
            f"{what}: the server did not take it within {self._patience:g} s; nothing was "
            f"changed: {error}"
        )

    async def _refusal(self, script: Script, keys: Sequence[str], error: Exception) -> Exception:
        words = str(error)
        if _is_login(error):
            return ServerUnavailable(
                f"{script.name}: the server does not let this user in with this password; "
                f"nothing was changed: {words}"
            )
        if _is_full(error):
            return ServerFull(_full(script.name))
        if "WRONGTYPE" in words:
            return WrongType(f"{script.name}: {await self._wrong_keys(script, keys)}")
        return ScriptFailed(f"{script.name}: {words}")

    async def _wrong_keys(self, script: Script, keys: Sequence[str]) -> str:
        found = []
        for key, wanted in zip(keys, script.types, strict=False):
            kind = (await self._execute(("TYPE", key), self._reply_within)).decode()
            if kind not in ("none", wanted.lower()):
                found.append(f"key {key} holds a {kind}, not a {wanted.lower()}")
        return "; ".join(found) or "a key held a wrong type"


def _is_login(error: BaseException | None) -> bool:
    """Say whether the server refused the user: the client wraps what goes wrong at the connect."""
    while error is not None:
        if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
            return True
        error = error.__cause__
    return False


def _passes(error: Exception) -> bool:
    if _is_login(error):
        return False
    if isinstance(error, _LATER):
        return True
    return any(code in str(error) for code in _LATER_CODES)


def _was_sent(error: Exception) -> bool:
    """Say whether the server may have run the call."""
    if isinstance(error, redis_errors.BusyLoadingError | redis_errors.ResponseError):
        return False
    return "connecting to" not in str(error)


def _is_full(error: Exception) -> bool:
    return isinstance(error, redis_errors.OutOfMemoryError) or "OOM command not" in str(error)


def _full(what: str) -> str:
    return (
        f"{what}: the server is at its maxmemory and stores nothing more; "
        "let workers catch up, or raise maxmemory"
    )
