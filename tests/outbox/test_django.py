"""The outbox of a Django application, on both databases."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.lab.servers import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.postgres import Postgres
    from tests.lab.servers import Server


@pytest.mark.parametrize("engine", ["postgresql", "sqlite3"])
async def test_a_django_application(
    engine: str, server: Server, raw: Redis, postgres: Postgres, tmp_path: Path
) -> None:
    name = str(tmp_path / "shop.db")
    if engine == "postgresql":
        name = postgres.new_database().rpartition("/")[2]
    words = [engine, name, str(postgres.port), server.url]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.outbox.django_shop", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
