"""What is around all commands: how the program ends when its output finds no place or reader, or
somebody interrupts."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, Final

import click

from mx_rmq.cli.connection import INTERRUPTED, CannotDo

UNREAD: Final = 141
"""The exit code of a command whose output nobody reads any more, as of one that SIGPIPE ends."""

UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a file says that takes no more."""


class Program(click.Group):
    """The commands, with exit codes as shells have them."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `| head` has seen enough, which is no failure of ours
            _drop_output()
            sys.exit(UNREAD)
        except OSError as error:
            if error.errno not in UNWRITABLE or error.filename is not None:
                raise
            _drop_output()
            raise CannotDo(f"the output cannot be written: {error.strerror}") from error
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


def _drop_output() -> None:
    """Let go what is left to be flushed at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
