"""Every key, its type and its meaning. No other file spells out a key.

Every key of a topic carries the topic as its hash tag, so all of them live in one cluster slot
and one script can change them together. A topic of several partitions has such a set of keys for
each partition: the first under its own name, the others under {topic/1}, {topic/2}, … To the store
each partition is a topic.

    mx-rmq:{topic}:payload                    HASH    id -> record
    mx-rmq:{topic}:pending[:high|:low]        LIST    ids, newest first; taken from the right
    mx-rmq:{topic}:delay_tasks[:high|:low]    ZSET    id -> due time, ms
    mx-rmq:{topic}:processing                 HASH    id -> lease, "token:worker"
    mx-rmq:{topic}:expire_monitor             ZSET    id -> lease deadline, ms
    mx-rmq:{topic}:dlq                        ZSET    id -> time of death, ms
    mx-rmq:{topic}:dlq:payload                HASH    id -> final record
    mx-rmq:{topic}:error:parse:queue          ZSET    id -> time of quarantine, ms
    mx-rmq:{topic}:error:parse:payload        HASH    id -> a line about the error, then the bytes
    mx-rmq:{topic}:archive_bytes              HASH    bytes that each archive holds, and how far
                                                      they are counted
    mx-rmq:{topic}:doorbell                   LIST    at most one ring: something is pending
    mx-rmq:{topic}:doorbell:delay             LIST    at most one ring: an earlier due time
    mx-rmq:{topic}:meta                       HASH    token, turn, paused, dropped, tick
    mx-rmq:{topic}:totals                     HASH    what happened -> to how many messages, ever
    mx-rmq:{topic}:history                    STREAM  what has happened, newest last
    mx-rmq:{topic}:expiry                     ZSET    id -> when it expires, ms; only messages
                                                      that wait and have a ttl
    mx-rmq:{topic}:cancelled                  SET     ids with one place in a long pending list
                                                      that does not count: cancelled or expired
    mx-rmq:{topic}:recent                     ZSET    custom id -> until when it is taken, ms;
                                                      !id -> until when a generated id that was
                                                      cancelled or discarded may be used again
    mx-rmq:{topic}:receipt:LANE               STRING  number and answer of the lane's last call
    mx-rmq:topics                             HASH    every topic that was ever produced to ->
                                                      how many partitions it has
    mx-rmq:workers                            HASH    name -> last seen (ms), a space, info (JSON)
    mx-rmq:caretaker:{mx-rmq:topics}          STRING  the worker that looks after topics that it
                                                      does not serve; in the slot of mx-rmq:topics
    mx-rmq:layout                             STRING  number of the layout that these keys have
    mx-rmq:{preflight}:scratch                SET     exists only while the preflight runs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.core.names import check_partition, check_prefix

DEFAULT_PREFIX: Final = "mx-rmq"

LAYOUT: Final = 1
"""The layout of the keys in the table above. It grows when a release that does not know a change
would lose or repeat messages. A key that older releases can ignore does not change it."""


@dataclass(frozen=True, slots=True)
class TopicKeys:
    """The keys of one topic, under the names that the scripts use."""

    topic: str
    payload: str
    pending_high: str
    pending: str
    pending_low: str
    delay_tasks_high: str
    delay_tasks: str
    delay_tasks_low: str
    processing: str
    expire_monitor: str
    dlq: str
    dlq_payload: str
    error_parse_queue: str
    error_parse_payload: str
    archive_bytes: str
    doorbell: str
    doorbell_delay: str
    meta: str
    totals: str
    history: str
    expiry: str
    cancelled: str
    recent: str
    _receipt: str

    def types(self) -> dict[str, str]:
        """Return every key that a topic may have, receipts aside, and the type it must hold."""
        lists = (self.pending_high, self.pending, self.pending_low, self.doorbell)
        hashes = (self.payload, self.processing, self.dlq_payload, self.error_parse_payload)
        sorted_sets = (self.delay_tasks_high, self.delay_tasks, self.delay_tasks_low, self.recent)
        return {
            **dict.fromkeys((*lists, self.doorbell_delay), "list"),
            **dict.fromkeys((*hashes, self.archive_bytes, self.meta, self.totals), "hash"),
            **dict.fromkeys((*sorted_sets, self.expire_monitor), "zset"),
            **dict.fromkeys((self.dlq, self.error_parse_queue, self.expiry), "zset"),
            self.history: "stream",
            self.cancelled: "set",
        }

    def receipt(self, lane: str) -> str:
        """Return the key of a lane's receipt."""
        return self._receipt + lane

    def archive_of(self, state: State) -> tuple[str, str]:
        """Return the index and the contents of the dead letters or of the quarantine."""
        if state == State.DEAD:
            return self.dlq, self.dlq_payload
        if state == State.QUARANTINED:
            return self.error_parse_queue, self.error_parse_payload
        raise InvalidInput(f"state={state!s:.40} has no archive; only dead and quarantined do")


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix = check_prefix(prefix)
        self.topics = f"{prefix}:topics"
        self.workers = f"{prefix}:workers"
        self.caretaker = f"{prefix}:caretaker:{{{self.topics}}}"
        self.layout = f"{prefix}:layout"
        self._known: dict[str, TopicKeys] = {}

    def scratch(self, number: int) -> str:
        """Return a key to try commands on. Different numbers give different slots."""
        return f"{self.prefix}:{{preflight{number or ''}}}:scratch"

    def of(self, topic: str) -> TopicKeys:
        """Return the keys of a topic or partition; refuse an invalid name."""
        known = self._known.get(topic)
        if known is None:
            base = f"{self.prefix}:{{{check_partition(topic)}}}"
            known = self._known[topic] = TopicKeys(
                topic=topic,
                payload=f"{base}:payload",
                pending_high=f"{base}:pending:high",
                pending=f"{base}:pending",
                pending_low=f"{base}:pending:low",
                delay_tasks_high=f"{base}:delay_tasks:high",
                delay_tasks=f"{base}:delay_tasks",
                delay_tasks_low=f"{base}:delay_tasks:low",
                processing=f"{base}:processing",
                expire_monitor=f"{base}:expire_monitor",
                dlq=f"{base}:dlq",
                dlq_payload=f"{base}:dlq:payload",
                error_parse_queue=f"{base}:error:parse:queue",
                error_parse_payload=f"{base}:error:parse:payload",
                archive_bytes=f"{base}:archive_bytes",
                doorbell=f"{base}:doorbell",
                doorbell_delay=f"{base}:doorbell:delay",
                meta=f"{base}:meta",
                totals=f"{base}:totals",
                history=f"{base}:history",
                expiry=f"{base}:expiry",
                cancelled=f"{base}:cancelled",
                recent=f"{base}:recent",
                _receipt=f"{base}:receipt:",
            )
        return known
