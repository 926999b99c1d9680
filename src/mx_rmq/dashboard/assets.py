"""Style sheets, scripts and the icon: read once, served from memory, cached by browsers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from starlette.responses import Response

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOREVER: Final = "public, max-age=31536000, immutable"

_FILES: Final = {
    path.name: path.read_bytes()
    for path in sorted((Path(__file__).parent / "static").iterdir())
    if path.suffix in TYPES
}
VERSION: Final = hashlib.sha256(b"\0".join(_FILES.values())).hexdigest()[:12]
"""Part of their URLs, so that a browser may cache them forever."""


def get(version: str, name: str) -> Response | None:
    """Return a file of `static/`; None: there is none of that name."""
    if name not in _FILES:
        return None
    headers = {"Cache-Control": FOREVER if version == VERSION else "no-cache"}
    return Response(_FILES[name], media_type=TYPES[Path(name).suffix], headers=headers)
