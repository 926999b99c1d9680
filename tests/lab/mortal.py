"""Clients that die: a little story of messages, told by a process that ends in the middle of it.

`python -m tests.lab.mortal` is a fork server. Each line that it reads names a server and the point
at which the client shall die; it forks that client, which writes a journal of what it did to the
same standard output, and adds how the client ended. A client is killed by its own SIGKILL: no
`finally`, no flush, no goodbye.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self

import msgspec

from mx_rmq.core import codec
from mx_rmq.core.message import Priority, State
from mx_rmq.store.answers import Retried
from mx_rmq.store.call import Caller
from mx_rmq.store.connect import connect
from mx_rmq.store.keys import Keys
from mx_rmq.store.preflight import preflight
from mx_rmq.store.quarantine import Quarantined
from mx_rmq.store.store import Store
from tests.lab.clock import Clock
from tests.lab.messages import FAILURE, LEASE, TOPIC, draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.store.answers import Leased, TakenOver
    from mx_rmq.store.script import Script, Value
    from mx_rmq.store.servers import Servers

WORKER: Final = "mortal"
DELAY: Final = 5_000
RECOVERY: Final = 10_000


class When(StrEnum):
    """Where in a call the client dies."""

    BEFORE = "before the call is sent"
    RAN = "after the server ran it, before the reply"
    REPLIED = "after the reply"


class Point(NamedTuple):
    """The nth call of a script, from 1, and where in it."""

    script: str
    nth: int
    when: str


class Entry(NamedTuple):
    """A line of a client's journal."""

    what: str
    """call: it is about to be sent; ok: its answer has come."""
    script: str
    nth: int
    labels: list[str]
    """The messages that it is about, each by its payload."""


class Mortal:
    """Says what it does, and dies where it was told to."""

    def __init__(self, doom: Point | None) -> None:
        self._doom = doom
        self._calls: Counter[str] = Counter()

    def begins(self, script: str, labels: Sequence[str]) -> None:
        self._calls[script] += 1
        self._write("call", script, labels)
        if self.dies_at(script, When.BEFORE):
            self.die()

    def ends(self, script: str, labels: Sequence[str]) -> None:
        self._write("ok", script, labels)
        if self.dies_at(script, When.REPLIED):
            self.die()

    def dies_at(self, script: str, when: When) -> bool:
        return self._doom == (script, self._calls[script], when)

    def die(self) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")

    def _write(self, what: str, script: str, labels: Sequence[str]) -> None:
        entry = Entry(what, script, self._calls[script], list(labels))
        os.write(1, json.dumps(entry).encode() + b"\n")


class MortalCaller(Caller):
    """Sends the doomed call and is gone before anything can come back."""

    def __init__(self, servers: Servers, mortal: Mortal) -> None:
        super().__init__(servers, patience=10.0)
        self._pool = servers.node_at(0).client.connection_pool
        self._mortal = mortal

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Value]) -> Any:
        if self._mortal.dies_at(script.name, When.RAN):
            line = await self._pool.get_connection()  # type: ignore[no-untyped-call]
            await line.send_command("EVAL", script.source, len(keys), *keys, *args)
            self._mortal.die()
        return await super().run(script, keys, args)


class Story:
    """One after the other, everything that clients do in the lives of some messages."""

    def __init__(self, store: Store, clock: Clock, mortal: Mortal) -> None:
        self._store = store
        self._clock = clock
        self._mortal = mortal

    async def tell(self) -> None:
        await self._produce("produce_normal_message", "n1", "n2", "n3", "n4")
        await self._produce("produce_normal_message", "o1", "o2", "o3", own=True)
        await self._produce("produce_delay_message", "d1", "d2", delay=DELAY)
        await self._produce("produce_delay_message", "d3", own=True, delay=DELAY)
        tick = draft("c1", priority=Priority.LOW)
        await self._do("produce_cron_message", ["c1"], self._clock.now, tick)
        await self._do("ring_doorbell", [])
        await self._settle("cancel_message", ["d3"], "d3")
        await self._settle("cancel_message", ["o3"], "o3")

        first, second, third = await self._dispatch(3)
        await self._complete(first)
        await self._retry(second)
        await self._settle(
            "release_message", [label(third)], WORKER, [(third.claim, Priority.NORMAL)]
        )

        held = await self._dispatch(3)
        await self._do(
            "extend_lease", labels(held), WORKER, [one.claim for one in held], lease=LEASE
        )
        await self._bury(held[0])
        await self._quarantine(held[1])
        await self._operate("requeue_message", State.DEAD, held[0])
        (unwanted,) = await self._dispatch(1)
        await self._bury(unwanted)
        await self._operate("discard_message", State.DEAD, unwanted)

        self._clock.advance(LEASE + 1)  # held[2] is lost; the delayed and the retried are due
        await self._do("process_delay_message", [], count=10)
        (late,) = await self._time_out()
        await self._retry(late)
        held = await self._dispatch(4)
        await self._complete(*held[:2])
        self._clock.advance(LEASE + 1)
        one, other = await self._time_out()
        await self._retry(one)
        await self._bury(other)
        await self._do("process_delay_message", [], count=10)
        await self._dispatch(1)

    async def _do(self, script: str, about: list[str], *args: Any, **named: Any) -> Any:
        self._mortal.begins(script, about)
        answer = await getattr(self._store, script)(TOPIC, *args, **named)
        self._mortal.ends(script, about)
        return answer

    async def _settle(self, script: str, about: list[str], *args: Any, **named: Any) -> None:
        answer = await self._do(script, about, *args, **named)
        assert all(answer if isinstance(answer, list) else [answer]), answer

    async def _produce(self, script: str, *about: str, own: bool = False, **fields: Any) -> None:
        drafts = [draft(one, id=one if own else None, **fields) for one in about]
        await self._do(script, list(about), drafts)

    async def _dispatch(self, count: int) -> list[Leased]:
        taken = await self._do("dispatch_message", [], WORKER, count=count, lease=LEASE)
        assert len(taken.messages) == count
        messages: list[Leased] = taken.messages
        return messages

    async def _time_out(self) -> list[TakenOver]:
        late = await self._do("handle_timeout_message", [], WORKER, count=9, recovery=RECOVERY)
        messages: list[TakenOver] = late.messages
        return messages

    async def _complete(self, *taken: Leased) -> None:
        claims = [one.claim for one in taken]
        await self._settle("complete_message", labels(taken), WORKER, claims)

    async def _retry(self, one: Leased | TakenOver) -> None:
        retried = Retried(one.claim, codec.decode(one.record).failed(FAILURE), DELAY)
        await self._settle("retry_message", [label(one)], WORKER, [retried])

    async def _bury(self, one: Leased | TakenOver) -> None:
        message = codec.decode(one.record).failed(FAILURE)
        await self._settle("move_to_dlq", [label(one)], WORKER, one.claim, message)

    async def _quarantine(self, one: Leased) -> None:
        about = Quarantined.of(id=one.id, topic=TOPIC, error=ValueError(), data=one.record)
        await self._settle("handle_parse_error", [label(one)], WORKER, one.claim, about)

    async def _operate(self, script: str, state: State, one: Leased) -> None:
        found = await self._store.views.archived(TOPIC, state, one.id)
        assert found is not None
        named: dict[str, Any] = {"archived": found.at}
        if script == "requeue_message":
            named["message"] = codec.decode(found.data).revived()
        await self._settle(script, [label(one)], state, one.id, **named)


def label(one: Leased | TakenOver) -> str:
    """Return by what the tests know a message: its payload."""
    return label_of(one.record)


def label_of(record: bytes) -> str:
    return str(msgspec.json.decode(codec.decode(record).payload))


def labels(taken: Sequence[Leased]) -> list[str]:
    return [label(one) for one in taken]


class Clients:
    """The fork server's handle. `with Clients() as clients: clients.run(server.url, point)`"""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, url: str, doom: Point | None) -> list[Entry]:
        """Let a client live, and return its journal when it is no more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([url, doom]).encode() + b"\n")
        self._process.stdin.flush()
        journal: list[Entry] = []
        while True:
            match json.loads(self._process.stdout.readline()):
                case int(code):
                    assert code == (0 if doom is None else -signal.SIGKILL), (code, journal)
                    return journal
                case entry:
                    journal.append(Entry(*entry))


async def _live(url: str, doom: Point | None) -> None:
    mortal, clock, keys = Mortal(doom), Clock(), Keys()
    caller = MortalCaller(await connect(f"{url}?client_name={WORKER}"), mortal)
    found = await preflight(caller, keys)
    async with Store(caller, keys, found, clock=clock) as store:
        await Story(store, clock, mortal).tell()


def _serve() -> None:
    for line in sys.stdin:
        url, doom = json.loads(line)
        child = os.fork()
        if child == 0:
            asyncio.run(_live(url, Point(*doom) if doom else None))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    _serve()
