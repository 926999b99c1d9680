"""How commands log: options and formats."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.output import lines, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.core.errors import MxRmqError

LEVELS: Final = ("debug", "info", "warning", "error")

FORMATS: Final = ("text", "json")

TEXT: Final = "%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s"

INDENT: Final = "\n    "


def log_level(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --log-level to a command."""
    return click.option(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        default=default,
        envvar="MX_RMQ_LOG_LEVEL",
        show_default=True,
        show_envvar=True,
        help="Lowest level to log.",
    )


@dataclass(frozen=True, slots=True)
class Logs:
    """The logging options, except the level."""

    format: str
    payloads: bool
    mask: tuple[str, ...]

    def words(self) -> list[str]:
        """Return these options as command-line arguments."""
        words = ["--log-format", self.format]
        if self.payloads:
            words.append("--log-payloads")
        if self.mask:
            words += ["--mask", ",".join(self.mask)]
        return words

    def formatter(self) -> logging.Formatter:
        """Return the formatter of log lines."""
        if self.format == "json":
            from mx_rmq.logs import JsonFormatter

            return JsonFormatter(self.mask)
        return _Formatter(TEXT)

    def tell(self, error: MxRmqError) -> None:
        """Print a fatal error in the format of the logs, whatever logging is configured."""
        if self.format == "json":
            from mx_rmq.logs import JsonFormatter

            about = {"name": "mx_rmq", "levelno": logging.ERROR, "levelname": "ERROR"}
            line = JsonFormatter().format(logging.makeLogRecord({**about, "msg": str(error)}))
        else:
            line = printable(f"Error: {error}")
        click.echo(line, err=True)


class _Formatter(logging.Formatter):
    """Log lines with control characters escaped.

    Every line of a record after the first is indented, so that no text can pose as a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        return INDENT.join(lines(super().format(record)))


def configure_logging(level: str, formatter: logging.Formatter | None = None) -> None:
    """Log to stderr from this level on, unless the application has configured logging."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter or _Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("mx_rmq").setLevel(level.upper())
