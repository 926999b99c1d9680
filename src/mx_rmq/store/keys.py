"""Every key, its type and its meaning. No other file spells out a key.

A key begins with the prefix, `mx-rmq` unless you choose another. Every key of a topic carries the
topic as its hash tag, as in `mx-rmq:{orders}:payload`, so all of them live in one cluster slot and
one script can change them together. A topic with several partitions has one such set of keys per
partition: the first under the topic's name, the others under {topic/1}, {topic/2}, … To the store,
each partition is a topic. So is each subscription of a topic, in each partition. Its keys carry the
hash tag of the topic, as in `mx-rmq:{orders/1}@billing:payload`: one script copies a message to all
subscriptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.core.names import check_partition, check_prefix
from mx_rmq.core.partition import base_topic, number_of, partition, subscription_of

DEFAULT_PREFIX: Final = "mx-rmq"

LAYOUT: Final = 1
"""The version of the key layout below. It grows when a change would make older releases lose
or repeat messages. A new key that they can ignore does not change it."""


def _key(kind: str, suffix: str) -> Any:
    return field(metadata={"type": kind, "suffix": suffix})


@dataclass(frozen=True, slots=True)
class TopicKeys:
    """The keys of one topic, under the names that the scripts use. Times are in ms."""

    topic: str
    _base: str  # the beginning of all of them
    payload: str = _key("HASH", "payload")  # id -> record

    # ids, newest first; taken from the right
    pending_high: str = _key("LIST", "pending:high")
    pending: str = _key("LIST", "pending")
    pending_low: str = _key("LIST", "pending:low")

    # a message with a key waits in the line of that key instead; lines take turns
    lines: str = _key("ZSET", "lines")
    """KEY tab LEVEL SEQ COST ID, all with score 0: pending messages, in the order of each line.
    LEVEL is 1 to 3, SEQ has 16 digits."""
    ring: str = _key("ZSET", "ring")  # key -> its turn; the lowest comes next
    blocked: str = _key("ZSET", "blocked")
    """key -> when to look at it again; "" -> the whole topic. Times are those of `line_clock.lua`,
    here and below. A dispatch that looks at a key checks its limits again."""
    keyed: str = _key("HASH", "keyed")
    """id -> KEY tab LEVEL SEQ COST, of live messages with a key; SEQ is missing before a message
    first joins its line. Without a KEY: a message that only has a cost. !id -> the same for a new
    record that waits for the end of the old one. ! -> the last SEQ."""
    running: str = _key("ZSET", "running")
    """Places in line as in `lines`: of messages in processing, and of failed ones for whose next
    attempt their line waits."""
    limits: str = _key("HASH", "limits")
    """key -> what an operator has set: RUNNING INTERVAL BURST WEIGHT UNTIL REASON, "-" if not set;
    "" -> the same for the whole topic."""
    buckets: str = _key("ZSET", "buckets")
    """key -> when its bucket is full; key and a tab -> until when Snooze holds it back."""

    # id -> due time
    delay_tasks_high: str = _key("ZSET", "delay_tasks:high")
    delay_tasks: str = _key("ZSET", "delay_tasks")
    delay_tasks_low: str = _key("ZSET", "delay_tasks:low")

    # messages that wait for signals; they are in delay_tasks too, due when the wait times out
    waiting: str = _key("ZSET", "waiting")  # id -> since when
    awaited: str = _key("ZSET", "awaited")
    """ID tab NAME, all with score 0: the signals that each of them still waits for."""
    signals: str = _key("ZSET", "signals")
    """ID tab NAME tab VALUE, all with score 0: the signals that have arrived for a message that
    exists, in any state."""

    # ids of cancelled or expired messages that still occupy a place in a pending list
    cancelled: str = _key("SET", "cancelled")
    # id -> when it expires; only messages that wait and have a ttl
    expiry: str = _key("ZSET", "expiry")

    processing: str = _key("HASH", "processing")
    """id -> lease, "token:worker". If the message was replaced since, a mark follows: " LEVEL DUE
    EXPIRES", where its new record will wait."""
    expire_monitor: str = _key("ZSET", "expire_monitor")  # id -> lease deadline

    dlq: str = _key("ZSET", "dlq")  # id -> time of death
    dlq_payload: str = _key("HASH", "dlq:payload")  # id -> final record
    error_parse_queue: str = _key("ZSET", "error:parse:queue")  # id -> time of quarantine
    # id -> a line about the error, then the exact bytes
    error_parse_payload: str = _key("HASH", "error:parse:payload")
    results: str = _key("ZSET", "results")  # id -> time of completion
    # id -> a line about the message, then the result
    results_payload: str = _key("HASH", "results:payload")
    # how many bytes each archive holds, and how far a recount has got
    archive_bytes: str = _key("HASH", "archive_bytes")

    doorbell: str = _key("LIST", "doorbell")  # at most one ring: something is pending
    doorbell_delay: str = _key("LIST", "doorbell:delay")  # at most one ring: an earlier due time
    meta: str = _key("HASH", "meta")
    """token: the last lease token. turn: which priority comes next. paused. dropped: how many ids
    without a record were dropped. tick: the last tick of its cron. result_ttl: how long results
    are kept, if a handler ever kept any. limits: what the handler declares. bucket: when the
    topic's bucket is full. plain_turn: the turn of the messages without a key. wake_at: when
    which worker will ask again. stand_in: when which one asks if that one does not. clock_ahead:
    how far the clock was set back. subscriptions: NAME TIME NAME TIME …, since when each exists;
    -NAME: since when it no longer does."""

    schedules: str = _key("HASH", "schedules")
    """name -> GENERATION TIMETABLE JSON, the definition of a schedule that makes messages here.
    !name -> since when it is paused, a space, why; "!" -> the same for the cron that is declared in
    code. @name -> its last tick."""

    # custom id -> until when it is taken;
    # !id -> until when a generated id that was cancelled or discarded may be used again
    recent: str = _key("ZSET", "recent")
    totals: str = _key("HASH", "totals")  # event -> how many messages it happened to, ever
    history: str = _key("STREAM", "history")  # what happened, newest last

    def types(self) -> dict[str, str]:
        """Return the type of every key that a topic may have, except receipts."""
        return {getattr(self, name): kind.lower() for name, kind in _TOPIC_TYPES.items()}

    def receipt(self, lane: str) -> str:
        return f"{self._base}:receipt:{lane}"

    def progress(self, id: str) -> str:
        """Return the key of the progress that a handler reported: token, a space, JSON."""
        return f"{self._base}:progress:{id}"

    @property
    def channel(self) -> str:
        """The channel on which the ends of messages are published, and their progress."""
        return self.results

    @property
    def aborts_channel(self) -> str:
        """Where workers learn which of the messages that they hold were aborted: `token id`."""
        return f"{self._base}:aborts"

    def archive_of(self, state: State) -> tuple[str, str]:
        """Return the index and the contents of an archive."""
        if state == State.DEAD:
            return self.dlq, self.dlq_payload
        if state == State.QUARANTINED:
            return self.error_parse_queue, self.error_parse_payload
        if state == State.COMPLETED:
            return self.results, self.results_payload
        raise InvalidInput(
            f"state={state!s:.40} has no archive; only dead, quarantined and completed do"
        )


_KEY_FIELDS: Final = [one for one in fields(TopicKeys) if one.metadata]
_TOPIC_TYPES: Final = {one.name: str(one.metadata["type"]) for one in _KEY_FIELDS}

TYPES: Final = {
    **_TOPIC_TYPES,
    "receipt": "STRING",  # number and answer of a lane's last call
    "maker": "STRING",  # the receipt of the lane that generated an id
    "archive": "ZSET",  # dlq, error_parse_queue or results
    "archive_payload": "HASH",  # dlq_payload, error_parse_payload or results_payload
    "hash": "HASH",  # any of the hashes
    "topics": "HASH",
    "workers": "HASH",
    "caretaker": "STRING",
    "schedule_topics": "HASH",
    "scratch": "SET",
}
"""The type of each key that a script names."""


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix = check_prefix(prefix)
        self.topics = f"{prefix}:topics"
        """Every topic that was ever produced to or served -> how many partitions it has;
        !topic -> the default time to live (ms) that its workers declare."""
        self.workers = f"{prefix}:workers"  # name -> last seen (ms), a space, info (JSON)
        self.caretaker = f"{prefix}:caretaker:{{{self.topics}}}"
        """The worker that looks after topics it does not serve; in the cluster slot of `topics`."""
        self.schedule_topics = f"{prefix}:schedule_topics"
        """Every schedule -> TOPIC GENERATION, where its definition is; while it moves to another
        topic, the new place comes first. !topic -> when workers last declared its cron (ms), a
        space, the declaration (JSON). "" -> a number that grows with every change."""
        self.layout = f"{prefix}:layout"  # the LAYOUT of these keys
        self._known: dict[str, TopicKeys] = {}

    def scratch(self, number: int) -> str:
        """Return a key to try commands on, which exists only while the preflight runs.

        Different numbers give different slots.
        """
        return f"{self.prefix}:{{preflight{number or ''}}}:scratch"

    def of(self, topic: str) -> TopicKeys:
        """Return the keys of a topic, subscription or partition; refuse an invalid name."""
        known = self._known.get(topic)
        if known is None:
            number, name = number_of(check_partition(topic)), subscription_of(topic)
            base = f"{self.prefix}:{{{partition(base_topic(topic), number)}}}"
            base += f"@{name}" if name else ""
            names = (f"{base}:{one.metadata['suffix']}" for one in _KEY_FIELDS)
            known = self._known[topic] = TopicKeys(topic, base, *names)
        return known
