from __future__ import annotations

from bench.capacity.command import capacity

capacity(prog_name="python -m bench.capacity")
