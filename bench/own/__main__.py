from __future__ import annotations

from bench.own.command import bench

bench(prog_name="python -m bench.own")
