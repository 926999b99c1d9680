"""The transitions of a message on its way through workers, and what workers tell of themselves.

Whether an id and a record make sense is the caller's question, and `handle_parse_error` its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core import codec
from mx_rmq.core.message import Message, State
from mx_rmq.core.names import check_worker
from mx_rmq.core.text import brief
from mx_rmq.store.answers import (
    Claim,
    Dispatched,
    Expired,
    HandedBack,
    Held,
    Leased,
    Retried,
    Settled,
    Survey,
    Surveyed,
    TakenOver,
    TimedOut,
)
from mx_rmq.store.script import load
from mx_rmq.store.scripted import (
    MAX_BATCH,
    MAX_TOPICS,
    SETTLED,
    Scripted,
    check_batch,
    check_level,
    check_range,
    check_same,
    id_of,
    wait_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq.core.outcome import Postpone
    from mx_rmq.store.quarantine import Quarantined
    from mx_rmq.store.script import Value

WINDOW: Final = 1000
"""Places at the end of each list where messages that expired are looked for."""

WALK: Final = 20_000
"""How far an expired message may be from there to be removed by a walk: about 0.3 ms of the
server's time."""

SPARE: Final = 1000
"""Expired messages that keep a place in a list before any is removed by a walk."""


class Handling(Scripted):
    """What dispatchers, lifecycles, monitors and schedulers do."""

    # pending -> processing

    async def dispatch_message(
        self, topic: str, worker: str, *, count: int, lease: int, alone: bool = False
    ) -> Dispatched:
        """Lease up to `count` pending messages to a worker for `lease` ms.

        `alone`: only if nothing of the topic is in processing, whoever has it.
        """
        keys = self.keys.of(topic)
        check_worker(worker)
        check_range("count", count, 1, MAX_BATCH)
        check_range("lease", lease, 1)
        with self._lanes.lane(topic) as lane:
            lane.number += 1
            reply = await self._run(
                "dispatch_message",
                keys,
                {
                    "now_ms": self._now(),
                    "call": lane.number,
                    "worker": worker,
                    "max_count": count,
                    "lease_ms": lease,
                    "alone": int(alone),
                },
                lane=lane,
            )
        fields = iter(reply)
        now = int(next(fields))
        return Dispatched(
            now,
            [
                Leased(id_of(id), int(token), record)
                for id, token, record in zip(fields, fields, fields, strict=True)
            ],
        )

    # processing -> gone, delayed, pending, processing

    async def complete_message(
        self, topic: str, worker: str, held: Sequence[Held]
    ) -> list[Settled]:
        """Remove handled messages."""
        items: list[Value] = []
        for one in held:
            items += (one.id, one.token)
        return await self._settle("complete_message", topic, worker, items)

    async def retry_message(
        self, topic: str, worker: str, retries: Sequence[Retried]
    ) -> list[Settled]:
        """Let failed messages wait for their next attempt, each with its updated record."""
        items: list[Value] = []
        for claim, message, delay in retries:
            check_same(message, topic, claim.id)
            check_range("delay", delay, 0)
            record = codec.encode(message)
            items += (claim.id, claim.token, record, check_level(message.priority), delay)
            items.append("" if message.expires_at is None else message.expires_at)
            items.append(brief(message.errors[-1].said if message.errors else message.reason))
        return await self._delay(topic, worker, items, what="retried")

    async def postpone_message(
        self, topic: str, worker: str, postponed: Sequence[tuple[Held, Postpone]]
    ) -> list[Settled]:
        """Let messages of a newer release wait, each with the bytes that it has."""
        items: list[Value] = []
        for claim, (record, priority, delay, expires, why) in postponed:
            check_range("delay", delay, 0)
            items += (claim.id, claim.token, record, check_level(priority), delay)
            items += ("" if expires is None else expires, brief(why))
        return await self._delay(topic, worker, items, what="postponed")

    async def _delay(
        self, topic: str, worker: str, items: list[Value], *, what: str
    ) -> list[Settled]:
        named: dict[str, Value] = {"now_ms": self._now(), "what": what}
        return await self._settle("retry_message", topic, worker, items, **named)

    async def release_message(
        self, topic: str, worker: str, handed_back: Sequence[HandedBack]
    ) -> list[Settled]:
        """Hand unfinished messages back to the front of the queue, in the order given."""
        items: list[Value] = []
        for claim, priority, expires in handed_back:
            items += (claim.id, claim.token, check_level(priority))
            items.append("" if expires is None else expires)
        return await self._settle("release_message", topic, worker, items)

    async def extend_lease(
        self, topic: str, worker: str, held: Sequence[Held], *, lease: int
    ) -> list[Claim]:
        """Move the deadlines to `lease` ms from now; return the claims that are lost."""
        keys = self.keys.of(topic)
        check_worker(worker)
        check_range("lease", lease, 1)
        if not check_batch(held):
            return []
        items: list[Value] = []
        for one in held:
            items += (one.id, one.token)
        answer = await self._run(
            "extend_lease",
            keys,
            {"now_ms": self._now(), "worker": worker, "lease_ms": lease},
            items,
        )
        lost = [one for one, code in zip(held, answer, strict=True) if chr(code) == "0"]
        return [Claim(one.id, one.token) for one in lost]

    async def _settle(
        self,
        name: str,
        topic: str,
        worker: str,
        items: list[Value],
        **named: Value,
    ) -> list[Settled]:
        keys = self.keys.of(topic)
        named["worker"] = check_worker(worker)
        if not check_batch(items, len(load(name).each)):
            return []
        with self._lanes.lane(topic) as lane:
            lane.number += 1
            answer = await self._run(name, keys, {"call": lane.number, **named}, items, lane=lane)
        return [SETTLED[code] for code in answer]

    # processing -> dead, quarantined

    async def move_to_dlq(self, topic: str, worker: str, claim: Held, message: Message) -> Settled:
        """Archive a message that gets no further attempt; it says why in `reason`."""
        check_same(message, topic, claim.id)
        return await self._archive(
            "move_to_dlq",
            topic,
            State.DEAD,
            worker=check_worker(worker),
            id=claim.id,
            token=claim.token,
            record=codec.encode(message),
            why=brief(message.reason),
        )

    async def handle_parse_error(
        self, topic: str, worker: str, claim: Held, error: Quarantined
    ) -> Settled:
        """Set a message aside whose bytes cannot be read."""
        return await self._archive(
            "handle_parse_error",
            topic,
            State.QUARANTINED,
            worker=check_worker(worker),
            id=claim.id,
            token=claim.token,
            info=error.line(),
            max_bytes=self.limits.quarantine_bytes,
            why=brief(f"{error.error_type}: {error.error}"),
        )

    async def _archive(self, name: str, topic: str, state: State, **named: Value) -> Settled:
        keys = self.keys.of(topic)
        keep, ttl_ms = self._caps(state)
        budget = await self.budget(topic, state)
        with self._lanes.lane(topic) as lane:
            lane.number += 1
            answer = await self._run(
                name,
                keys,
                {
                    "now_ms": self._now(),
                    "call": lane.number,
                    "keep": keep,
                    "ttl_ms": ttl_ms,
                    "budget": budget,
                    "hexpire_s": self._second_net(ttl_ms),
                    **named,
                },
                lane=lane,
                archive=state,
            )
        return Settled(answer.decode())

    async def trim_archive(self, topic: str, state: State) -> int:
        """Drop archived messages over the age, the cap or the budget, a bounded number per call.

        Return how many. If the script is counting the bytes again, go on until it has finished.
        """
        keys = self.keys.of(topic)
        keep, ttl_ms = self._caps(state)
        budget = await self.budget(topic, state)
        while True:
            dropped, unfinished = await self._run(
                "trim_archive",
                keys,
                {"now_ms": self._now(), "keep": keep, "ttl_ms": ttl_ms, "budget": budget},
                archive=state,
            )
            if dropped or not unfinished:
                return int(dropped)

    # the monitor's and the scheduler's

    async def handle_timeout_message(
        self,
        topic: str,
        monitor: str,
        *,
        count: int,
        recovery: int,
        expected: int | None = None,
        jump: int = 0,
        far: int | None = None,
        grace: int = 0,
    ) -> TimedOut:
        """Take over messages whose lease ran out `grace` ms ago or earlier, for `recovery` ms.

        The caller decides what becomes of them. Nothing is taken over if the server's time is more
        than `jump` ms from the `expected` one. With `far`, and if the clock was set back by more
        than `jump` ms, messages whose deadlines are more than `far` ms ahead are taken over, too.
        """
        check_range("count", count, 1, MAX_BATCH)
        reply = await self._run(
            "handle_timeout_message",
            self.keys.of(topic),
            {
                "now_ms": self._now(),
                "worker": check_worker(monitor),
                "max_count": count,
                "recovery_ms": check_range("recovery", recovery, 1),
                "expected_ms": "" if expected is None else expected,
                "jump_ms": jump,
                "far_ms": "" if far is None else far,
                "grace_ms": check_range("grace", grace, 0),
            },
        )
        fields = iter(reply)
        now, surprised, behind = (int(next(fields)) for _ in range(3))
        messages = [
            TakenOver(id_of(id), int(token), id_of(lost_by), record)
            for id, token, lost_by, record in zip(fields, fields, fields, fields, strict=True)
        ]
        return TimedOut(now, messages, bool(surprised), behind)

    async def expire_message(
        self, topic: str, monitor: str, *, count: int, recovery: int
    ) -> Expired:
        """Take up to `count` waiting messages whose time to live has passed, for `recovery` ms.

        The caller then dead-letters them, with the tokens that it gets here.
        """
        reply = await self._run(
            "expire_message",
            self.keys.of(topic),
            {
                "now_ms": self._now(),
                "worker": check_worker(monitor),
                "max_count": check_range("count", count, 1, MAX_BATCH),
                "recovery_ms": check_range("recovery", recovery, 1),
                "window": WINDOW,
                "walk": WALK,
                "spare": SPARE,
            },
        )
        fields = iter(reply)
        now, wait = int(next(fields)), wait_of(next(fields))
        messages = [
            Leased(id_of(id), int(token), record)
            for id, token, record in zip(fields, fields, fields, strict=True)
        ]
        return Expired(now, messages, wait)

    async def get_next_delay_task(self, topic: str) -> int | None:
        """Return the ms until the next due time, 0 if something is due, None if nothing waits."""
        return wait_of(
            await self._run("get_next_delay_task", self.keys.of(topic), {"now_ms": self._now()})
        )

    async def process_delay_message(self, topic: str, *, count: int) -> list[str]:
        """Move what is due to the pending ones, up to `count` of each priority; return the ids."""
        moved = await self._run(
            "process_delay_message",
            self.keys.of(topic),
            {"now_ms": self._now(), "max_count": check_range("count", count, 1, MAX_BATCH)},
        )
        return [id_of(id) for id in moved]

    async def survey_topics(self, topics: Sequence[str]) -> Surveyed:
        """Return what comes next in each topic. They are of one site."""
        script = load("survey_topics")
        found: dict[str, Survey] = {}
        now = 0
        for start in range(0, max(1, len(topics)), MAX_TOPICS):
            chunk = topics[start : start + MAX_TOPICS]
            keys = [getattr(self.keys.of(topic), key) for topic in chunk for key in script.keys]
            reply = await self._caller.run(script, keys, script.arguments({"now_ms": self._now()}))
            now, fields = int(reply[0]), iter(reply[1:])
            for topic, waiting, *waits in zip(chunk, fields, fields, fields, fields, strict=True):
                found[topic] = Survey(waiting, *map(wait_of, waits))
        return Surveyed(now, found)

    # the workers'

    async def ring_doorbell(self, topic: str) -> bool:
        """Give a ring back that the caller cannot use; return whether it was rung now."""
        return bool(await self._run("ring_doorbell", self.keys.of(topic), {}))

    async def beat_worker(self, worker: str, info: bytes, *, forget: int = 0) -> int:
        """Note that a worker is alive, and what it says of itself; return the server's time.

        Workers that were silent for `forget` ms are forgotten; 0: none is.
        """
        script = load("beat_worker")
        named: dict[str, Value] = {
            "now_ms": self._now(),
            "worker": check_worker(worker),
            "info": info,
            "forget_ms": check_range("forget", forget, 0),
        }
        return int(await self._caller.run(script, [self.keys.workers], script.arguments(named)))

    async def forget_worker(self, worker: str) -> None:
        """Strike a worker off the list, because it ends."""
        await self._caller.command("HDEL", self.keys.workers, check_worker(worker))
