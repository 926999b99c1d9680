"""What is kept of a message that could not be decoded: a line about the error, then its bytes."""

from __future__ import annotations

import msgspec

from mx_rmq.core.errors import DecodeError
from mx_rmq.core.text import storable, text_of


class QuarantineReason(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    topic: str
    error_type: str
    error: str
    length: int  # the original number of bytes; fewer may have been kept
    worker: str = ""

    @classmethod
    def of(
        cls, *, id: str, topic: str, error: BaseException, data: bytes, worker: str = ""
    ) -> QuarantineReason:
        return cls(
            id=storable(id),
            topic=topic,
            error_type=storable(type(error).__name__),
            error=text_of(error),
            length=len(data),
            worker=worker,
        )

    def line(self) -> bytes:
        """Return the line that comes before the bytes. JSON contains no raw newline."""
        return msgspec.json.encode(self)


def read(data: bytes) -> tuple[QuarantineReason, bytes]:
    """Split a quarantined record into its line and the exact bytes."""
    line, newline, kept = data.partition(b"\n")
    try:
        about = msgspec.json.decode(line, type=QuarantineReason)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"not a quarantined message: {error}", data) from error
    if not newline:
        raise DecodeError("not a quarantined message: no newline after its first line", data)
    return about, kept
