"""How commands log: the level, the formats, and a fatal error."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import click

from mx_rmq.cli.output import lines, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mx_rmq.core.errors import MxRmqError

LEVELS: Final = ("debug", "info", "warning", "error")
TEXT: Final = "%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s"


def _option(name: str, choices: Sequence[str], default: str, help: str) -> Callable[..., Any]:
    return click.option(
        f"--{name}",
        type=click.Choice(choices, case_sensitive=False),
        default=default,
        envvar=f"MX_RMQ_{name.replace('-', '_').upper()}",
        show_default=True,
        show_envvar=True,
        help=help,
    )


def log_level(default: str) -> Callable[..., Any]:
    """Add --log-level to a command."""
    return _option("log-level", LEVELS, default, "Lowest level to log.")


log_format = _option("log-format", ("text", "json"), "text", "Format of log lines.")


class TextFormatter(logging.Formatter):
    """Log lines with control characters escaped.

    Every line of a record after the first is indented, so that no text can pose as a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(lines(super().format(record)))


def configure_logging(level: str, format: str = "text", mask: Sequence[str] = ()) -> None:
    """Log to stderr from this level on, unless the application has configured logging."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(format, mask))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("mx_rmq").setLevel(level.upper())


def formatter(format: str, mask: Sequence[str] = ()) -> logging.Formatter:
    """Return the formatter of log lines."""
    if format == "text":
        return TextFormatter(TEXT)
    from mx_rmq.logs import JsonFormatter

    return JsonFormatter(tuple(mask))


def print_error(error: MxRmqError, format: str) -> None:
    """Print a fatal error in the format of the logs, whatever logging is configured."""
    if format == "json":
        about = {"name": "mx_rmq", "levelno": logging.ERROR, "levelname": "ERROR"}
        line = formatter("json").format(logging.makeLogRecord({**about, "msg": str(error)}))
    else:
        line = printable(f"Error: {error}")
    click.echo(line, err=True)
