"""Server versions with known vulnerabilities by which users who may run scripts take them over.

Only the version number is visible from here, and distributions patch old versions without changing
it, so this warns and refuses nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mx_rmq.doctor.finding import Finding, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

FLAWS: Final = (
    "CVE-2025-49844, CVE-2025-46817, CVE-2025-46818, CVE-2025-46819",  # fixed in October 2025
    "CVE-2026-23479, CVE-2026-23631",  # fixed in May 2026
)

NEVER: Final = 1_000_000  # no release of that version was fixed

FIXED: Final = {  # for each of FLAWS, the first fixed release; 0: not affected
    "Redis 6.2": (20, 0),
    "Redis 7.0": (NEVER, 0),
    "Redis 7.2": (11, 14),
    "Redis 7.4": (6, 9),
    "Redis 8.0": (4, 0),
    "Redis 8.2": (2, 6),
    "Redis 8.4": (0, 3),
    "Redis 8.6": (0, 3),
    "Valkey 7.2": (11, 0),
    "Valkey 8.0": (6, 0),
    "Valkey 8.1": (4, 7),
    "Valkey 9.0": (0, 4),
}
"""The releases of October 2025 also fix CVE-2024-46981 and CVE-2024-31449. A version that is not
listed came later, or is unknown."""


def flaws(server: str) -> Iterator[Finding]:
    """Report vulnerabilities by a server's name and version, such as "Valkey 8.1.3"."""
    read = re.match(r"((?:Redis|Valkey) \d+\.\d+)\.(\d+)", server)
    if read is None:
        return
    version, release = read[1], int(read[2])
    fixed = FIXED.get(version, (0, 0))
    found = [names for names, first in zip(FLAWS, fixed, strict=True) if release < first]
    if found:
        cure = (
            f"Use a newer version: no release of {version} is fixed"
            if NEVER in fixed
            else f"Use {version}.{max(fixed)} or newer"
        )
        yield warn(
            f"{server} has vulnerabilities that let anyone who may run scripts take it over, "
            f"unless your distribution has backported the fix: {', '.join(found)}",
            f"{cure}, and restrict who can reach the port",
        )
