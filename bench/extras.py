"""What history, metrics and traces cost: the same drain and the same produce with and without each.

They take turns, a b c d and then d c b a. Each ratio is from one round, between neighbours of the
same minute, and the median counts, because the machine's speed changes from round to round.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

import httpx
from opentelemetry.sdk.trace import TracerProvider

from bench.own.crew import SETTLE, Crew, until_begun
from bench.own.load import PAYLOAD, TOPIC, Trouble
from mx_rmq.traces import Traces
from tests.lab.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.own.place import Place

Results = dict[str, Any]

USUALLY: Final = "as by default: history, no metrics, no traces"
BARE: Final = "without history"
METRICS: Final = "with metrics, scraped every second"
TRACES: Final = "with traces that are not collected"

SCRAPE: Final = 1.0
GOAL: Final = 0.10
"""The share of throughput that the history may cost."""
FIGURES: Final = ("rate", "worker", "server", "produced", "producer_server")


class Setting(TypedDict, total=False):
    """What is switched on or off."""

    history: int
    metrics: bool
    traces: bool


SETTINGS: Final[dict[str, Setting]] = {
    USUALLY: {},
    BARE: {"history": 0},
    METRICS: {"metrics": True},
    TRACES: {"traces": True},
}
AGAINST: Final = {USUALLY: BARE, METRICS: USUALLY, TRACES: USUALLY}
"""The setting that each is compared with."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    rounds: int = 12
    messages: int = 60_000


USUAL: Final = Extent()
QUICK: Final = Extent(rounds=1, messages=1_000)


async def compare(place: Place, extent: Extent, tell: Callable[[str], None]) -> Results:
    """Measure all settings, round by round."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SETTINGS}
    for number in range(extent.rounds):
        tell(f"extras, round {number + 1} of {extent.rounds}")
        for name in list(SETTINGS)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(await _once(place, extent.messages, SETTINGS[name]))
    return {
        "rounds": extent.rounds,
        "messages": extent.messages,
        "settings": {name: _middle(turns) for name, turns in found.items()},
        "ratios": {name: _ratios(found[name], found[beside]) for name, beside in AGAINST.items()},
    }


async def _once(place: Place, messages: int, setting: Setting) -> dict[str, float]:
    """Produce messages in bulk, then let one worker process drain them."""
    traces, history = setting.get("traces", False), setting.get("history")
    port = free_ports(1)[0] if setting.get("metrics") else 0
    around = [Traces(TracerProvider())] if traces else []
    async with place.queue(history=history, middleware=around) as mq, Crew(mq) as crew:
        await mq.produce(f"{TOPIC}.warm", PAYLOAD)
        before, began = await place.gauge.read(), time.perf_counter()
        await mq.produce_many(TOPIC, [PAYLOAD] * messages)
        seconds = time.perf_counter() - began
        full = await place.gauge.read()
        hand = await crew.hire([TOPIC], history=history, metrics=port, traces=traces)
        scraping = asyncio.create_task(_scrape(port) if port else asyncio.sleep(0))
        start = await place.gauge.read()
        await hand.go()
        await until_begun(messages, hand)
        await asyncio.sleep(SETTLE)
        end = await place.gauge.read()
        scraping.cancel()
        with suppress(asyncio.CancelledError):
            await scraping
        report = await hand.report()
        await hand.stop()
        if (await mq.admin.stats(TOPIC)).total:
            raise Trouble("a drain left messages behind")
    return {
        "rate": messages / (report.last - report.first),
        "worker": report.cpu / messages * 1e6,
        "server": (end.cpu - start.cpu) / messages * 1e6,
        "produced": messages / seconds,
        "producer_server": (full.cpu - before.cpu) / messages * 1e6,
    }


async def _scrape(port: int) -> None:
    """Ask for metrics as Prometheus does, the depth included."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as web:
        while True:
            with suppress(httpx.TransportError):  # it has not started yet
                for page in ("/metrics", "/metrics/depth"):
                    (await web.get(page)).raise_for_status()
            await asyncio.sleep(SCRAPE)


def _middle(turns: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(turn[name] for turn in turns) for name in FIGURES}


def _ratios(
    turns: list[dict[str, float]], beside: list[dict[str, float]]
) -> dict[str, dict[str, float]]:
    """Return how much more each figure is: the median, and the middle half."""
    found = {}
    for name in FIGURES:
        ratios = sorted(turn[name] / other[name] for turn, other in zip(turns, beside, strict=True))
        quarter = len(ratios) // 4
        found[name] = {
            "median": statistics.median(ratios),
            "low": ratios[quarter],
            "high": ratios[-1 - quarter],
        }
    return found
