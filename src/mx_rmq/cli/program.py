"""What surrounds the commands: finding them, exit codes, and errors that end the program."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from click.shell_completion import CompletionItem

INTERRUPTED: Final = 130  # exit code of an interrupted command: 128 + SIGINT
OUTPUT_CLOSED: Final = 141  # exit code of a command whose output was closed: 128 + SIGPIPE

UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # the disk is full, …

MOVED: Final = {"bench": "python -m bench.own", "capacity": "python -m bench.capacity"}
"""Commands that left the package -> what to run in a clone instead."""


class CommandFailed(click.ClickException):
    """The command failed. Exit code 1 would mean not found, or a problem found."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class PromptInterrupted(CommandFailed):
    """Ctrl-C while the command waited for an answer."""

    exit_code = INTERRUPTED

    def __init__(self) -> None:
        super().__init__("interrupted, nothing was changed")


class Program(click.Group):
    """The commands of a table, each imported when it is called."""

    def __init__(self, *, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(**options)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            if ctx.resilient_parsing:  # shell completion must not fail
                return None
            if cmd_name in MOVED:
                ctx.fail(
                    f"mx-rmq {cmd_name} is no longer part of the package. "
                    f"Run `{MOVED[cmd_name]}` in a clone of mx-rmq."
                )
            raise click.NoSuchCommand(cmd_name, possibilities=self._table, ctx=ctx)
        name, _ = self._table[cmd_name]
        command: click.Command = getattr(import_module(f"mx_rmq.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._table[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer commands without importing them, and options."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        offered = [CompletionItem(name, help=self._table[name][1]) for name in names]
        return [*offered, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise _without_hidden(error) from None
        except BrokenPipeError:  # for example `| head`: not an error
            _drop_output()
            sys.exit(OUTPUT_CLOSED)
        except OSError as error:
            if error.errno not in UNWRITABLE or error.filename is not None:
                raise
            _drop_output()
            raise CommandFailed(f"cannot write the output: {error.strerror}") from error
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


def _without_hidden(error: click.NoSuchOption) -> click.NoSuchOption:
    """Return the same error with suggestions that leave out hidden options."""
    options = error.ctx.command.params if error.ctx else []
    names = [name for one in options if not getattr(one, "hidden", False) for name in one.opts]
    return click.NoSuchOption(error.option_name, possibilities=names, ctx=error.ctx)


def _drop_output() -> None:
    """Discard buffered output, so that flushing it at exit cannot fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
