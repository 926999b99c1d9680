"""The tester is tested: the walk must catch every one-line fault in a script."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.lab.mutants import MUTANTS, Mutant
from tests.lab.servers import Kind
from tests.lab.walk import Walk

if TYPE_CHECKING:
    from tests.lab.servers import Server


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.fault)
def test_the_walk_catches(mutant: Mutant, server: Server) -> None:
    scripts = {mutant.script: mutant.mutated()}
    loop = asyncio.new_event_loop()
    faulty = {"url": server.url, "loop": loop, "mutants": scripts}
    try:
        with pytest.raises(Exception):  # noqa: B017, PT011 - any complaint is a catch
            run_state_machine_as_test(
                type("Mutated", (Walk,), faulty),
                settings=settings(
                    max_examples=400,
                    stateful_step_count=50,
                    deadline=None,
                    database=None,
                    derandomize=True,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )
    finally:
        loop.close()
