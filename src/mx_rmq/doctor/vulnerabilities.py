"""Server versions with known vulnerabilities that let users of scripts take them over.

Only the version number is visible from here, and distributions patch old versions without changing
it, so this warns and refuses nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.doctor.finding import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NEVER: Final = 1_000_000
"""For a release line that was never fixed."""


class _Flaw(NamedTuple):
    """Vulnerabilities that were fixed on one day.

    For each server and release line, the patch number of the first fixed release. A line that is
    not listed came later, or is unknown.
    """

    names: str
    fixed: Mapping[tuple[str, int, int], int]


FLAWS: Final = (
    _Flaw(  # October 2025. These releases also fix CVE-2024-46981 and CVE-2024-31449.
        "CVE-2025-49844, CVE-2025-46817, CVE-2025-46818, CVE-2025-46819",
        {
            ("Redis", 6, 2): 20,
            ("Redis", 7, 0): NEVER,
            ("Redis", 7, 2): 11,
            ("Redis", 7, 4): 6,
            ("Redis", 8, 0): 4,
            ("Redis", 8, 2): 2,
            ("Valkey", 7, 2): 11,
            ("Valkey", 8, 0): 6,
            ("Valkey", 8, 1): 4,
        },
    ),
    _Flaw(  # May 2026
        "CVE-2026-23479, CVE-2026-23631",
        {
            ("Redis", 7, 2): 14,
            ("Redis", 7, 4): 9,
            ("Redis", 8, 2): 6,
            ("Redis", 8, 4): 3,
            ("Redis", 8, 6): 3,
            ("Valkey", 8, 1): 7,
            ("Valkey", 9, 0): 4,
        },
    ),
)


def flaws(server: str) -> Iterator[Finding]:
    """Report vulnerabilities by a server's name and version, such as "Valkey 8.1.3"."""
    read = re.match(r"(Redis|Valkey) (\d+)\.(\d+)\.(\d+)", server)
    if read is None:
        return
    name, major, minor, release = read[1], *map(int, read.groups()[1:])
    line = (name, major, minor)
    found = [flaw for flaw in FLAWS if release < flaw.fixed.get(line, 0)]
    if not found:
        return
    needed = max(flaw.fixed[line] for flaw in found)
    cure = (
        f"Use a newer line: no release of {name} {major}.{minor} is fixed"
        if needed == NEVER
        else f"Use {name} {major}.{minor}.{needed} or newer"
    )
    yield Finding(
        Severity.WARN,
        f"{server} has vulnerabilities by which anyone who may run scripts can take it over, "
        "unless your distribution has backported the fix: "
        + ", ".join(flaw.names for flaw in found),
        f"{cure}, and let no one else reach the port",
    )
