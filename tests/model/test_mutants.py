"""Tests the walk: it must catch every one-line fault in a script."""

from __future__ import annotations

import os
from functools import cache

import pytest

from tests.lab.mutants import MUTANTS, Mutant
from tests.lab.servers import Kind, Server
from tests.model.noted import SEARCHES, catches, complains, noted, search

AT_LENGTH = "MX_RMQ_MODEL_EXAMPLES" in os.environ
"""`make model` searches at random, as if no walk had been stored."""

walks = cache(noted)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.fault)
def test_the_walk_catches(mutant: Mutant, server: Server) -> None:
    scripts = {mutant.script: mutant.mutated()}
    walk = walks().get(mutant.fault, [])
    if AT_LENGTH or not catches(server.url, scripts, walk):
        numbers = range(SEARCHES)
        assert any(complains(search, server.url, scripts, number) for number in numbers)


@pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)
def test_a_search_finds_nothing_without_a_mutant(server: Server) -> None:
    search(server.url, {}, 0)
