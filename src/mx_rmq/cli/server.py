"""`mx-rmq server`: run the embedded server in the foreground, for other processes to use."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from mx_rmq.cli.connection import EMBEDDED
from mx_rmq.cli.host import host, settings_of
from mx_rmq.cli.program import CommandFailed
from mx_rmq.core.errors import EmbeddedServerError


@click.command
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Also listen on 127.0.0.1:PORT, with a password in DIRECTORY/password.",
)
def server(directory: Path | None, port: int | None) -> None:
    """Run a server that keeps its data in DIRECTORY, until Ctrl-C or SIGTERM.

    DIRECTORY defaults to ./mx-rmq-data; with manage.py, to that of MX_RMQ if its URL is embedded://.
    Other processes connect with the URL embedded://DIRECTORY. With --port the server also listens
    on TCP and requires a password, which is generated and kept in DIRECTORY/password, readable only
    by you; the printed URL names that file. Exit code 2: the server could not start, or exited
    unexpectedly.
    """
    from mx_rmq.embedded import EmbeddedServer

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # both raise KeyboardInterrupt
    try:
        with EmbeddedServer.start(directory or default_directory(), port=port) as running:
            already, hint = ("", "; Ctrl-C stops it") if running.owner else (" already", "")
            click.echo(
                f"the server is{already} running in {running.directory} (pid {running.pid}){hint}"
            )
            click.echo(f"  embedded://{running.directory}")
            click.echo(f"  {running.url}")
            if running.port is not None:
                click.echo(f"  redis://127.0.0.1:{running.port}{running.login}")
            if running.owner:
                code = running.wait()
                raise EmbeddedServerError(
                    f"the server exited unexpectedly with code {code}; {running.log_end()}"
                )
    except KeyboardInterrupt:
        click.echo("stopped")
    except EmbeddedServerError as error:
        raise CommandFailed(str(error)) from error


def default_directory() -> Path:
    """Return the directory of a framework's embedded:// URL, or ./mx-rmq-data."""
    url = "" if host() is None else settings_of().url
    return Path(url.removeprefix(EMBEDDED) if url.startswith(EMBEDDED) else "mx-rmq-data")
