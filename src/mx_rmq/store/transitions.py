"""Every transition of a message: one typed method a script, under the script's name."""

from __future__ import annotations

from mx_rmq.store.handling import Handling
from mx_rmq.store.producing import Producing


class Transitions(Producing, Handling):
    """The scripts, as methods: those of producers and operators, and those of workers."""
