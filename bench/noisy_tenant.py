"""`python -m bench.noisy_tenant`: measures a quiet tenant behind a noisy one, and draws it.

Writes docs/images/one-noisy-tenant.svg: how long each message of the quiet tenant waits, without
keys and with them. Takes half a minute.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final

from bench.environments import ROOT
from bench.own.figure import share
from bench.own.place import PREFIX, place, prefix_of_its_own
from bench.own.tenants import BACKLOG, quiet_waits

if TYPE_CHECKING:
    from collections.abc import Sequence

PICTURE: Final = ROOT / "docs" / "images" / "one-noisy-tenant.svg"
MESSAGES: Final = 100

WIDTH: Final = 840
HEIGHT: Final = 320
LEFT: Final = 70
RIGHT: Final = 190
TOP: Final = 74
BOTTOM: Final = 270
LEAST: Final = 1.0
MOST: Final = 10_000.0
"""Milliseconds at the ends of the scale."""

STYLE: Final = """
text { font: 14px system-ui, sans-serif; fill: #57606a }
.title { font-size: 17px; font-weight: 600; fill: #1f2328 }
.small { font-size: 12px }
.end { text-anchor: end }
.grid { stroke: #d1d9e0 }
.without { fill: #b35900 }
.with { fill: #1a7f64 }
.word { font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .title { fill: #f0f6fc }
  .grid { stroke: #3d444d }
  .without { fill: #e0964a }
  .with { fill: #3fb68b }
}
"""

Waits = list[tuple[float, float]]
"""When each message was produced, and how long it waited, in seconds."""


async def measure() -> tuple[Waits, Waits]:
    """Measure without keys, then with them."""
    async with place(None, prefix=prefix_of_its_own(PREFIX), patience=10) as here:
        found = [await quiet_waits(here, MESSAGES, keys=keys) for keys in (False, True)]
    without, by_key = [[(began - late, late) for began, late in one] for one in found]
    return without, by_key


def picture(without: Waits, by_key: Waits) -> str:
    """Return an SVG with one dot per message."""
    last = max(at for at, _ in (*without, *by_key))
    words = [
        (series, name, share([late for _, late in series], 0.5) * 1000)
        for series, name in ((without, "without"), (by_key, "with"))
    ]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    spoken = (
        f"A quiet tenant's messages wait {words[0][2]:,.0f} ms without keys "
        f"and {words[1][2]:,.0f} ms with them (medians)"
    )
    behind = f"{BACKLOG:,} messages of the noisy tenant came first; handlers of 5 ms, 10 at a time"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{spoken}</title>",
        f"<style>{STYLE}</style>",
        _text(0, 22, "How long a quiet tenant waits behind a noisy one", "title"),
        _text(0, 44, behind, "small"),
    ]
    for ms, label in (
        (1, "1 ms"),
        (10, "10 ms"),
        (100, "100 ms"),
        (1_000, "1 s"),
        (10_000, "10 s"),
    ):
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(ms):.1f}" '
            f'y2="{_y(ms):.1f}"/>'
        )
        parts.append(_text(LEFT - 10, _y(ms) + 4, label, "small end"))
    for series, name, middle in words:
        parts += [_dot(at, late * 1000, last, name) for at, late in series]
        parts += [
            _text(WIDTH - RIGHT + 14, _y(middle) - 2, f"{name} keys", f"word {name}"),
            _text(WIDTH - RIGHT + 14, _y(middle) + 16, f"median {middle:,.0f} ms", "small"),
        ]
    parts.append(_text(LEFT, BOTTOM + 22, "0 s", "small"))
    parts.append(_text(WIDTH - RIGHT, BOTTOM + 22, f"produced after {last:.1f} s", "small end"))
    parts.append(_text(0, HEIGHT - 4, "python -m bench.noisy_tenant", "small"))
    return "\n".join([*parts, "</svg>\n"])


def _dot(at: float, ms: float, last: float, name: str) -> str:
    x = LEFT + max(0.0, at) / last * (WIDTH - RIGHT - LEFT)
    return f'<circle class="{name}" cx="{x:.1f}" cy="{_y(ms):.1f}" r="3"/>'


def _y(ms: float) -> float:
    part = math.log(max(LEAST, min(MOST, ms)) / LEAST) / math.log(MOST / LEAST)
    return BOTTOM - part * (BOTTOM - TOP)


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{words}</text>'


def _medians(series: Sequence[tuple[float, float]]) -> str:
    late = [one for _, one in series]
    return f"p50 {share(late, 0.5) * 1000:,.1f} ms, p99 {share(late, 0.99) * 1000:,.1f} ms"


def main() -> None:
    logging.getLogger("mx_rmq").setLevel(logging.ERROR)
    without, by_key = asyncio.run(measure())
    PICTURE.write_text(picture(without, by_key))
    print(f"without keys: {_medians(without)}\nwith keys: {_medians(by_key)}\n{PICTURE}")


if __name__ == "__main__":
    main()
