"""The relay: sends the committed rows of an outbox, and deletes them.

In one transaction it takes the first rows, sends them with their ids, and deletes what was sent. If
it dies in between, the rows are still there, and the next relay sends them again: the queue knows
their ids, so that makes no second message.

On PostgreSQL one relay sends at a time, and the others wait for their turn. On SQLite there is no
such lock, because it would block the application's writes while the rows are sent.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from mx_rmq.core.durations import Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput, NotConfirmed, PartlyProduced, QueueFull
from mx_rmq.core.events import OutboxMeasured
from mx_rmq.core.text import named
from mx_rmq.outbox.row import outgoing_of
from mx_rmq.outbox.statements import BATCH
from mx_rmq.runtime.loop import AWAY, TRY_AGAIN, FailureLog, Loop
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.outbox.statements import Statements
    from mx_rmq.queue import MessageQueue

logger = get_logger(__name__)

# Seconds
POLL: Final = 0.5  # between two looks, if nothing wakes the relay
MEASURE_EVERY: Final = 5.0
CLEAN_EVERY: Final = 60.0
FINISH_WITHIN: Final = 5.0  # for the rows that are being sent when the relay is stopped
GONE_AFTER: Final = 60.0  # beyond the patience of a call, after which a silent relay loses its lock
DEDUP: Final = 3600.0
KEEP: Final = 7 * 86_400.0

Row = dict[str, Any]
Statement = tuple[str, dict[str, Any]]


class RelayConnection(Protocol):
    """A connection to the database. A transaction begins with the first statement."""

    async def execute(self, sql: str, values: dict[str, Any]) -> list[Row]: ...

    async def commit(self, *statements: Statement) -> list[Row]:
        """Execute these and commit; return the rows of the last one."""

    async def listen(self, channel: str, wake: Callable[[], None]) -> None:
        """Call `wake` for each notification, until the connection is lost."""

    async def close(self) -> None:
        """Roll back and close it. Never raises."""


@dataclass(slots=True)
class _Result:
    """What became of some rows, by `seq`. All others stay where they are."""

    sent: list[int] = field(default_factory=list)
    parked: dict[int, str] = field(default_factory=dict)  # with the reason
    failed: BaseException | None = None  # why their topic takes no rows now

    def after(self, first: _Result) -> _Result:
        """Return what became of some rows, and before that of others."""
        return _Result(first.sent + self.sent, first.parked | self.parked, self.failed)


class OutboxRelay:
    """Sends the rows of an outbox while it is open: `async with OutboxRelay(…):`."""

    def __init__(
        self,
        mq: MessageQueue,
        connect: Callable[[], Awaitable[RelayConnection]],
        statements: Statements,
        *,
        dedup: Seconds = DEDUP,
        keep: Seconds = KEEP,
    ) -> None:
        self._mq = mq
        self._connect = connect
        self._sql = statements
        self._dedup = as_seconds("dedup=", dedup, least=60.0)
        self._keep = as_seconds("keep=", keep, least=60.0)
        self._connection: RelayConnection | None = None
        self._listening: RelayConnection | None = None
        self._working = asyncio.Lock()  # held during a step
        self._held: dict[str, float] = {}  # topics that take no rows now -> until when
        self._measure_at = self._clean_at = 0.0
        self._failures = FailureLog("outbox relay")
        self._loop = Loop("outbox relay", self.step)
        self._listener = Loop("outbox listener", self._listen)

    async def __aenter__(self) -> Self:
        self._loop.start()
        if self._sql.dialect == "postgresql":
            self._listener.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop after the rows that are being sent."""
        await self._listener.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_WITHIN), self._working:
                await self._loop.stop()
        await self._loop.stop()
        for connection in (self._connection, self._listening):
            if connection is not None:
                await connection.close()
        self._connection = self._listening = None

    async def step(self) -> float | None:
        """Send the next rows; return when to look again, in seconds."""
        async with self._working:
            try:
                self._connection = connection = self._connection or await self._connect_to_send()
                gone = await self._send(connection)
                await self._measure(connection)
                cleaned = await self._clean(connection)
            except BaseException:
                lost, self._connection = self._connection, None
                if lost is not None:
                    await asyncio.shield(lost.close())
                raise
        return 0 if gone or cleaned == BATCH else POLL

    async def _connect_to_send(self) -> RelayConnection:
        """Connect, and raise if rows cannot be deleted: they would be sent again and again."""
        connection = await self._connect()
        try:
            await connection.commit((self._sql.delete, {"seqs": "[]"}))
        except BaseException:
            await asyncio.shield(connection.close())
            raise
        return connection

    async def drain(self) -> None:
        """Send every row that can be sent now, as a test needs it."""
        while await self.step() == 0:
            pass

    async def _listen(self) -> None:
        """Wake the relay whenever rows are committed, until the connection is lost."""
        self._listening = listening = await self._connect()
        try:
            await listening.listen(self._sql.channel, self._loop.wake)
        finally:
            self._listening = None
            await asyncio.shield(listening.close())

    async def _send(self, connection: RelayConnection) -> int:
        """Send the next rows; return how many are gone or parked."""
        sql, now = self._sql, time.monotonic()
        if sql.lock:
            idle = round(1000 * (GONE_AFTER + self._mq.settings.patience))
            (lock,) = await connection.execute(sql.lock, {"idle": str(idle)})
            if not lock["locked"]:
                await connection.commit()
                return 0
        self._held = {topic: until for topic, until in self._held.items() if until > now}
        rows = await connection.execute(sql.take, {"held": json.dumps([*self._held])})
        if not sql.lock:
            await connection.commit()
        topics: dict[str, list[Row]] = {}
        for row in rows:
            topics.setdefault(row["topic"], []).append(row)
        results = await asyncio.gather(*(self._send_topic(mine) for mine in topics.values()))
        sent = [seq for result in results for seq in result.sent]
        parked = {seq: why for result in results for seq, why in result.parked.items()}
        gone = [(sql.delete, {"seqs": json.dumps(sent)})] if sent else []
        wrong = [(sql.park, {"seq": seq, "error": why}) for seq, why in parked.items()]
        await connection.commit(*gone, *wrong)
        is_away = not sent and all(isinstance(one.failed, AWAY) for one in results)
        for topic, result in zip(topics, results, strict=True):
            if result.failed is not None and not is_away:
                took = time.monotonic() - now
                self._held[topic] = now + took + max(TRY_AGAIN, 2 * took)
        return len(sent) + len(parked)

    async def _send_topic(self, rows: Sequence[Row]) -> _Result:
        """Send rows of one topic, in order. Trouble with them does not concern other topics."""
        every = [row["seq"] for row in rows]
        try:
            await self._mq.produce_outgoing([outgoing_of(row, self._dedup) for row in rows])
        except NotConfirmed as error:
            logger.warning("outbox: %s", error)
        except PartlyProduced as error:
            stored = [every[place] for place in error.places]
            if isinstance(error.__cause__, InvalidInput):
                return _Result(stored)  # the next step begins with the row that is refused
            if isinstance(error.__cause__, QueueFull):
                gone = {*stored}
                rest = await self._send_in_halves([row for row in rows if row["seq"] not in gone])
                return rest.after(_Result(stored))
            self._failures.log(error)
            return _Result(stored, failed=error.__cause__)
        except InvalidInput as error:
            return await self._send_one_by_one(rows, error)
        except Exception as error:  # noqa: BLE001 - middleware may raise anything
            if isinstance(error, QueueFull) and len(rows) > 1:
                return await self._send_in_halves(rows)
            self._failures.log(error)
            return _Result(failed=error)
        return _Result(every)

    async def _send_in_halves(self, rows: Sequence[Row]) -> _Result:
        """Send as many rows as a topic has room for; it has none for all of them."""
        half = (len(rows) + 1) // 2
        first = await self._send_topic(rows[:half])
        if half == len(rows) or len(first.sent) + len(first.parked) < half:
            return first
        return (await self._send_topic(rows[half:])).after(first)

    async def _send_one_by_one(self, rows: Sequence[Row], error: InvalidInput) -> _Result:
        """Send rows; one is refused with this error. Park that one."""
        if len(rows) == 1:
            (row,) = rows
            logger.error("outbox: %s %s is parked: %s", row["topic"], row["id"], error)
            return _Result(parked={row["seq"]: named(error).replace("\0", "")})
        result = _Result()
        for row in rows:
            one = await self._send_topic([row])
            result.sent += one.sent
            result.parked |= one.parked
            result.failed = one.failed
            if one.failed is not None:
                break
        return result

    async def _measure(self, connection: RelayConnection) -> None:
        """Report what waits."""
        now = time.monotonic()
        if now >= self._measure_at:
            self._measure_at = now + MEASURE_EVERY
            (found,) = await connection.execute(self._sql.count, {})
            await connection.commit()
            measured = found["waiting"], max(0.0, found["oldest"] or 0.0), found["parked"]
            self._mq.events.emit(OutboxMeasured(self._sql.table, *measured))

    async def _clean(self, connection: RelayConnection) -> int:
        """Forget some messages that were recorded long ago; return how many."""
        now = time.monotonic()
        if now < self._clean_at:
            return 0
        self._clean_at = now + CLEAN_EVERY  # also if this fails: rows must not wait for it
        cleaned = len(await connection.commit((self._sql.clean, {"keep": self._keep})))
        if cleaned == BATCH:  # the next step goes on
            self._clean_at = now
        return cleaned
