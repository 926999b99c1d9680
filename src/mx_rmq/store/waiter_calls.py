"""What waiters call, and what scripts publish for them: reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mx_rmq.core import codec
from mx_rmq.core.errors import DecodeError
from mx_rmq.core.message import ARCHIVES, State
from mx_rmq.core.status import Kept, ProgressNote, Status
from mx_rmq.store import quarantine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mx_rmq.store.store import Store

MAX_IDS: Final = 1000  # ids in one call
_ENDED: Final = {state.encode(): state for state in ARCHIVES}  # by the word that is published
ENDS: Final = ("completed", "died", "quarantined", "cancelled", "discarded", "repaired")


class RawStatus(NamedTuple):
    """Where a message is, and what the server keeps of it, not decoded yet."""

    state: State
    lease: bytes = b""  # `token:worker`; empty unless it is in processing
    progress: bytes = b""
    data: bytes = b""  # its record, or what the archive keeps of it; empty if it was not read

    def status(self) -> Status:
        """Return it as `mq.status` does."""
        state, lease, progress, data = self
        if state is State.COMPLETED:
            return Status(state, attempt=Kept.read(data)[0].attempt)
        if state is State.QUARANTINED:
            about, _ = quarantine.read(data)
            return Status(state, reason=f"{about.error_type}: {about.error}")
        try:
            message = codec.decode(data)
        except DecodeError:  # a worker will quarantine it, or a newer one can read it
            return Status(state)
        reason = message.reason or (message.errors[-1].summary if message.errors else "")
        if state is State.PROCESSING:
            report = ProgressNote.read(progress, lease)
            return Status(state, message.attempts + 1, report.share, report.note, reason)
        return Status(state, message.attempts, reason=reason)

    def error(self) -> str:
        """Return the last failure of a dead message, or what is wrong with a quarantined one."""
        if self.state is State.QUARANTINED:
            return self.status().reason
        try:
            errors = codec.decode(self.data).errors
        except DecodeError:
            return ""
        return errors[-1].summary if errors else ""


async def read_status(
    store: Store, topic: str, ids: Sequence[str], *, live: bool = False, with_progress: bool = False
) -> list[RawStatus | None]:
    """Return where messages are; None: nothing is known of an id, or its result has expired.

    `live`: read the records of live messages. `with_progress`: read their progress.
    """
    found: list[RawStatus | None] = []
    keys = store.keys.of(topic)
    while len(found) < len(ids):
        some = ids[len(found) : len(found) + MAX_IDS]
        progress_keys = [keys.progress(id) for id in some] if with_progress else ()
        named: dict[str, str | bytes | int] = {
            "live": int(live),
            "with_progress": int(with_progress),
        }
        now, *fields = await store.run("read_status", topic, named, some, makers=progress_keys)
        parts = iter(fields)
        for state, at, lease, progress, data in zip(parts, parts, parts, parts, parts, strict=True):
            one = None
            is_over = state == b"completed" and Kept.is_over(data, float(at), int(now))
            if state and not is_over:
                one = RawStatus(State(state.decode()), lease, progress, data)
            found.append(one)
    return found


async def ended_so_far(store: Store, topic: str) -> list[bytes | None]:
    """Return counts: whenever a message of the topic ends, one of them changes."""
    counts: list[bytes | None] = await store.caller.command(
        "HMGET", store.keys.of(topic).totals, *ENDS
    )
    return counts


def read_news(data: bytes) -> Iterator[tuple[State | None, str, bytes | None]]:
    """Yield what was published on a topic's channel; ValueError: it is not from a script.

    For each message: the state in which it has ended, or None for progress; its id; and its result
    with the line before it, if that is included.
    """
    start = 0
    while start < len(data):
        head_end = data.index(b"\n", start)
        kind, id_length, length = data[start:head_end].split(b" ")
        id_start = head_end + 1
        id_end = start = id_start + int(id_length)
        if length != b"-1":
            start += int(length)
        if not id_start <= id_end <= start <= len(data):
            raise ValueError("a length is wrong")
        id = data[id_start:id_end].decode("utf-8", "surrogateescape")
        yield _ENDED.get(kind), id, None if length == b"-1" else data[id_end:start]
