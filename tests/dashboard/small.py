"""Pictures with 256 colours, which a page hardly exceeds: less than half of the size."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.async_api import Page

PALETTE: Final = (Path(__file__).parent / "palette.js").read_text()


async def smaller(page: Page, png: bytes) -> bytes:
    """Return a picture with a palette. The browser of a blank page does the counting."""
    url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    found = await page.evaluate(PALETTE, url)
    width, height, pixels = found["width"], found["height"], base64.b64decode(found["pixels"])
    rows = b"".join(
        b"\0" + pixels[start : start + width] for start in range(0, width * height, width)
    )
    colours = b"".join(struct.pack("<I", colour & 0xFFFFFF)[:3] for colour in found["colours"])
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", colours),
            _chunk(b"IDAT", zlib.compress(rows, 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
