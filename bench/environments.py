"""An environment for each queue, made on demand under `.bench/` from the pins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.systems import System

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".bench"


class Environments:
    """Where the queues are installed. `pythons`: existing interpreters, by name."""

    def __init__(
        self, pythons: Mapping[str, str] | None = None, *, base: str = sys.executable
    ) -> None:
        self._base = base  # makes the environments
        self._pythons = dict(pythons or {})
        self._pins = tomllib.loads((ROOT / "bench" / "pins.toml").read_text())

    @property
    def node_packages(self) -> Path:
        return CACHE / "npm"

    def prepare(self, system: System) -> None:
        """Install what it needs, unless it is installed."""
        name = system.environment
        if system.node:
            self._prepare_node(self._pins["npm"][name])
        elif name not in self._pythons:
            self._pythons[name] = str(self._prepare_python(name, self._pins["pip"][name]))

    def command(self, system: System, *arguments: object) -> list[str]:
        """Return the command that plays a role."""
        words = [str(argument) for argument in arguments]
        if system.node:
            script = ROOT / "bench" / "adapters" / f"{system.adapter}.mjs"
            return [shutil.which("node") or "node", str(script), *words]
        return [self._pythons[system.environment], "-m", "bench.child", system.adapter, *words]

    def _prepare_python(self, name: str, pins: Sequence[str]) -> Path:
        place = CACHE / "venvs" / name
        python = place / "bin" / "python"
        stamp = place / "pins.json"
        if _stamped(stamp, pins) and python.exists():
            return python
        _say(f"installing {', '.join(pins)}")
        _run(self._base, "-m", "venv", str(place))
        words = [word for pin in pins for word in pin.split()]
        _run(str(python), "-m", "pip", "install", "--quiet", *words)
        stamp.write_text(json.dumps(pins))
        return python

    def _prepare_node(self, pins: Sequence[str]) -> None:
        place = self.node_packages
        stamp = place / "pins.json"
        if _stamped(stamp, pins):
            return
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError("BullMQ on Node needs node and npm (Debian: apt-get install npm)")
        _say(f"installing {', '.join(pins)}")
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text('{"private": true}\n')
        _run(npm, "install", "--silent", "--no-audit", "--no-fund", *pins, at=place)
        stamp.write_text(json.dumps(pins))


def _stamped(stamp: Path, pins: Sequence[str]) -> bool:
    return stamp.exists() and json.loads(stamp.read_text()) == list(pins)


def _run(*command: str, at: Path = ROOT) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command, cwd=at, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def _say(text: str) -> None:
    print(f"bench: {text}", flush=True)
