"""What the children and the steps do, in every queue."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

URL = os.environ["FLOWS_URL"]
SLEEP = float(os.environ["FLOWS_SLEEP"])
CHILDREN = 100
CONCURRENCY = 10
WAIT = 130


def _note() -> None:
    with Path(os.environ["FLOWS_RECORD"]).open("a") as file:
        file.write(".")


async def page(number: int) -> int:
    await asyncio.sleep(SLEEP)
    _note()
    return number


def page_sync(number: int) -> int:
    time.sleep(SLEEP)
    _note()
    return number


async def ask(text: str) -> str:
    return text + "!"


def ask_sync(text: str) -> str:
    return text + "!"
