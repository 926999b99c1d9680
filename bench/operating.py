"""The figures of docs/operating.md: blocks between marks, updated from what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.capacity.page import table
from bench.extras import GOAL, SETTINGS, USUALLY
from bench.looks import PAGE_MS, SCRIPT_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

Results = dict[str, Any]

CALM = 1.5
"""Load of a machine that has little other work."""
SHOWN_MS = 1.0
"""Scripts and commands that never took this long are left out."""
MOMENTS = ("quiet", "beside")
"""When it was measured: without traffic, and with it."""


def blocks(results: Results) -> dict[str, str]:
    """Return the blocks of what was measured, by name."""
    found = {"conditions": _conditions(results)}
    if "looks" in results:
        looks = results["looks"]
        found |= {
            "crowd": _crowd(looks),
            "verdict": _verdict(looks),
            "pages": _times(looks, "pages", goal=PAGE_MS),
            "calls": _times(looks, "calls", goal=PAGE_MS),
            "long": _long(looks),
            "server": _server(looks),
        }
    if "extras" in results:
        found |= {"extras": _extras(results["extras"])}
    return found


def _conditions(results: Results) -> str:
    load = " and ".join(f"{one:.1f}" for one in results["load"])
    busy = bool(max(results["load"]) > CALM)
    return (
        f"Measured on {results['date']}: {results['server']} without persistence, over TCP on the "
        f"same machine ({results['machine']}), Python {results['python']}, {results['loop']}; "
        f"{results['minutes']:.0f} minutes in all. Load of the machine before and after: {load}."
        + " **The machine had other work: times are too high, ratios are not.**" * busy
        + f" Dashboard, client and server ran at nice {results['nice']}." * bool(results["nice"])
        + "\n"
    )


def _crowd(looks: Results) -> str:
    extent = looks["extent"]
    return (
        f"One topic with {extent['messages']:,} messages pending, as many delayed, as many dead, "
        f"and {extent['quarantined']:,} quarantined; {extent['others']} other topics with "
        f"{extent['each']:,} dead letters each; a topic with {extent['long']} messages of 1 MiB; "
        f"{extent['workers']} workers that report 20 handlers each; histories on. Filling it took "
        f"{looks['seconds'] / 60:.1f} minutes and {looks['memory'] / 1e9:.1f} GB of the server's "
        "memory.\n"
    )


def _verdict(looks: Results) -> str:
    lines = []
    for moment, beside in zip(MOMENTS, ("without other traffic", "beside traffic"), strict=True):
        found = looks[moment]
        pages, server = found["pages"], found["server"]
        slow = [name for name, one in pages.items() if one["median"] > PAGE_MS]
        worst = max(pages, key=lambda name: pages[name]["worst"])
        over = {name: one["over 5"] for name, one in server.items() if one["over 5"]}
        longest = max(server, key=lambda name: server[name]["worst"])
        lines.append(
            f"- {beside} (load {found['load']:.1f}): {len(pages)} pages, "
            + (f"**over {PAGE_MS:.0f} ms: {', '.join(slow)}**" if slow else "none over the goal")
            + f"; the slowest single one took {pages[worst]['worst']:.0f} ms ({worst}). "
            f"{found['commands']:,} scripts and commands, "
            + (
                "**over 5 ms: "
                + ", ".join(f"{name} {count}×" for name, count in sorted(over.items()))
                + "**"
                if over
                else "none over the goal"
            )
            + f"; the longest: {longest}, {server[longest]['worst']:.1f} ms.\n"
        )
    return (
        f"The goals are {PAGE_MS:.0f} ms for a page and {SCRIPT_MS:.0f} ms for a script:\n\n"
        + "".join(lines)
    )


def _times(looks: Results, part: str, *, goal: float) -> str:
    quiet, beside = (looks[moment][part] for moment in MOMENTS)
    rows = [
        [name, *(_bold(one[which], goal) for one in (quiet[name], beside[name]) for which in WHICH)]
        for name in quiet
    ]
    return table(["ms", "median", "worst", "beside traffic: median", "worst"], rows)


WHICH = ("median", "worst")


def _long(looks: Results) -> str:
    quiet, beside = (looks[moment]["long"] for moment in MOMENTS)
    rows = [[name, *(_bold(one[name]["worst"]) for one in (quiet, beside))] for name in quiet]
    return table(["ms", "quiet", "beside traffic"], rows)


def _server(looks: Results) -> str:
    quiet, beside = (looks[moment]["server"] for moment in MOMENTS)
    rows = []
    for name in sorted({*quiet, *beside}, key=lambda name: (name.isupper(), name)):
        both = [one.get(name) for one in (quiet, beside)]
        if max(one["worst"] for one in both if one) < SHOWN_MS:
            continue
        row = [f"`{name}`"]
        for one in both:
            row += _run(one) if one else ["–"] * 3
        worst = max((one for one in both if one), key=lambda one: one["worst"])
        rows.append([*row, worst["during"]])
    head = ["over 1 ms", "over 5 ms", "worst"]
    return table(["ms", *head, *(f"{one}, beside" for one in head), "the worst during"], rows)


def _run(one: dict[str, Any]) -> Iterable[str]:
    yield f"{one['over 1']:,}"
    yield f"{one['over 5']:,}"
    yield _bold(one["worst"], SCRIPT_MS, 2)


def _bold(value: float, goal: float = float("inf"), digits: int = 0) -> str:
    text = f"{value:,.{digits if value >= 1 or digits else 1}f}"
    return f"**{text}**" if value > goal else text


def _extras(extras: Results) -> str:
    settings, ratios = extras["settings"], extras["ratios"]
    rows = [
        [
            name,
            f"{found['rate']:,.0f}",
            f"{found['worker']:.1f}",
            f"{found['server']:.1f}",
            f"{found['produced']:,.0f}",
            f"{found['producer_server']:.1f}",
        ]
        for name, found in ((name, settings[name]) for name in SETTINGS)
    ]
    head = ["", "drained /s", "worker CPU, µs", "server CPU, µs", "produced /s", "server CPU, µs"]
    compared = [
        [name, *(_ratio(found[one]) for one in found)]
        for name, found in (
            ("history, against none", ratios[USUALLY]),
            *((name, found) for name, found in ratios.items() if name != USUALLY),
        )
    ]
    costs = 1 - ratios[USUALLY]["rate"]["median"], 1 - ratios[USUALLY]["produced"]["median"]
    verdict = "met" if max(costs) < GOAL else "**missed**"
    return (
        table(head, rows)
        + f"\nSide by side, {extras['rounds']} rounds of {extras['messages']:,} messages: the "
        "median ratio, and in brackets the middle half of the rounds:\n\n"
        + table(head, compared)
        + f"\nHistory costs {costs[0]:.1%} of a drain and {costs[1]:.1%} of a produce; the goal is "
        f"under {GOAL:.0%} of throughput: {verdict}.\n"
    )


def _ratio(found: dict[str, float]) -> str:
    return f"{found['median']:.3f} ({found['low']:.2f}–{found['high']:.2f})"
