"""Notify systemd about a worker: `Type=notify` and `WatchdogSec` in its unit; see sd_notify(3).

With several processes only the supervisor does it: systemd accepts only the unit's main process.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Systemd:
    """The notification socket of systemd, if it started this process and gave it one."""

    address: str = ""  # of its datagram socket; empty if there is none
    watchdog: float | None = None  # seconds without a ping until systemd restarts the unit

    @classmethod
    def take_over(cls) -> Self:
        """Read systemd's variables and remove them, so that child processes do not notify it."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        microseconds = os.environ.pop("WATCHDOG_USEC", "")
        for_us = os.environ.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
        wanted = address and for_us and microseconds.isascii() and microseconds.isdigit()
        return cls(address, int(microseconds) / 1e6 if wanted else None)

    def ready(self) -> None:
        self._notify("READY=1")

    def alive(self) -> None:
        """Say that the event loop runs and no part of the worker is down."""
        if self.watchdog is not None:
            self._notify("WATCHDOG=1")

    def stopping(self) -> None:
        self._notify("STOPPING=1")

    def _notify(self, word: str) -> None:
        if not self.address:
            return
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with (
            suppress(OSError),  # systemd is gone, or its socket is full
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.setblocking(False)
            sender.sendto(word.encode(), address)
