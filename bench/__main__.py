"""Run the benchmarks that belong to the store and print their tables."""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
from pathlib import Path

from bench.in_flight import measure_in_flight
from bench.memory import measure_memory
from tests.lab.servers import Kind, Server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--kind", choices=list(Kind), help="only this server", default=None)
    parser.add_argument("--rounds", type=int, default=60, help="batches a measurement")
    parser.add_argument("--messages", type=int, default=100_000, help="for the memory figures")
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


if __name__ == "__main__":
    main()
