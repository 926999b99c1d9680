"""From costs to messages per second, memory, processes and connections.

Nothing here is measured. What was measured is in `costs.json`, or in the file of `--measure`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from bench.capacity.model import Costs, Model
from bench.capacity.spread import busiest, usual_busiest
from mx_rmq.core.message import State
from mx_rmq.core.partition import MAX_PARTITIONS
from mx_rmq.net.topology import CONNECTIONS
from mx_rmq.runtime.caretaker import ROUND
from mx_rmq.runtime.dispatcher import BATCH as MOST_DISPATCHED
from mx_rmq.runtime.dispatcher import OUTSTANDING
from mx_rmq.runtime.doorbell_listener import LONGEST_WAIT, MAX_TOPICS, WAIT
from mx_rmq.runtime.producer import ENVELOPE, MAX_CALL_BYTES, MAX_CHUNK, REFRESH_EVERY
from mx_rmq.runtime.registry import BEAT
from mx_rmq.runtime.site import SURVEY_EVERY
from mx_rmq.settings import Limits
from mx_rmq.store.archive_budgets import FIXED

SHIPPED: Final = Path(__file__).with_name("costs.json")

PARTITIONS: Final = 8
"""Partitions per shard, by default."""

RECEIVED: Final = 180
SENT: Final = 170
REPLICATED: Final = 460
"""Bytes per message that the server reads, writes, and sends to a replica, besides the payload,
which goes each of these ways once. In batches; counted, and the same on every machine."""

SETTLING: Final = 1
"""Concurrent calls of a partition besides those of the dispatcher."""
ASIDE: Final = 2
"""Connections to a node for plain commands, and for the keeper of the leases."""

MAXCLIENTS: Final = 10_000
"""Connections that a server accepts by default."""
FILES: Final = 1_024
"""Files and connections that a process may open by default (`ulimit -n`)."""
NODES: Final = 1_000
"""Nodes up to which the servers' makers recommend a cluster: each talks to each of them."""
ASIDE_SHARE: Final = 0.05
"""The share of a core that may be spent on work that moves no message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load to plan for."""

    shards: int = 1
    payload: int = 1_000
    """Bytes."""
    batch: int = 100
    """Messages per call of a worker."""
    produce_batch: int | None = None
    """Messages per call of a producer; None: the same number."""
    topics: int = 1
    names: tuple[str, ...] = ()
    """The names of the topics, which determine their shards."""
    partitions: int | None = None
    """Per topic; None: eight per shard, or one if there is one shard."""
    backlog: int = 1_000_000
    """Messages that wait."""
    handler: float = 0.0
    """Microseconds of CPU time that a handler takes."""
    utilisation: float = 0.7
    """The share of a core that a server, a worker or a producer may use."""
    replicas: bool = False
    """Whether each shard has one."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A resource with a limit."""

    what: str
    used: float
    most: float
    why: str

    @property
    def over(self) -> bool:
        """Whether the load needs more than the limit."""
        return self.used > self.most

    @property
    def text(self) -> str:
        """The bound in words."""
        form = ".1%" if self.most < 1 else ",.0f"
        return f"{self.what}, {self.used:{form}} of {self.most:{form}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan for a load."""

    load: Load
    partitions: int
    """Of each topic."""
    busiest: float
    """Partitions on the fullest shard."""
    server_us: float
    worker_us: float
    producer_us: float
    """Microseconds of CPU time per message."""
    per_shard: float
    """Messages per second of a shard at its allowed utilisation."""
    total: float
    """Total messages per second when the busiest shard is at its allowed utilisation."""
    memory: float
    """Bytes of the backlog, without replicas."""
    memory_busiest: float
    """Bytes of it on the busiest shard."""
    dead: float
    """Bytes of dead letters, if every partition keeps as many as it may, all of message size."""
    workers: int
    producers: int
    """Processes."""
    worker_connections: int
    node_connections: int
    """Maximum of one worker to all nodes, and of all clients to the busiest node."""
    idle_commands: float
    """Commands per second of an idle worker."""
    gbits_in: float
    gbits_out: float
    """Of the busiest shard, to its replica too."""
    bounds: tuple[Bound, ...]

    @classmethod
    def of(cls, load: Load, model: Model) -> Self:
        """Estimate what a load needs."""
        topics = len(load.names) or load.topics
        parts = load.partitions or _partitions(load.shards, topics)
        most = _busiest(load, topics, parts)
        batch = min(load.batch, MOST_DISPATCHED)
        produced = min(load.produce_batch or load.batch, _most_produced(load.payload))
        server = model.server(load.payload, batch=batch, produce_batch=produced) * _factor(
            load, model.costs
        )
        per_shard = load.utilisation / server * 1e6
        total = per_shard * topics * parts / most
        worker = model.worker.at(load.payload, batch) + load.handler
        producer = model.producer.at(load.payload, produced)
        workers, producers = (
            math.ceil(total * one / 1e6 / load.utilisation) for one in (worker, producer)
        )
        sites = topics * parts if load.shards > 1 else 1
        on_busiest = most if load.shards > 1 else 1
        listeners = sites if load.shards > 1 else math.ceil(topics * parts / MAX_TOPICS)
        waits = 1 / min(WAIT * listeners, LONGEST_WAIT)
        of_worker = listeners + load.shards * _calls(topics * parts / load.shards)
        heard = on_busiest if load.shards > 1 else listeners
        of_node = workers * (heard + _calls(most)) + producers * min(CONNECTIONS, most + 1)
        memory = model.memory(load.payload)
        share = most / topics / parts
        call = model.cpu["dispatch"].call / 1e6
        registry = (workers * 2 / BEAT + producers / REFRESH_EVERY) * call
        nodes = load.shards * (2 if load.replicas else 1)
        return cls(
            load=load,
            partitions=parts,
            busiest=most,
            server_us=server,
            worker_us=worker,
            producer_us=producer,
            per_shard=per_shard,
            total=total,
            memory=load.backlog * memory,
            memory_busiest=load.backlog * memory * share,
            dead=topics * min(Limits().dlq_max * parts * memory, FIXED[State.DEAD]),
            workers=workers,
            producers=producers,
            worker_connections=of_worker,
            node_connections=math.ceil(of_node),
            idle_commands=listeners * waits + sites / SURVEY_EVERY + 2 / BEAT + 1 / ROUND,
            gbits_in=per_shard * (load.payload + RECEIVED) * 8 / 1e9,
            gbits_out=per_shard * _sent(load) * 8 / 1e9,
            bounds=(
                Bound("partitions of a topic", parts, MAX_PARTITIONS, "our own limit"),
                Bound("connections of a worker", of_worker, FILES, "raise ulimit -n"),
                Bound("connections of a node", of_node, MAXCLIENTS, "raise maxclients"),
                Bound(
                    "a node's core for idle waits",
                    workers * (heard * waits + on_busiest / SURVEY_EVERY) * call,
                    ASIDE_SHARE,
                    "every worker listens to every partition: fewer partitions or workers",
                ),
                Bound(
                    "a node's core for signs of life",
                    registry,
                    ASIDE_SHARE,
                    "the registry of workers and topics is on one node: fewer, larger workers",
                ),
                Bound("nodes", nodes, NODES, "each node talks to every other: several clusters"),
            ),
        )


def shipped() -> Costs:
    """Return the costs that were measured on our machine."""
    return msgspec.json.decode(SHIPPED.read_bytes(), type=Costs)


def _partitions(shards: int, topics: int) -> int:
    if shards == 1:
        return 1
    return min(MAX_PARTITIONS, math.ceil(PARTITIONS * shards / topics))


def _busiest(load: Load, topics: int, parts: int) -> float:
    if load.names:
        return busiest(load.names, parts, load.shards)
    return usual_busiest(topics, parts, load.shards)


def _calls(partitions: float) -> int:
    """Return a worker's connections to a node with N partitions, without doorbells."""
    return min(CONNECTIONS, math.ceil(partitions * (OUTSTANDING + SETTLING))) + ASIDE


def _most_produced(payload: int) -> int:
    """Return how many messages of a size one call of a producer carries."""
    return max(1, min(MAX_CHUNK, MAX_CALL_BYTES // (payload + ENVELOPE)))


def _sent(load: Load) -> int:
    return load.payload + SENT + (load.payload + REPLICATED if load.replicas else 0)


def _factor(load: Load, costs: Costs) -> float:
    """Return by how much a cluster makes the server's work more expensive."""
    if load.replicas:
        return max(1.0, costs.cluster, costs.replicas)
    return max(1.0, costs.cluster) if load.shards > 1 else 1.0
