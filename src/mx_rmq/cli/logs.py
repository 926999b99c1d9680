"""How a command logs: its options, and how a line is made."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.output import lines, printable
from mx_rmq.logs import JsonFormatter

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.core.errors import MxRmqError

LEVELS: Final = ("debug", "info", "warning", "error")

FORMATS: Final = ("text", "json")

TEXT: Final = "%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s"

INDENT: Final = "\n    "


def log_level(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the option --log-level."""
    return click.option(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        default=default,
        envvar="MX_RMQ_LOG_LEVEL",
        show_default=True,
        show_envvar=True,
    )


@dataclass(frozen=True, slots=True)
class Logs:
    """What the command line asks for of the logs, beside their level."""

    format: str
    payloads: bool
    mask: tuple[str, ...]

    def words(self) -> list[str]:
        """Return the options that ask for the same."""
        words = ["--log-format", self.format]
        if self.payloads:
            words.append("--log-payloads")
        if self.mask:
            words += ["--mask", ",".join(self.mask)]
        return words

    def formatter(self) -> logging.Formatter:
        """Return how a line is made."""
        if self.format == "json":
            return JsonFormatter(self.mask)
        return _Formatter(TEXT)

    def tell(self, error: MxRmqError) -> None:
        """Say why it ends, in the form of the logs, whoever has seen to those."""
        if self.format == "json":
            about = {"name": "mx_rmq", "levelno": logging.ERROR, "levelname": "ERROR"}
            line = JsonFormatter().format(logging.makeLogRecord({**about, "msg": str(error)}))
        else:
            line = printable(f"Error: {error}")
        click.echo(line, err=True)


class _Formatter(logging.Formatter):
    """Log lines of which foreign text can do the terminal no harm.

    All lines of a record but the first are indented, so that no text passes for another record.
    """

    def format(self, record: logging.LogRecord) -> str:
        return INDENT.join(lines(super().format(record)))


def configure_logging(level: str, formatter: logging.Formatter | None = None) -> None:
    """Log to stderr from this level on, unless the application has seen to its logs itself."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter or _Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("mx_rmq").setLevel(level.upper())
