"""The account: what became of every message, by its id."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHOWN: Final = 3
"""Ids that are named when something is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who went in, and who came out where."""

    produced: frozenset[str]
    doomed: frozenset[str]
    """What cannot be carried through, of these."""
    done: Mapping[str, int]
    """Message -> how often a handler carried it through, by the shop's own journal."""
    dead: Mapping[str, str]
    """Message -> why; so for the quarantined ones."""
    quarantined: Mapping[str, str]
    unsettled: int = 0
    """Messages that still wait or are held."""
    violations: tuple[str, ...] = ()
    """What the audit found."""
    held: frozenset[str] = field(default=frozenset())
    """What the killed worker had leased when it was killed."""
    begun_twice: frozenset[str] = field(default=frozenset())
    """With what its handlers had begun, of these, and another worker's later."""

    @property
    def completed(self) -> frozenset[str]:
        """What was carried through, and is gone from the queue."""
        return frozenset(self.done) - self.dead.keys() - self.quarantined.keys()

    @property
    def lost(self) -> frozenset[str]:
        """What was produced and is nowhere."""
        return self.produced - self.done.keys() - self.dead.keys() - self.quarantined.keys()

    @property
    def done_twice(self) -> frozenset[str]:
        """What was carried through more than once."""
        return frozenset(id for id, times in self.done.items() if times > 1)

    def lines(self) -> list[str]:
        """Return the account as people read it."""
        ends = f"{len(self.dead)} dead + {len(self.quarantined)} quarantined"
        lines = [f"{len(self.produced)} produced = {len(self.completed)} completed + {ends}"]
        for end, why in (("dead", self.dead), ("quarantined", self.quarantined)):
            lines += [f"  {end:<12} {id}: {reason}" for id, reason in sorted(why.items())]
        lines += [
            f"  {'kill -9':<12} {len(self.held)} messages were in the killed worker's hands",
            f"  {'begun twice':<12} {len(self.begun_twice)} of these, once by each worker",
            f"  {'done twice':<12} {len(self.done_twice)}; it may happen: at least once",
        ]
        if not self.problems():
            lines.append("Nothing was lost: every id is accounted for, and the audit is clean.")
        return lines

    def problems(self) -> list[str]:
        """Return what is not as it should be, a line each; nothing: all is well."""
        ends = [self.done.keys(), self.dead.keys(), self.quarantined.keys()]
        everywhere = frozenset().union(*ends)
        twofold = {id for id in everywhere if sum(id in end for end in ends) > 1}
        found = [
            ("lost", self.lost),
            ("never produced, but there", everywhere - self.produced),
            ("in two final states at once", twofold),
            ("given up against all expectation", (everywhere - self.done.keys()) - self.doomed),
            ("carried through against all expectation", self.doomed & self.done.keys()),
        ]
        told = [f"{len(ids)} {what}: {_some(ids)}" for what, ids in found if ids]
        if self.unsettled:
            told.append(f"{self.unsettled} are not settled")
        return [*told, *(f"the audit says: {violation}" for violation in self.violations)]


def _some(ids: Iterable[str]) -> str:
    first, *rest = sorted(ids)
    shown = [first, *rest[: SHOWN - 1]]
    return ", ".join(shown) + (" ..." if len(rest) >= SHOWN else "")
