"""Walks that catch the mutants: found at random once, shortened, and stored in noted_walks.json.

A random search takes up to a minute for some mutants; the walk that it finds runs in a moment.
`python -m tests.model.noted` searches for the mutants whose walk no longer catches them (or has
never been noted) and rewrites the file. `make model` searches for all of them, every time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from mx_rmq.core.message import Priority
from tests.lab.mutants import MUTANTS
from tests.lab.servers import Kind, Server
from tests.lab.subscription_walk import SubscriptionWalk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mx_rmq.store.script import Script

FILE = Path(__file__).with_name("noted_walks.json")
SEARCHES = 100
EXAMPLES = 4
"""For one search. Many short ones find more than a long one, which starts with small walks."""

Step = tuple[str, dict[str, Any]]
"""A rule's name and its arguments."""


def noted() -> dict[str, list[Step]]:
    """Return the noted walks, by the fault they catch."""
    walks = json.loads(FILE.read_text()) if FILE.exists() else {}
    return {fault: [(name, _typed(args)) for name, args in steps] for fault, steps in walks.items()}


def replay(url: str, mutants: Mapping[str, Script], steps: list[Step]) -> None:
    """Do the steps of a walk that are possible; raise what is wrong."""
    loop = asyncio.new_event_loop()
    try:
        walk = type(
            "OnThisServer", (SubscriptionWalk,), {"url": url, "loop": loop, "mutants": mutants}
        )()
        rules = {rule.function.__name__: rule for rule in walk.setup_state().rules}
        rules |= {rule.function.__name__: rule for rule in walk.setup_state().initializers}
        try:
            for name, args in steps:
                if all(possible(walk) for possible in rules[name].preconditions):
                    rules[name].function(walk, **args)
                    for invariant in walk.setup_state().invariants:
                        invariant.function(walk)
        finally:
            walk.teardown()
    finally:
        loop.close()


def search(
    url: str,
    mutants: Mapping[str, Script],
    number: int,
    on_step: Callable[[Step | None], None] | None = None,
) -> None:
    """Walk a little, from a seed; raise what is wrong. A walk's first step is None."""
    loop = asyncio.new_event_loop()
    body = {"url": url, "loop": loop, "mutants": mutants}
    walk = type("OnThisServer", (SubscriptionWalk if on_step is None else _telling(on_step),), body)
    try:
        run_state_machine_as_test(
            seed(number)(walk),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=50,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        loop.close()


def complains(work: Callable[..., None], *args: Any) -> bool:
    """Return whether a walk or a search finds something wrong."""
    try:
        work(*args)
    except Exception:  # noqa: BLE001 - any error is a catch
        return True
    return False


def _telling(on_step: Callable[[Step | None], None]) -> type[SubscriptionWalk]:
    """Return a walk that records its steps."""

    class Telling(SubscriptionWalk):
        def __init__(self) -> None:
            on_step(None)
            super().__init__()

        @classmethod
        def setup_state(cls) -> Any:
            state = super().setup_state()
            return replace(
                state,
                rules=[_told(rule, on_step) for rule in state.rules],
                initializers=[_told(rule, on_step) for rule in state.initializers],
            )

    return Telling


def _told(rule: Any, on_step: Callable[[Step | None], None]) -> Any:
    def told(walk: SubscriptionWalk, **args: Any) -> None:
        on_step((rule.function.__name__, args))
        rule.function(walk, **args)

    told.__name__ = rule.function.__name__
    return replace(rule, function=told)


def _typed(args: dict[str, Any]) -> dict[str, Any]:
    """Return a step's arguments with the priorities that JSON has as text."""
    if "priority" in args:
        return {**args, "priority": Priority(args["priority"])}
    if args.get("first") and isinstance(args["first"][0], list):
        return {"first": [(Priority(priority), worker) for priority, worker in args["first"]]}
    return args


# noting


def find(url: str, mutants: Mapping[str, Script]) -> list[Step]:
    """Search for a walk that catches a mutant, and shorten it."""
    steps: list[Step] = []

    def on_step(step: Step | None) -> None:
        if step is None:
            steps.clear()
        else:
            steps.append(step)

    for number in range(SEARCHES):
        if complains(search, url, mutants, number, on_step) and catches(url, mutants, steps):
            return shortened(url, mutants, list(steps))
    raise LookupError(f"no walk catches {list(mutants)}")


def catches(url: str, mutants: Mapping[str, Script], steps: list[Step]) -> bool:
    """Return whether a walk fails with the mutants, and only with them."""
    return complains(replay, url, mutants, steps) and not complains(replay, url, {}, steps)


def shortened(url: str, mutants: Mapping[str, Script], steps: list[Step]) -> list[Step]:
    """Remove what the walk does not need: halves, quarters, and so on down to single steps."""
    size = len(steps)
    while size > 1:
        size //= 2
        for start in reversed(range(0, len(steps), size)):
            fewer = steps[:start] + steps[start + size :]
            if catches(url, mutants, fewer):
                steps = fewer
    return steps


def main() -> None:
    """Note a walk for each mutant that is not caught by the one noted."""
    walks = noted()
    with (
        tempfile.TemporaryDirectory(prefix="mxw-") as directory,
        Server(Kind.VALKEY_9_1, Path(directory)) as server,
    ):
        for mutant in MUTANTS:
            scripts = {mutant.script: mutant.mutated()}
            if not catches(server.url, scripts, walks.get(mutant.fault, [])):
                walks[mutant.fault] = find(server.url, scripts)
                _write(walks)
                sys.stderr.write(f"{mutant.fault}: {len(walks[mutant.fault])} steps\n")
    _write(walks)


def _write(walks: dict[str, list[Step]]) -> None:
    """Write one line per step, the walks in the order of the mutants."""
    texts = []
    for mutant in MUTANTS:
        if steps := walks.get(mutant.fault):
            lines = ",\n".join(f"    {json.dumps(step)}" for step in steps)
            texts.append(f"  {json.dumps(mutant.fault)}: [\n{lines}\n  ]")
    FILE.write_text("{\n" + ",\n".join(texts) + "\n}\n")


if __name__ == "__main__":
    main()
