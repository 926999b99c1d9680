"""How much is measured: a smoke run, the usual, or everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BYTES_A_MESSAGE: Final = 500
"""Bytes that a pending message may take on the server, generously."""
ROOM: Final = 50_000_000
"""Bytes for large payloads and for connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Numbers of messages, turns and seconds."""

    turns: int = 3
    """How often rates are measured; the median counts."""
    produced: int = 60_000
    drained: int = 60_000
    paced: int = 500
    """Messages that are sent one by one, for latencies."""
    trips: int = 20_000
    """Round trips of many callers; a single one makes one in 20 of them."""
    stored: int = 100_000
    """Messages for measuring memory."""
    ratios: int = 7
    """How often growth is measured; the median ratio counts."""
    rounds: int = 30
    """Batches a turn."""
    in_flight: tuple[int, ...] = (100, 1_000, 10_000)
    pending: tuple[int, ...] = (1_000, 100_000)
    keys: tuple[int, ...] = (10, 1_000, 10_000, 100_000)
    """Keys with messages waiting."""
    all_keys: int = 1_000_000
    """Keys that a topic has seen, most of them idle."""
    topics: tuple[int, ...] = (1, 20, 200)
    spread: int = 60_000
    """Messages, spread over the topics."""
    many: tuple[int, int] = (10, 1_000)
    """Topics of a worker that get messages one by one."""
    idle: float = 20.0
    """Seconds for which an idle worker is watched."""
    bursts: int = 8
    """How many bursts of ten large payloads are sent."""
    quiet: int = 100
    """Messages of a quiet tenant, one by one, behind those of a noisy one."""
    limited: float = 30.0
    """Seconds for which a rate is measured."""
    skew: int = 50
    """Messages of each quiet tenant; the noisy one has a thousand times as many."""

    @property
    def bytes(self) -> int:
        """The most memory that it takes on the server."""
        messages = max(
            sum(self.pending), 2 * sum(self.keys), self.stored, self.drained * 2, self.produced * 3
        )
        return ROOM + BYTES_A_MESSAGE * messages


USUAL: Final = Size()
QUICK: Final = Size(
    turns=1,
    produced=6_000,
    drained=6_000,
    paced=100,
    trips=2_000,
    stored=20_000,
    ratios=3,
    rounds=10,
    in_flight=(100, 1_000),
    pending=(1_000, 20_000),
    keys=(10, 1_000),
    all_keys=10_000,
    topics=(1, 50),
    spread=10_000,
    many=(10, 200),
    idle=2.0,
    bursts=2,
    quiet=20,
    limited=2.0,
    skew=5,
)
LONG: Final = 5_000_000
"""Pending messages of the longest run: about 2 GB."""
