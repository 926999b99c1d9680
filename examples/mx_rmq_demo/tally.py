"""The tally: what happened to every message, by id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHOWN: Final = 3  # ids named per problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Which messages were produced, and where each ended."""

    produced: frozenset[str]
    doomed: frozenset[str]  # the ones that no handler can complete
    done: Mapping[str, int]  # id -> how often a handler completed it, says the shop's own journal
    dead: Mapping[str, str]  # id -> why
    quarantined: Mapping[str, str]  # id -> why
    unsettled: int = 0  # still pending, delayed or in processing
    violations: tuple[str, ...] = ()  # what the audit found
    held: frozenset[str] = frozenset()  # leased by the killed worker when it was killed
    started_twice: frozenset[str] = frozenset()  # the ones of these that both workers started

    @property
    def completed(self) -> frozenset[str]:
        """Completed by a handler, and no longer in the queue."""
        return frozenset(self.done) - self.dead.keys() - self.quarantined.keys()

    @property
    def lost(self) -> frozenset[str]:
        """Produced, and nowhere to be found."""
        return self.produced - self.done.keys() - self.dead.keys() - self.quarantined.keys()

    @property
    def done_twice(self) -> frozenset[str]:
        """Completed more than once."""
        return frozenset(id for id, times in self.done.items() if times > 1)

    def lines(self) -> list[str]:
        """Return the tally as lines to print."""
        ends = f"{len(self.dead)} dead + {len(self.quarantined)} quarantined"
        lines = [f"{len(self.produced)} produced = {len(self.completed)} completed + {ends}"]
        for end, why in (("dead", self.dead), ("quarantined", self.quarantined)):
            lines += [f"  {end:<14} {id}: {reason}" for id, reason in sorted(why.items())]
        lines += [
            f"  {'kill -9':<14} {len(self.held)} messages were leased to the killed worker",
            f"  {'started twice':<14} {len(self.started_twice)} of them, once by each worker",
            f"  {'done twice':<14} {len(self.done_twice)}; delivery is at least once",
        ]
        if not self.problems():
            lines.append("Nothing was lost: every id is accounted for, and the audit is clean.")
        return lines

    def problems(self) -> list[str]:
        """Return what is wrong, one line each; empty if all is well."""
        ends = [self.done.keys(), self.dead.keys(), self.quarantined.keys()]
        everywhere = frozenset().union(*ends)
        twice = {id for id in everywhere if sum(id in end for end in ends) > 1}
        found = [
            ("lost", self.lost),
            ("found, but never produced", everywhere - self.produced),
            ("in two final states at once", twice),
            ("unexpectedly dead or quarantined", (everywhere - self.done.keys()) - self.doomed),
            ("unexpectedly completed", self.doomed & self.done.keys()),
        ]
        lines = [f"{len(ids)} {what}: {_some(ids)}" for what, ids in found if ids]
        if self.unsettled:
            lines.append(f"{self.unsettled} not settled")
        return [*lines, *(f"audit: {violation}" for violation in self.violations)]


def _some(ids: Iterable[str]) -> str:
    first, *rest = sorted(ids)
    shown = [first, *rest[: SHOWN - 1]]
    return ", ".join(shown) + (" ..." if len(rest) >= SHOWN else "")
