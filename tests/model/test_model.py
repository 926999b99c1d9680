"""A random walk over all transitions, with faults, on two kinds of server."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.lab.servers import Kind, chosen
from tests.lab.subscription_walk import SubscriptionWalk

if TYPE_CHECKING:
    from tests.lab.servers import Server

EXAMPLES = int(os.environ.get("MX_RMQ_MODEL_EXAMPLES", "40"))
STEPS = 50


@pytest.mark.timeout(max(600, EXAMPLES))
@pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1, Kind.REDIS_7_0), indirect=True)
def test_every_walk_agrees_with_the_model_and_ends_in_an_empty_queue(server: Server) -> None:
    loop = asyncio.new_event_loop()
    walk = type("OnThisServer", (SubscriptionWalk,), {"url": server.url, "loop": loop})
    try:
        run_state_machine_as_test(
            walk,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        loop.close()
