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
FOR_EVER: Final = "public, max-age=31536000, immutable"


class Assets:
    """The files in `static/`. Nothing else is served."""

    def __init__(self) -> None:
        folder = Path(__file__).parent / "static"
        self._files = {
            path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in TYPES
        }
        together = b"\0".join(data for _, data in sorted(self._files.items()))
        self.version = hashlib.sha256(together).hexdigest()[:12]
        """Part of their URL, so that a browser may cache them forever."""

    def get(self, version: str, name: str) -> Response | None:
        """Return a file; None: there is none of that name."""
        data = self._files.get(name)
        if data is None:
            return None
        keep = FOR_EVER if version == self.version else "no-cache"
        headers = {"Cache-Control": keep}
        return Response(data, media_type=TYPES[Path(name).suffix], headers=headers)
