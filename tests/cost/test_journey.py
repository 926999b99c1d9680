"""How much code a reader meets who follows one plain message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.cost.journey import journey

if TYPE_CHECKING:
    from tests.lab.servers import Server

FILES: Final = 14
FUNCTIONS: Final = 60
"""The goal of issue 16, which is met: keep it so."""


async def test_a_plain_message_visits_few_files_and_functions(server: Server) -> None:
    found = await journey(server.url)
    assert len(found.files) <= FILES, found.files
    assert len(found.functions) <= FUNCTIONS, sorted(found.functions)
