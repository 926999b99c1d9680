"""One script call, carried through lost replies and a server that is away for a moment.

The client library's own retries are off: it would resend a call without knowing whether that is
safe. Here it is, because every script that changes something either leaves a receipt or is
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

from mx_rmq.core.errors import (
    InvalidInput,
    OutcomeUnknown,
    ScriptFailed,
    ServerFull,
    ServerUnavailable,
    WrongType,
)
from mx_rmq.safe_log import get_logger
from mx_rmq.store.confirming import missing, probe, wait_for
from mx_rmq.store.link import Links
from mx_rmq.store.trouble import no_entry, not_loaded, passes, was_sent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.core.confirm import Confirm
    from mx_rmq.store.link import Link
    from mx_rmq.store.script import Script, Value
    from mx_rmq.store.servers import Node, Servers
    from mx_rmq.store.wire import Check

    Send = Callable[[Node, tuple[Value, ...], float, Check | None], Awaitable[Any]]

logger = get_logger(__name__)

REPLY_WITHIN: Final = 5.0
"""Seconds that one reply may take."""

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0

RECEIPT_MS: Final = 600_000
"""How long receipts are kept, as the scripts keep them."""

HOPS: Final = 5
"""How often a call follows nodes that name each other, before it waits a moment."""

_DENIED: Final = re.compile(r"(?i)no permissions|can't (run|access)|NOPERM")
"""What servers say to a user who lacks a right."""
_LINE: Final = re.compile(r"user_script: ?(\d+)")


class Caller:
    """Runs scripts where their keys are."""

    def __init__(
        self,
        servers: Servers,
        *,
        patience: float,
        links: Links | None = None,
        reply_within: float = REPLY_WITHIN,
        load_scripts: bool = True,
    ) -> None:
        self.servers = servers
        self.links = Links() if links is None else links
        self._patience = patience
        self._reply_within = reply_within
        self.load_scripts = load_scripts
        """Whether a script that a server lacks is sent along; else an operator must load it."""
        self._confirms: set[tuple[int, str]] = set()
        """What servers are known to confirm."""
        self.closed = False

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Value],
        check: Check | None = None,
    ) -> Any:
        """Run a script, again and again until it has an answer or patience ends.

        The check may raise to prevent it, until the call is sent for the first time.
        """
        words = ("EVALSHA", script.sha, len(keys), *keys, *args)
        key = keys[0] if keys else ""  # without one, any server will do
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
        """Run a script that leaves a receipt; return its answer, and what is not confirmed of it.

        Waiting covers what the connection itself has written. A call that comes again writes
        nothing, so its receipt is written to: what replicas have then, they have all of it.
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
                if isinstance(reply, Exception):  # it is stored, but the server has changed sides
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
        """Refuse, before anything is stored, what the server of a key can never confirm."""
        site = self.servers.site_of(key)
        if (site, confirm.level) in self._confirms:
            return
        words = probe(confirm.level)
        try:
            await self._insist(str(words[0]), key, _send, words)
        except redis_errors.RedisError as error:
            raise InvalidInput(
                f"confirm={confirm.level.value!r} cannot be had from this server; nothing was "
                f"stored: {error}"
            ) from error
        self._confirms.add((site, confirm.level))

    async def command(self, name: str, *words: Value, at: str | None = None) -> Any:
        """Run a plain command that is harmless to repeat, where its first key is, or `at` a key."""
        key = str(words[0]) if at is None else at
        try:
            return await self._insist(name, key, _execute, (name, *words))
        except redis_errors.RedisError as error:
            if why := no_entry(error):
                raise ServerUnavailable(f"{name}: {why}; nothing was changed") from error
            if _is_full(error):
                raise ServerFull(_full(name)) from error
            wrong = WrongType if "WRONGTYPE" in str(error) else ScriptFailed
            raise wrong(f"{name}: {error}") from error

    async def time(self, key: str) -> int:
        """Return the time of a key's server, ms."""
        seconds, micros = await self.command("TIME", at=key)
        return int(seconds) * 1000 + int(micros) // 1000

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
        hops = 0
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
                    answer = await asked.send_asking(words, self._reply_within, check)
                self._heard(site, link)
                return answer
            except redis_errors.RedisError as caught:
                error = caught
                if isinstance(error, redis_errors.NoScriptError):  # a new server, or a flush
                    if self.load_scripts:
                        words = ("EVAL", source, *words[2:])
                        continue
                    error = not_loaded(self.servers.node_at(site).name)
                asked = None
                if isinstance(error, redis_errors.AskError) and hops < HOPS:
                    named = self.servers.redirected(error)
                    hops += 1
                    if isinstance(error, redis_errors.MovedError):
                        continue
                    if send is _send:  # the slot is on its way there
                        asked = named
                        continue
                passing = passes(error)
                if passing:
                    link.failed(error)
                elif not sent:
                    raise
                # Refused after a lost reply: the first copy may still be on its way.
                if was_sent(error):
                    sent, check = True, None
                if not passing or self.closed or time.monotonic() + pause > deadline:
                    raise self._gave_up(what, error, sent=sent) from error
                logger.debug("%s: %s; again in %.2f s", what, error, pause)
            hops = 0
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            await self.servers.look_again()
            pause = min(pause * 2, LONGEST_PAUSE)

    def _heard(self, site: int, link: Link) -> None:
        """A server has answered: so it is there for the other sites that it has, too."""
        link.answered()
        for other in self.links.lost():
            with suppress(redis_errors.RedisError):
                if self.servers.node_at(other) is self.servers.node_at(site):
                    self.links[other].answered()

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
        if why := no_entry(error):
            return ServerUnavailable(f"{script.name}: {why}; nothing was changed")
        if _is_full(error):
            return ServerFull(_full(script.name))
        if "WRONGTYPE" in words:
            return WrongType(f"{script.name}: {await self._wrong_keys(script, keys)}")
        if _DENIED.search(words):
            return ScriptFailed(f"{script.name}: {_denied(script, keys, words)}")
        return ScriptFailed(f"{script.name}: {words}")

    async def _wrong_keys(self, script: Script, keys: Sequence[str]) -> str:
        found = []
        for key, wanted in zip(keys, script.types, strict=False):
            node = self.servers.node_at(self.servers.site_of(key))
            try:
                kind = (await node.execute(("TYPE", key), self._reply_within)).decode()
            except redis_errors.RedisError:  # it is away, or we may not: then nobody knows which
                break
            if kind not in ("none", wanted.lower()):
                found.append(f"key {key} holds a {kind}, not a {wanted.lower()}")
        return "; ".join(found) or "a key held a wrong type"


def _send(
    node: Node, words: tuple[Value, ...], within: float, check: Check | None
) -> Awaitable[Any]:
    return node.send(words, within, check)


def _execute(
    node: Node, words: tuple[Value, ...], within: float, check: Check | None
) -> Awaitable[Any]:
    return node.execute(words, within)


def _denied(script: Script, keys: Sequence[str], words: str) -> str:
    """Name what a user may not do: the server names no key, and in a script only the line."""
    line = _LINE.search(words)
    what = script.call_at(int(line[1]), keys) if line else None
    what = what or f"scripts on {', '.join(dict.fromkeys(keys))}"
    return f"this user may not run {what} (ACL SETUSER): {words}"


def _is_full(error: Exception) -> bool:
    return isinstance(error, redis_errors.OutOfMemoryError) or "OOM command not" in str(error)


def _full(what: str) -> str:
    return (
        f"{what}: the server is at its maxmemory and stores nothing more; "
        "let workers catch up, discard dead letters, or raise maxmemory"
    )
