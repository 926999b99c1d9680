"""One script call, retried through lost replies and short outages.

The client library's own retries are off: it would resend a call without knowing whether that is
safe. Here it is safe, because every script that changes something either leaves a receipt or is
harmless to repeat.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from redis import exceptions as redis_errors

from mx_rmq.core.confirm import Level
from mx_rmq.core.errors import (
    InvalidInput,
    OutcomeUnknown,
    ScriptFailed,
    ServerFull,
    ServerUnavailable,
    WrongType,
)
from mx_rmq.net.availability import Links
from mx_rmq.net.redis_errors import is_temporary, not_loaded, was_sent, why_refused
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.core.confirm import Confirm
    from mx_rmq.net.availability import Link
    from mx_rmq.net.connection import Check, Value
    from mx_rmq.net.topology import Node, Servers
    from mx_rmq.store.script import Script

    Send = Callable[[Node, tuple[Value, ...], float, Check | None], Awaitable[Any]]

logger = get_logger(__name__)

REPLY_WITHIN: Final = 5.0  # seconds that one reply may take

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0

RECEIPT_MS: Final = 600_000  # how long receipts are kept; the scripts use the same number
MAX_REDIRECTS: Final = 5  # how many redirects a call follows before it pauses

_DENIED: Final = re.compile(r"(?i)no permissions|can't (run|access)|NOPERM")
"""What servers say to a user who lacks a right."""


class Caller:
    """Runs scripts where their keys are."""

    def __init__(
        self,
        servers: Servers,
        *,
        patience: float,
        reply_within: float = REPLY_WITHIN,
        load_scripts: bool = True,
    ) -> None:
        self.servers = servers
        self.links = Links()
        self._patience = patience
        self._reply_within = reply_within
        self.load_scripts = load_scripts  # False: an operator loads the scripts that a server lacks
        self._confirms: set[tuple[int, str]] = set()  # (site, level) known to be supported
        self.closed = False

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Value],
        check: Check | None = None,
    ) -> Any:
        """Run a script; retry until it is answered or patience runs out.

        `check` runs before each send until the call was sent once. It may raise to prevent it.
        """
        words = ("EVALSHA", script.sha, len(keys), *keys, *args)
        key = keys[0] if keys else ""  # no key: any server will do
        try:
            return await self._insist(script.name, key, _send, words, script.source, check)
        except redis_errors.RedisError as error:
            raise await self._refusal(script, keys, error) from error

    async def run_confirmed(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Value],
        confirm: Confirm,
        check: Check | None = None,
    ) -> tuple[Any, str]:
        """Run a script that leaves a receipt; return its answer, and what is not yet confirmed.

        WAIT covers only what this connection has written. A repeated call writes nothing, so we
        also write to its receipt: a replica that has that write has everything before it.
        """
        receipt = keys[script.place["receipt"]]

        async def send(
            node: Node, words: tuple[Value, ...], within: float, check: Check | None
        ) -> Any:
            commands = [words, ("PEXPIRE", receipt, RECEIPT_MS), wait_for(confirm)]
            answer, kept, waited = await node.send_all(commands, within + confirm.within, check)
            if isinstance(answer, Exception):
                raise answer
            for reply in (kept, waited):
                if isinstance(reply, Exception):  # stored, but the server became a replica
                    raise redis_errors.ConnectionError(str(reply)) from reply
            return answer, missing(confirm, waited)

        await self._check_confirm(keys[0], confirm)
        words = ("EVALSHA", script.sha, len(keys), *keys, *args)
        try:
            found: tuple[Any, str] = await self._insist(
                script.name, keys[0], send, words, script.source, check
            )
            return found
        except redis_errors.RedisError as error:
            raise await self._refusal(script, keys, error) from error

    async def _check_confirm(self, key: str, confirm: Confirm) -> None:
        """Refuse a level that the server of a key can never confirm, before anything is stored."""
        site = self.servers.site_of(key)
        if (site, confirm.level) in self._confirms:
            return
        words = probe(confirm.level)
        try:
            await self._insist(str(words[0]), key, _send, words)
        except redis_errors.RedisError as error:
            raise InvalidInput(
                f"this server does not support confirm={confirm.level.value!r}; nothing was "
                f"stored: {error}"
            ) from error
        self._confirms.add((site, confirm.level))

    async def command(self, name: str, *words: Value, at: str | None = None) -> Any:
        """Run a plain command that is harmless to repeat, where its first key is, or `at` a key."""
        key = str(words[0]) if at is None else at
        try:
            return await self._insist(name, key, _execute, (name, *words))
        except redis_errors.RedisError as error:
            if why := why_refused(error):
                raise ServerUnavailable(f"{name}: {why}; nothing was changed") from error
            if _is_full(error):
                raise ServerFull(_full(name)) from error
            wrong = WrongType if "WRONGTYPE" in str(error) else ScriptFailed
            raise wrong(f"{name}: {error}") from error

    async def time(self, key: str) -> int:
        """Return the time of a key's server, ms."""
        seconds, micros = await self.command("TIME", at=key)
        return int(seconds) * 1000 + int(micros) // 1000

    def server_of(self, key: str) -> str | None:
        """Return the name of the server that has a key; None: no known server has it."""
        try:
            return self.servers.node_at(self.servers.site_of(key)).name
        except redis_errors.RedisError:
            return None

    async def _insist(
        self,
        what: str,
        key: str,
        send: Send,
        words: tuple[Value, ...],
        source: str = "",
        check: Check | None = None,
    ) -> Any:
        if self.closed:
            raise ServerUnavailable(f"{what}: the store is closed")
        deadline = time.monotonic() + self._patience
        pause = FIRST_PAUSE
        sent = False
        redirects = 0
        site = self.servers.site_of(key)
        link = self.links[site]
        asked: Node | None = None
        link.asked()
        while True:
            try:
                if asked is None:
                    answer = await send(
                        self.servers.node_at(site), words, self._reply_within, check
                    )
                else:
                    answer = await asked.wires.send_asking(words, self._reply_within, check)
                self._answered(site, link)
                return answer
            except redis_errors.RedisError as caught:
                error = caught
                if isinstance(error, redis_errors.NoScriptError):  # a new server, or a flush
                    if self.load_scripts:
                        words = ("EVAL", source, *words[2:])
                        continue
                    error = not_loaded(self.servers.node_at(site).name)
                asked = None
                if isinstance(error, redis_errors.AskError) and redirects < MAX_REDIRECTS:
                    named = self.servers.redirected(error)
                    redirects += 1
                    if isinstance(error, redis_errors.MovedError):
                        continue
                    if send is _send:  # the slot is being moved there
                        asked = named
                        continue
                passing = is_temporary(error)
                if passing:
                    link.failed(error)
                elif why := why_refused(error):  # it comes back when the login is right again
                    link.failed(ServerUnavailable(why))
                if not passing and not sent:
                    raise
                # Refused after a lost reply: the first copy may still arrive.
                if was_sent(error):
                    sent, check = True, None
                if not passing or self.closed or time.monotonic() + pause > deadline:
                    raise self._gave_up(what, error, sent=sent) from error
                logger.debug("%s: %s; retrying in %.2f s", what, error, pause)
            redirects = 0
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            await self.servers.find_servers()
            pause = min(pause * 2, LONGEST_PAUSE)

    def _answered(self, site: int, link: Link) -> None:
        """Note that a server answered: it is reachable for its other sites, too."""
        link.answered()
        for other in self.links.lost():
            with suppress(redis_errors.RedisError):
                if self.servers.node_at(other) is self.servers.node_at(site):
                    self.links[other].answered()

    def _gave_up(self, what: str, error: Exception, *, sent: bool) -> Exception:
        if sent:
            return OutcomeUnknown(
                f"{what}: the reply was lost, and retries got none within {self._patience:g} s; "
                f"it may or may not have been done: {error}"
            )
        return ServerUnavailable(
            f"{what}: the server did not accept it within {self._patience:g} s; nothing was "
            f"changed: {error}"
        )

    async def _refusal(self, script: Script, keys: Sequence[str], error: Exception) -> Exception:
        words = str(error)
        if why := why_refused(error):
            return ServerUnavailable(f"{script.name}: {why}; nothing was changed")
        if _is_full(error):
            return ServerFull(_full(script.name))
        if "WRONGTYPE" in words:
            return WrongType(f"{script.name}: {await self._wrong_keys(script, keys)}")
        if _DENIED.search(words):
            # The server names no key, and in a script only the line.
            what = script.call_at(words, keys) or f"scripts on {', '.join(dict.fromkeys(keys))}"
            words = f"this user may not run {what} (ACL SETUSER): {words}"
        return ScriptFailed(f"{script.name}: {script.place_lines(words)}")

    async def _wrong_keys(self, script: Script, keys: Sequence[str]) -> str:
        found = []
        for key, wanted in zip(keys, script.types, strict=False):
            node = self.servers.node_at(self.servers.site_of(key))
            try:
                kind = (await node.execute(("TYPE", key), self._reply_within)).decode()
            except redis_errors.RedisError:  # away, or not permitted: we cannot tell which key
                break
            if kind not in ("none", wanted.lower()):
                found.append(f"key {key} holds a {kind}, not a {wanted.lower()}")
        return "; ".join(found) or "a key holds the wrong type"


def _send(
    node: Node, words: tuple[Value, ...], within: float, check: Check | None
) -> Awaitable[Any]:
    return node.send(words, within, check)


def _execute(
    node: Node, words: tuple[Value, ...], within: float, check: Check | None
) -> Awaitable[Any]:
    return node.execute(words, within)


def wait_for(confirm: Confirm) -> tuple[Value, ...]:
    """Return the command that waits for confirmation, on the connection that wrote."""
    ms = round(confirm.within * 1000)
    if confirm.level is Level.FSYNCED:
        return ("WAITAOF", 1, confirm.replicas, ms)
    return ("WAIT", confirm.replicas, ms)


def probe(level: Level) -> tuple[Value, ...]:
    """Return a command that a server refuses if it can never confirm this level."""
    return ("WAITAOF", 1, 0, 1) if level is Level.FSYNCED else ("WAIT", 0, 1)


def missing(confirm: Confirm, reply: int | list[int]) -> str:
    """Return what is missing, given the reply to `wait_for`; empty: it is confirmed."""
    local, replicas = reply if isinstance(reply, list) else (1, reply)
    lacks = []
    if not local:
        lacks.append("the primary has not written it to its disk")
    if replicas < confirm.replicas:
        lacks.append(f"{replicas} of {confirm.replicas} replicas have confirmed it")
    return " and ".join(lacks)


def _is_full(error: Exception) -> bool:
    return isinstance(error, redis_errors.OutOfMemoryError) or "OOM command not" in str(error)


def _full(what: str) -> str:
    return (
        f"{what}: the server has reached maxmemory and stores nothing more; "
        "let workers catch up, discard dead letters, or raise maxmemory"
    )
