"""The tester is tested: the walk must catch every one-line fault in a script."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.lab.mutants import MUTANTS, Mutant
from tests.lab.servers import Kind
from tests.lab.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mx_rmq.store.script import Script
    from tests.lab.servers import Server

SEARCHES = 100
EXAMPLES = 4
"""Of one search. Many short ones catch sooner than a long one, which begins with small walks."""


def search(url: str, mutants: Mapping[str, Script], number: int) -> None:
    """Walk a little, from a seed; raise what is wrong."""
    loop = asyncio.new_event_loop()
    walk = type("OnThisServer", (Walk,), {"url": url, "loop": loop, "mutants": mutants})
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


def complains(url: str, mutants: Mapping[str, Script], number: int) -> bool:
    try:
        search(url, mutants, number)
    except Exception:  # noqa: BLE001 - any complaint is a catch
        return True
    return False


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.fault)
def test_the_walk_catches(mutant: Mutant, server: Server) -> None:
    scripts = {mutant.script: mutant.mutated()}
    assert any(complains(server.url, scripts, number) for number in range(SEARCHES))


@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
def test_the_same_walks_find_nothing_without_a_mutant(server: Server) -> None:
    for number in range(5):
        search(server.url, {}, number)
