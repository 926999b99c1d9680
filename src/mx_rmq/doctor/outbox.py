"""What is wrong with an outbox. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mx_rmq.core.text import count, duration
from mx_rmq.doctor.finding import Finding, bad, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

LATE: Final = 60.0  # seconds after which a row should have been sent long ago


def check_outbox(name: str, *, waiting: int, oldest: float, parked: int) -> list[Finding]:
    """Check an outbox, given how many rows wait, for how long, and how many are parked."""
    found = [*_check(name, waiting, oldest, parked)]
    return found or [ok(f"outbox {name}: {count(waiting, 'row')} to send")]


def _check(name: str, waiting: int, oldest: float, parked: int) -> Iterator[Finding]:
    if waiting and oldest > LATE:
        yield bad(
            f"outbox {name}: {count(waiting, 'row')} to send, the first for {duration(oldest)}",
            "A worker with a relay sends them: start one, or check the workers' logs",
        )
    if parked:
        yield bad(
            f"outbox {name}: {count(parked, 'row')} parked, which cannot be sent as they are",
            "See why with: mx-rmq outbox DATABASE; then --retry or --discard them",
        )
