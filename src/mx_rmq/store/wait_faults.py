"""The faults of messages that wait for signals, in words: see repair_waits.lua."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

WRONG_WAITS: Final = {
    1: ("waits for signals, but is not delayed", "no longer waits for signals"),
    2: ("awaits signals, but is not waiting", "waits for them if it is delayed"),
    4: ("awaits signals that have arrived", "no longer waits for them"),
    8: ("is waiting, but awaits no signal", "made due"),
    16: ("has signals, but is gone", "signals dropped"),
}
"""By the codes of repair_waits.lua: what is wrong, and what a repair does."""


class WaitFault(NamedTuple):
    """A message whose waits or signals are wrong."""

    id: bytes
    code: int  # a sum of codes

    @property
    def wrongs(self) -> list[str]:
        return [wrong for code, (wrong, _) in WRONG_WAITS.items() if self.code & code]

    @property
    def repairs(self) -> list[str]:
        return [repair for code, (_, repair) in WRONG_WAITS.items() if self.code & code]


def wait_suspects(
    waiting: Iterable[bytes],
    awaited: Iterable[bytes],
    signalled: Iterable[bytes],
    *,
    delayed: Container[bytes],
    existing: Container[bytes],
) -> list[bytes]:
    """Return the ids of messages that look wrong.

    Whether an awaited signal has arrived is not known here, so every message with signals that
    waits for others is a suspect.
    """
    since, missing = set(waiting), {member.partition(b"\t")[0] for member in awaited}
    came = set(signalled)
    wrong = since ^ missing
    wrong |= {id for id in since if id not in delayed or id in came}
    wrong |= {id for id in came if id not in existing}
    return sorted(wrong)
