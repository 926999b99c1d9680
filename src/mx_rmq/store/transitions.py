"""Every transition of a message: one typed method a script, under the script's name.

Ids that come from the server are decoded so that any bytes survive the way back; whether an id
and a record make sense is the caller's question, and `handle_parse_error` its answer.
Times are milliseconds here.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mx_rmq.core import codec
from mx_rmq.core.config import SECOND_NET, Limits
from mx_rmq.core.errors import (
    InvalidInput,
    NotConfirmed,
    OutcomeUnknown,
    PayloadTooLarge,
    ProduceUnknown,
    QueueFull,
    ServerUnavailable,
)
from mx_rmq.core.message import Draft, Message, Priority, State
from mx_rmq.core.names import check_id, check_topic, check_worker
from mx_rmq.core.partition import check_partitions, partitions, topic_of
from mx_rmq.core.text import brief
from mx_rmq.store.answers import (
    Claim,
    Dispatched,
    Held,
    Leased,
    Placed,
    Produced,
    Retried,
    Settled,
    Survey,
    Surveyed,
    TakenOver,
    Ticked,
    TimedOut,
)
from mx_rmq.store.lane import Lanes, maker_of
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mx_rmq.core.confirm import Confirm
    from mx_rmq.store.call import Caller
    from mx_rmq.store.keys import Keys, TopicKeys
    from mx_rmq.store.lane import Lane
    from mx_rmq.store.quarantine import Quarantined
    from mx_rmq.store.script import Script, Value

MAX_BATCH: Final = 1000
"""Messages in one call: `unpack` in Lua takes no more than 7,999 values."""

CENTURY: Final = 100 * 365 * 86_400
"""Seconds; servers refuse the TTL of a field that is set for much longer."""

WALK: Final = 10_000
"""How far from the ends of a list a cancelled message is taken out of it at once: about 0.2 ms of
the server's time."""

SHORTEST: Final = 100
"""Entries of a partition's history, at the least: the server drops them by the hundred."""

MAX_TOPICS: Final = 1000
"""Topics in one call."""

MAX_ENVELOPE: Final = 65_536
"""Bytes of a record beside its payload."""


class Prepared(NamedTuple):
    """A produce that is ready to be sent."""

    name: str
    keys: TopicKeys
    lane: Lane
    ids: list[str]
    items: list[Value]
    makers: list[str]
    """The receipts of the lanes that made ids which callers give as their own."""


_LEVELS: Final = frozenset(Priority)
_PLACED: Final = {ord(placed): placed for placed in Placed}
_SETTLED: Final = {ord(settled): settled for settled in Settled}
"""Answers by the digit or letter that the scripts give for each message."""


class Transitions:
    """The scripts, as methods.

    `clock` is for tests: what it returns stands in for the server's time.
    """

    def __init__(
        self,
        caller: Caller,
        keys: Keys,
        *,
        limits: Limits | None = None,
        hexpire: bool = False,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.keys = keys
        self.limits = limits or Limits()
        self.hexpire = hexpire
        self._caller = caller
        self._clock = clock
        self._lanes = Lanes()
        self.partitions: dict[str, int] = {}
        """How many partitions each topic has that was used here, as the server said last."""
        self._names: dict[tuple[str, str], list[str]] = {}
        """The keys of each script's call for each topic."""

    def draft(self, payload: Any, **fields: Any) -> Draft:
        """Make a message to produce, its payload encoded within the store's limit."""
        return Draft(payload=codec.encode_payload(payload, self.limits.max_payload), **fields)

    # new -> pending, new -> delayed

    async def produce_normal_message(self, topic: str, drafts: Sequence[Draft]) -> list[Produced]:
        """Store new messages and put them behind those that are pending."""
        return await self.produce(self.prepare("produce_normal_message", topic, drafts))

    async def produce_delay_message(self, topic: str, drafts: Sequence[Draft]) -> list[Produced]:
        """Store new messages that wait for their due time."""
        return await self.produce(self.prepare("produce_delay_message", topic, drafts))

    def prepare(self, name: str, topic: str, drafts: Sequence[Draft]) -> Prepared:
        """Get a call of one of the two scripts above ready; the server need not be waited for."""
        keys = self.keys.of(topic)
        _batch(drafts)
        script = load(name)
        delayed = "delay_ms" in script.each
        makers: list[str] = []
        ids: list[str] = []
        items: list[Value] = []
        lane = self._lanes.lane(topic)
        try:
            for offset, draft in enumerate(drafts, 1):
                if not delayed and (draft.delay or draft.at is not None):
                    raise InvalidInput("a draft with delay or at goes to produce_delay_message")
                id, how, maker = draft.id, "", 0  # how: see produce_normal_message.lua
                if id is None:
                    id = lane.id_at(offset)
                    if draft.priority != Priority.NORMAL:
                        how = f"0 0 {draft.priority}"
                else:
                    if lane_name := maker_of(check_id(id)):
                        makers.append(keys.receipt(lane_name))
                        maker = len(script.keys) + len(makers)
                    how = f"1 {maker} {draft.priority}"
                ids.append(id)
                items += (id, how, self._record(draft, topic, id))
                if delayed:
                    items += (draft.delay, "" if draft.at is None else draft.at)
        except BaseException:
            lane.give_back()
            raise
        lane.number += len(drafts)
        return Prepared(name, keys, lane, ids, items, makers)

    async def produce(self, call: Prepared, confirm: Confirm | None = None) -> list[Produced]:
        """Make a prepared call; with `confirm`, wait until the messages have come so far."""
        name, keys, lane, ids, items, makers = call
        with lane:
            if not ids:
                return []
            if topic_of(keys.topic) not in self.partitions:
                await self.register(topic_of(keys.topic))
            try:
                script, names, args = self._call(
                    name,
                    keys,
                    {
                        "now_ms": self._now(),
                        "call": lane.number,
                        "dedup_ms": _ms(self.limits.dedup),
                        "max_pending": self._share(keys.topic, self.limits.max_pending),
                    },
                    items,
                    lane=lane,
                    extra_keys=makers,
                )
                missing = ""
                if confirm is None:
                    answer = await self._caller.run(script, names, args)
                else:
                    run = self._caller.run_confirmed
                    answer, missing = await run(script, names, args, confirm)
            except OutcomeUnknown as error:
                raise ProduceUnknown(str(error), ids) from error
            if answer.startswith(b"full"):
                raise QueueFull(topic_of(keys.topic), self.limits.max_pending)
        if missing and confirm is not None:
            raise NotConfirmed(missing, confirm.level, confirm.within, ids)
        return [Produced(id, _PLACED[code]) for id, code in zip(ids, answer, strict=True)]

    async def produce_cron_message(
        self, topic: str, tick: int, draft: Draft | None = None
    ) -> Ticked:
        """Make the message of a tick, if it is due and nobody has; without a draft, only look.

        Repeat it as you like, also when its outcome is unknown: a tick fires once.
        """
        keys = self.keys.of(topic)
        _in_range("tick", tick, 0)
        id, record, priority = f"cron-{tick}", b"", Priority.NORMAL
        if draft is not None:
            if draft.delay or draft.at is not None:
                raise InvalidInput("a tick says when its message is due, not delay or at")
            id = id if draft.id is None else check_id(draft.id)
            record, priority = self._record(draft, topic, id), draft.priority
        if topic not in self.partitions:
            await self.register(topic)
        now, last, fired = await self._run(
            "produce_cron_message",
            keys,
            {
                "now_ms": self._now(),
                "id": id,
                "tick_ms": tick,
                "record": record,
                "priority": priority,
            },
        )
        return Ticked(int(now), int(last) if last else None, id if fired else None)

    def _record(self, draft: Draft, topic: str, id: str) -> bytes:
        """Return a new record as scripts take it: its first brace comes with the server's time."""
        record = codec.encode(draft.message(topic_of(topic), id))
        if len(record) > min(self.limits.max_payload, MAX_ENVELOPE):  # else it breaks no limit
            size = len(draft.payload)
            if size > self.limits.max_payload:
                raise PayloadTooLarge(size, self.limits.max_payload)
            if len(record) - size > MAX_ENVELOPE:
                raise InvalidInput(
                    f"headers and settings take {len(record) - size:,} bytes; "
                    f"the limit is {MAX_ENVELOPE:,}"
                )
        return record[1:]

    async def register_topics(self, topics: Mapping[str, int]) -> None:
        """List topics, whether they hold anything or not, and how many partitions each shall have.

        What the server knows then is in `partitions`: the largest number that anybody asked for.
        """
        wanted = [(check_topic(topic), check_partitions(topics[topic])) for topic in topics]
        script = load("register_topics")
        for start in range(0, len(wanted), MAX_TOPICS):
            chunk = wanted[start : start + MAX_TOPICS]
            args = script.arguments({}, [word for one in chunk for word in one])
            counts = await self._caller.run(script, [self.keys.topics], args)
            self.partitions.update(zip((topic for topic, _ in chunk), counts, strict=True))

    async def grow(self, topic: str, count: int) -> None:
        """Give a topic so many partitions at the least. If it is paused, so are the new ones."""
        known = await self._caller.command("HGET", self.keys.topics, check_topic(topic)) or b""
        if known.isdigit() and int(known) < check_partitions(count):
            meta = self.keys.of(topic).meta
            if await self._caller.command("HEXISTS", meta, "paused"):
                for name in partitions(topic, count)[int(known) :]:
                    await self.pause_topic(name)
        await self.register_topics({topic: count})

    async def register(self, topic: str, count: int = 1) -> None:
        """List a topic before it holds anything, with so many partitions at the least."""
        try:
            await (self.grow(topic, count) if count > 1 else self.register_topics({topic: count}))
        except OutcomeUnknown as error:
            raise ServerUnavailable(
                f"the server did not answer, and no message was sent to it: {error.__cause__}"
            ) from error

    # pending -> processing

    async def dispatch_message(
        self, topic: str, worker: str, *, count: int, lease: int, alone: bool = False
    ) -> Dispatched:
        """Lease up to `count` pending messages to a worker for `lease` ms.

        `alone`: only if nothing of the topic is in processing, whoever has it.
        """
        keys = self.keys.of(topic)
        check_worker(worker)
        _in_range("count", count, 1, MAX_BATCH)
        _in_range("lease", lease, 1)
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
                Leased(_id(id), int(token), record)
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
            _same(message, topic, claim.id)
            _in_range("delay", delay, 0)
            record = codec.encode(message)
            items += (claim.id, claim.token, record, _level(message.priority), delay)
            items.append(brief(message.errors[-1].said if message.errors else message.reason))
        return await self._settle("retry_message", topic, worker, items, now_ms=self._now())

    async def release_message(
        self, topic: str, worker: str, claims: Sequence[tuple[Held, Priority]]
    ) -> list[Settled]:
        """Hand unfinished messages back to the front of the queue, in the order given."""
        items: list[Value] = []
        for claim, priority in claims:
            items += (claim.id, claim.token, _level(priority))
        return await self._settle("release_message", topic, worker, items)

    async def extend_lease(
        self, topic: str, worker: str, held: Sequence[Held], *, lease: int
    ) -> list[Claim]:
        """Move the deadlines to `lease` ms from now; return the claims that are lost."""
        keys = self.keys.of(topic)
        check_worker(worker)
        _in_range("lease", lease, 1)
        if not _batch(held):
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
        if not _batch(items, len(load(name).each)):
            return []
        with self._lanes.lane(topic) as lane:
            lane.number += 1
            answer = await self._run(name, keys, {"call": lane.number, **named}, items, lane=lane)
        return [_SETTLED[code] for code in answer]

    # processing -> dead, quarantined

    async def move_to_dlq(self, topic: str, worker: str, claim: Held, message: Message) -> Settled:
        """Archive a message that gets no further attempt; it says why in `reason`."""
        _same(message, topic, claim.id)
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
                    "hexpire_s": self._second_net(ttl_ms),
                    **named,
                },
                lane=lane,
                archive=state,
            )
        return Settled(answer.decode())

    async def trim_archive(self, topic: str, state: State) -> int:
        """Drop archived messages over the age or the cap, a bounded number; return how many."""
        keep, ttl_ms = self._caps(state)
        dropped = await self._run(
            "trim_archive",
            self.keys.of(topic),
            {"now_ms": self._now(), "keep": keep, "ttl_ms": ttl_ms},
            archive=state,
        )
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
    ) -> TimedOut:
        """Take over messages whose lease ran out, for `recovery` ms; what next, is the caller's.

        None are, if the server's time is more than `jump` ms from the `expected` one. With `far`,
        and if the clock was set back by more than `jump` ms, also those whose deadlines are further
        ahead than so many ms.
        """
        _in_range("count", count, 1, MAX_BATCH)
        reply = await self._run(
            "handle_timeout_message",
            self.keys.of(topic),
            {
                "now_ms": self._now(),
                "worker": check_worker(monitor),
                "max_count": count,
                "recovery_ms": _in_range("recovery", recovery, 1),
                "expected_ms": "" if expected is None else expected,
                "jump_ms": jump,
                "far_ms": "" if far is None else far,
            },
        )
        fields = iter(reply)
        now, surprised, behind = (int(next(fields)) for _ in range(3))
        messages = [
            TakenOver(_id(id), int(token), _id(lost_by), record)
            for id, token, lost_by, record in zip(fields, fields, fields, fields, strict=True)
        ]
        return TimedOut(now, messages, bool(surprised), behind)

    async def get_next_delay_task(self, topic: str) -> int | None:
        """Return the ms until the next due time, 0 if something is due, None if nothing waits."""
        return _wait(
            await self._run("get_next_delay_task", self.keys.of(topic), {"now_ms": self._now()})
        )

    async def process_delay_message(self, topic: str, *, count: int) -> list[str]:
        """Move what is due to the pending ones, up to `count` of each priority; return the ids."""
        moved = await self._run(
            "process_delay_message",
            self.keys.of(topic),
            {"now_ms": self._now(), "max_count": _in_range("count", count, 1, MAX_BATCH)},
        )
        return [_id(id) for id in moved]

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
            for topic, waiting, due, deadline in zip(chunk, fields, fields, fields, strict=True):
                found[topic] = Survey(waiting, _wait(due), _wait(deadline))
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
            "forget_ms": _in_range("forget", forget, 0),
        }
        return int(await self._caller.run(script, [self.keys.workers], script.arguments(named)))

    async def forget_worker(self, worker: str) -> None:
        """Strike a worker off the list, because it ends."""
        await self._caller.command("HDEL", self.keys.workers, check_worker(worker))

    # the operator's

    async def requeue_message(
        self, topic: str, state: State, id: str, *, archived: int, message: Message, by: str = ""
    ) -> Settled:
        """Send an archived message round again, if it is still the one archived at that time."""
        _same(message, topic, id)
        return await self._operate(
            "requeue_message",
            topic,
            by,
            archive=state,
            id=id,
            archived_ms=archived,
            priority=_level(message.priority),
            record=codec.encode(message),
        )

    async def discard_message(
        self, topic: str, state: State, id: str, *, archived: int, by: str = ""
    ) -> Settled:
        """Delete an archived message, if it is still the one archived at that time."""
        return await self._operate(
            "discard_message", topic, by, archive=state, id=id, archived_ms=archived
        )

    async def cancel_message(self, topic: str, id: str, *, by: str = "") -> Settled:
        """Remove a pending or delayed message."""
        if not isinstance(id, str):
            raise InvalidInput(f"message id {id!r} is not a str")
        return await self._operate("cancel_message", topic, by, id=id, walk=WALK)

    async def pause_topic(self, topic: str, *, by: str = "") -> bool:
        """Let dispatch give nothing; return whether that is new."""
        return bool(await self._operate("pause_topic", topic, by))

    async def resume_topic(self, topic: str, *, by: str = "") -> bool:
        """Let dispatch give messages again; return whether that is new."""
        return bool(await self._operate("resume_topic", topic, by))

    async def _operate(
        self, name: str, topic: str, by: str, archive: State | None = None, **named: Value
    ) -> Settled:
        keys = self.keys.of(topic)
        with self._lanes.lane(topic) as lane:
            lane.number += 1
            answer = await self._run(
                name,
                keys,
                {"call": lane.number, "by": brief(by), **named},
                lane=lane,
                archive=archive,
            )
        return Settled(answer.decode())

    # how a call is put together

    def _run(
        self,
        name: str,
        keys: TopicKeys,
        named: dict[str, Value],
        items: Sequence[Value] = (),
        *,
        lane: Lane | None = None,
        archive: State | None = None,
    ) -> Awaitable[Any]:
        call = self._call(name, keys, named, items, lane=lane, archive=archive)
        return self._caller.run(*call)

    def _call(
        self,
        name: str,
        keys: TopicKeys,
        named: dict[str, Value],
        items: Sequence[Value] = (),
        *,
        lane: Lane | None = None,
        archive: State | None = None,
        extra_keys: Sequence[str] = (),
    ) -> tuple[Script, list[str], list[Value]]:
        script = load(name)
        if "history" in script.place:
            alone = keys.topic in self.partitions and self.partitions[keys.topic] == 1
            named["remember"] = self.limits.history if alone else self._remember(keys.topic)
        known = self._names.get((name, keys.topic))
        if known is None:  # what differs from call to call is filled in below
            known = [getattr(keys, key, "") for key in script.keys]
            self._names[name, keys.topic] = known
        names = [*known, *extra_keys]
        if lane is not None:
            names[script.place["receipt"]] = keys.receipt(lane.name)
        if archive is not None:
            index, contents = keys.archive_of(archive)
            names[script.place["archive"]] = index
            names[script.place["archive_payload"]] = contents
        return script, names, script.arguments(named, items)

    def _now(self) -> Value:
        return "" if self._clock is None else self._clock()

    def _second_net(self, ttl_ms: int) -> int:
        if not self.hexpire or ttl_ms == 0:
            return 0
        return min(ceil(ttl_ms / 1000) + SECOND_NET, CENTURY)

    def _caps(self, state: State) -> tuple[int, int]:
        """Return what an archive may hold: how many, and of what age.

        Each partition has its own. Shared out, a topic that grows would be over the cap, and lose.
        """
        if state == State.DEAD:
            return self.limits.dlq_max, _ms(self.limits.dlq_ttl)
        return self.limits.quarantine_max, _ms(self.limits.quarantine_ttl)

    def _remember(self, topic: str) -> int:
        """Return how long a partition's history shall be: its part of the topic's."""
        most = self.limits.history
        return min(most, max(SHORTEST, self._share(topic, most)))

    def _share(self, topic: str, most: int) -> int:
        """Return a partition's part of what its topic may have."""
        return ceil(most / self.partitions.get(topic_of(topic), 1))


def _same(message: Message, topic: str, id: str) -> None:
    """Refuse to write one message's record under another's id."""
    if (message.topic, message.id) != (topic_of(topic), id):
        raise InvalidInput(
            f"the record is of message {message.id!r} of topic {message.topic!r}, "
            f"not of {id!r} of {topic!r}"
        )


def _level(priority: str) -> str:
    if priority not in _LEVELS:
        raise InvalidInput(f"priority={priority!r} is not one of {', '.join(Priority)}")
    return priority


def _batch(items: Sequence[object], width: int = 1) -> bool:
    """Refuse too many messages; say whether there are any. Each is `width` items long."""
    if len(items) > MAX_BATCH * width:
        raise InvalidInput(f"{len(items) // width} messages in one call; the limit is {MAX_BATCH}")
    return bool(items)


def _in_range(what: str, value: int, least: int, most: int = 2**52) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{what}={value!r} is not a whole number from {least} to {most}")
    return value


def _wait(ms: int) -> int | None:
    return None if ms < 0 else ms


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _id(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
