"""What the shop and its services share: the topic, its payload, and the server's URL."""

import os
from dataclasses import dataclass
from pathlib import Path

URL = os.environ.get("MX_RMQ_URL", "embedded://./mx-rmq-data")
TOPIC = "order.created"

RECORDS = Path(os.environ.get("SHOP_RECORDS", "."))
"""Where each service records the orders that it has handled."""


@dataclass
class Order:
    number: int
    total: float


def record(service: str, number: int) -> None:
    with (RECORDS / f"{service}.log").open("a") as file:
        file.write(f"{number}\n")


def recorded(service: str) -> list[int]:
    """Return the numbers of the orders that a service has handled; some may appear twice."""
    path = RECORDS / f"{service}.log"
    return [int(line) for line in path.read_text().split()] if path.exists() else []
