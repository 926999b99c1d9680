"""Results as a picture for the README: one bar per queue, and what came back after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from bench.systems import OURS, THREADS

if TYPE_CHECKING:
    from bench.compare import Results

WIDTH = 840
LEFT = 130
BAR = 430
ROW = 30
TOP = 84

# Mid tones if the reader's theme is unknown; else the theme's.
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #57606a }
.title { font-size: 17px; font-weight: 600 }
.title, .name, .rate { fill: #1f2328 }
.small { font-size: 12px }
.ours { font-weight: 600 }
.bar { fill: #8c959f }
.bar.ours { fill: #1a7f64 }
.lost { fill: #b35900 }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .title, .name, .rate { fill: #f0f6fc }
  .bar { fill: #656c76 }
  .bar.ours { fill: #3fb68b }
  .lost { fill: #e0964a }
}
"""


def picture(results: Results) -> str:
    """Return an SVG of the drain rates, the fastest first."""
    shown = [
        (key, found)
        for key, found in results["systems"].items()
        if "drain" in found and key != THREADS
    ]
    shown.sort(key=lambda pair: -pair[1]["drain"]["rate"])
    most = shown[0][1]["drain"]["rate"] if shown else 1
    height = TOP + ROW * len(shown) + 34
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(_spoken(shown))}</title>",
        f"<style>{STYLE}</style>",
        _text(0, 22, "Messages handled per second by one worker process", "title"),
        _text(0, 44, _conditions(results), "small"),
        _text(LEFT + BAR + 90, TOP - 14, "a killed worker's messages", "small"),
    ]
    for number, (key, found) in enumerate(shown):
        parts += _row(TOP + ROW * number, key, found, most)
    parts.append(_text(0, height - 8, f"make bench, {results['date']}", "small"))
    parts.append("</svg>\n")
    return "\n".join(parts)


def _row(top: int, key: str, found: dict[str, Any], most: float) -> list[str]:
    rate = found["drain"]["rate"]
    length = max(1.5, rate / most * BAR)
    ours = " ours" if key == OURS else ""
    base = top + 18
    parts = [
        _text(0, base, found["name"], f"name{ours}"),
        f'<rect class="bar{ours}" x="{LEFT}" y="{top + 4}" width="{length:.1f}" height="18"/>',
        _text(LEFT + length + 8, base, f"{rate:,.0f}", f"rate{ours}"),
    ]
    if "crash" in found:
        crash = found["crash"]
        back, held = crash["back"], crash["held"]
        words = (
            f"back after {crash['last_back']:.0f} s"
            if back == held
            else f"{held - back:.0f} of {held:.0f} not back in {crash['waited']:.0f} s"
        )
        parts.append(_text(LEFT + BAR + 90, base, words, "small" if back == held else "small lost"))
    return parts


def _conditions(results: Results) -> str:
    cores = results["machine"].partition(",")[0]
    return (
        f"Async or plain handlers that do nothing, {results['payload_bytes']}-byte payloads, "
        f"{results['server']}, {cores} for worker and server"
    )


def _spoken(shown: list[tuple[str, dict[str, Any]]]) -> str:
    rates = ", ".join(f"{found['name']} {found['drain']['rate']:,.0f}" for _, found in shown)
    return f"Messages handled per second by one worker process: {rates}"


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y}">{escape(words)}</text>'
