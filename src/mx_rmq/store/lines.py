"""Lines by key, as they are stored: see `lines`, `keyed` and `limits` in keys.py."""

from __future__ import annotations


def key_in_line(member: bytes) -> bytes:
    """Return the key in whose line a message is."""
    return member.partition(b"\t")[0]


def id_in_line(member: bytes) -> bytes:
    """Return the id of a message in line; a member that is none is returned as it is."""
    _, tab, place = member.partition(b"\t")
    parts = place.split(b" ", 2)
    return parts[2] if tab and len(parts) == 3 else member
