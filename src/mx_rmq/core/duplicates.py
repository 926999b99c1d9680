"""What a produce does if its custom id is taken, and how long it keeps the id taken."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, get_args

from mx_rmq.core.errors import InvalidInput

OnDuplicate = Literal["ignore", "replace", "error"]

CHOICES: Final = get_args(OnDuplicate)


class DuplicatePolicy(NamedTuple):
    """What a produce does if its id is taken. None in place of one: ignore the message."""

    on_duplicate: OnDuplicate = "ignore"
    dedup: int | None = None  # ms; None: the setting of the queue

    @property
    def replaces(self) -> bool:
        return self.on_duplicate == "replace"

    @property
    def refuses(self) -> bool:
        return self.on_duplicate == "error"


def duplicate_policy_of(
    id: str | None, on_duplicate: Any, dedup: int | None
) -> DuplicatePolicy | None:
    """Check the options of one message; None: they are the default."""
    if on_duplicate == "ignore" and dedup is None:
        return None
    if on_duplicate not in CHOICES:
        raise InvalidInput(f"on_duplicate={on_duplicate!r:.80} is not one of {', '.join(CHOICES)}")
    if not id and on_duplicate == "replace":
        raise InvalidInput('on_duplicate="replace" needs an id: it names the message to replace')
    if not id and dedup is not None:
        raise InvalidInput("dedup needs an id: generated ids are never used twice")
    return DuplicatePolicy(on_duplicate, dedup)
