"""What is around all commands: how the program ends when nobody reads, or somebody interrupts."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import click

from mx_rmq.cli.connection import INTERRUPTED

UNREAD: Final = 141
"""The exit code of a command whose output nobody reads any more, as of one that SIGPIPE ends."""


class Program(click.Group):
    """The commands, with exit codes as shells have them."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `| head` has seen enough, which is no failure of ours
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())  # what is left to be flushed at the end
            sys.exit(UNREAD)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
