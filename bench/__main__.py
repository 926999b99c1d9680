"""Run the benchmarks and print their tables."""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
from pathlib import Path

from bench.in_flight import measure_in_flight
from bench.memory import measure_memory
from bench.worker import measure_worker
from tests.lab.servers import Kind, Server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--kind", choices=list(Kind), help="only this server", default=None)
    parser.add_argument("--rounds", type=int, default=60, help="batches a measurement")
    parser.add_argument("--messages", type=int, default=100_000, help="for the memory figures")
    parser.add_argument("--idle", type=float, default=30, help="seconds to watch an idle worker")
    chosen = parser.parse_args()
    logging.disable()  # these servers keep nothing on disk, and are meant to
    for kind in [Kind(chosen.kind)] if chosen.kind else Kind:
        with (
            tempfile.TemporaryDirectory(prefix="mx-rmq-bench-") as directory,
            Server(kind, Path(directory)) as server,
        ):
            print(f"\n== {kind}")
            asyncio.run(measure_in_flight(server.url, rounds=chosen.rounds))
            asyncio.run(measure_memory(server.url, messages=chosen.messages))
            asyncio.run(measure_worker(server.url, messages=chosen.messages, idle=chosen.idle))


if __name__ == "__main__":
    main()
