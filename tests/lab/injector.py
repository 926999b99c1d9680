"""Death at a chosen point: a caller of scripts that counts its calls and kills its own process.

A point is a call of a script by a part of a worker, and where in that call the process dies. It
dies by SIGKILL: no `finally`, no flush. What it did before is in a journal.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import socket
import threading
from collections import Counter
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, NoReturn

import msgspec

from mx_rmq.net.caller import Caller
from mx_rmq.net.connection import pack
from tests.lab.appended import whole_lines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from mx_rmq.core.confirm import Confirm
    from mx_rmq.net.connection import Check, Value
    from mx_rmq.store.script import Script

ROLE: Final[ContextVar[str]] = ContextVar("role", default="application")
"""The caller, if it is no task of a part."""

PARTS: Final = {
    "mx-rmq registry": "registry",
    "mx-rmq caretaker": "caretaker",
    "mx-rmq crons": "crons",
    "mx-rmq dispatch": "dispatcher",
    "mx-rmq doorbell listener": "wakeups",
    "mx-rmq expirer": "expirer",
    "mx-rmq janitor": "janitor",
    "mx-rmq keeper": "keeper",
    "mx-rmq lifecycle": "lifecycle",
    "mx-rmq survey": "wakeups",
    "mx-rmq monitor": "monitor",
    "mx-rmq producer": "producer",
    "mx-rmq progress": "progress",
    "mx-rmq relay": "relay",
    "mx-rmq ring": "shutdown",
    "mx-rmq scheduler": "scheduler",
    "mx-rmq schedules": "schedules",
}
"""The part that each task belongs to."""

COMMANDS: Final = {"HDEL": "forget_worker"}
"""The plain commands that change something, and their purpose."""

_TOPIC: Final = re.compile(r"\{([^}]*)\}(@[^:]+)?")


class When(StrEnum):
    """Where in a call the process dies."""

    BEFORE = "before it is sent"
    RAN = "after the server ran it, before the reply"
    REPLIED = "after the reply"


class Point(NamedTuple):
    """The nth call of a script by a part, from 1, and where in it."""

    component: str
    script: str
    when: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.component} × {self.script} (call {self.nth}) {self.when}"


class Line(msgspec.Struct, omit_defaults=True):
    """A line of a journal. Several processes write into one, each line in one piece."""

    what: str
    """call, ok, death; start, end, failed, stopped; tried, done; or the name of an event."""
    pid: int
    component: str = ""
    script: str = ""
    nth: int = 0
    topic: str = ""
    ids: list[str] = []
    label: str = ""
    id: str = ""
    fence: int = 0
    attempt: int = 0
    worker: str = ""
    detail: str = ""


class Journal:
    """What happened, in one file that every process of a run appends to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, what: str, **fields: Any) -> None:
        line = msgspec.json.encode(Line(what, os.getpid(), **fields))
        os.write(self._file, line + b"\n")

    @staticmethod
    def read(path: Path) -> list[Line]:
        decoder = msgspec.json.Decoder(Line)
        return [decoder.decode(line) for line in whole_lines(path)]


class Injector:
    """Counts the calls of one process, and ends it at its point."""

    def __init__(self, journal: Journal, server: str, doom: Point | None) -> None:
        self.answers: Counter[tuple[str, str]] = Counter()
        """How many calls of a script each part got a reply to."""
        self._calls: Counter[tuple[str, str]] = Counter()
        self._journal = journal
        self._server = server
        """The path of the server's socket."""
        self._doom = doom
        self._lock = threading.Lock()

    async def around(
        self,
        script: str,
        keys: Sequence[str],
        words: Sequence[Value],
        call: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Make a call, unless the process dies in it."""
        task = asyncio.current_task()
        component = PARTS.get(task.get_name() if task else "", "") or ROLE.get()
        with self._lock:
            self._calls[component, script] += 1
            nth = self._calls[component, script]
        when = None
        if self._doom is not None and self._doom[:2] == (component, script):
            when = self._doom.when if self._doom.nth == nth else None
        tag = _TOPIC.search(keys[0]) if keys else None
        about: dict[str, Any] = {
            "component": component,
            "script": script,
            "nth": nth,
            "topic": tag[1] + (tag[2] or "") if tag else "",
            "ids": [word for word in words if isinstance(word, str) and 0 < len(word) <= 64],
        }
        self._journal.note("call", **about)
        if when == When.BEFORE:
            self._die(when, about)
        if when == When.RAN:
            self._let_run(words)
            self._die(when, about)
        answer = await call()
        self._journal.note("ok", component=component, script=script, nth=nth)
        if when == When.REPLIED:
            self._die(when, about)
        self.answers[component, script] += 1
        return answer

    def _let_run(self, words: Sequence[Value]) -> None:
        """Let the server run a call, and read nothing of its reply."""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(self._server)
            line.sendall(pack(tuple(words)))
            select.select([line], [], [])

    def _die(self, when: str, about: dict[str, Any]) -> NoReturn:
        self._journal.note("death", detail=when, **about)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")


class MortalCaller(Caller):
    """Replaces the caller of a process that must die."""

    injector: ClassVar[Injector]

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Value],
        check: Check | None = None,
    ) -> Any:
        words = ("EVAL", script.source, len(keys), *keys, *args)
        call = super().run
        looks = script.name == "produce_cron_message" and b"" in args
        name = f"{script.name}, looking" if looks else script.name
        return await self.injector.around(
            name, keys, words, lambda: call(script, keys, args, check)
        )

    async def run_confirmed(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Value],
        confirm: Confirm,
        check: Check | None = None,
    ) -> tuple[Any, str]:
        words = ("EVAL", script.source, len(keys), *keys, *args)
        call = super().run_confirmed
        found: tuple[Any, str] = await self.injector.around(
            f"{script.name}, confirmed",
            keys,
            words,
            lambda: call(script, keys, args, confirm, check),
        )
        return found

    async def command(self, name: str, *words: Value, at: str | None = None) -> Any:
        call = super().command
        if name not in COMMANDS:
            return await call(name, *words, at=at)
        return await self.injector.around(
            COMMANDS[name], [], (name, *words), lambda: call(name, *words, at=at)
        )
