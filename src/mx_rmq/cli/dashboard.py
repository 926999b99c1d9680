"""`mx-rmq dashboard`: serve the dashboard with uvicorn."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from mx_rmq.cli.connection import check_directory, with_server
from mx_rmq.cli.logs import configure_logging, log_level
from mx_rmq.cli.output import say
from mx_rmq.cli.program import CommandFailed
from mx_rmq.core.errors import InvalidInput, MxRmqError
from mx_rmq.core.text import how_to_install

if TYPE_CHECKING:
    import socket
    from types import FrameType

    import uvicorn

    from mx_rmq.dashboard import Dashboard
    from mx_rmq.dashboard.stream import Metrics
    from mx_rmq.queue import MessageQueue

logger = logging.getLogger(__name__)

LEAVE_WITHIN: Final = 3  # seconds for open pages to disconnect when the dashboard stops

_file = click.Path(path_type=Path)


@click.command
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8233,
    show_default=True,
    help="Port to listen on.",
)
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option("--user", default="operator", show_default=True, help="User name for signing in.")
@click.option(
    "--password-file",
    type=_file,
    help="File with the password for signing in. Required unless only this machine can connect.",
)
@click.option(
    "--no-password", is_flag=True, help="Require no password: a proxy in front authenticates users."
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    help="Public address of the dashboard behind a proxy. Can be repeated.",
)
@click.option("--root-path", help="Path under which a proxy serves the dashboard, such as /queues.")
@click.option("--tls-cert", type=_file, help="TLS certificate, PEM. Needs --tls-key.")
@click.option("--tls-key", type=_file, help="Private key of the certificate, PEM.")
@click.option("--audit-log", type=_file, help="Also write each action to this file.")
@log_level("warning")
@with_server
def dashboard(
    url: str | None,
    prefix: str | None,
    patience: float | None,
    host: str,
    port: int,
    read_only: bool,
    user: str,
    password_file: Path | None,
    no_password: bool,
    origins: tuple[str, ...],
    root_path: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    audit_log: Path | None,
    log_level: str,
) -> None:
    """Serve a dashboard until Ctrl-C or SIGTERM: topics, messages, dead letters, workers.

    Without a password it serves only this machine. Every action is logged by the logger
    mx_rmq.dashboard.audit. Exit code 2: it could not start.
    """
    from mx_rmq.cli.host import queue_of

    try:
        mq = queue_of(url=url, prefix=prefix, patience=patience)
        check_directory(mq.settings)
        if password_file is None:
            _refuse_other_machines(host, origins, root_path, no_password=no_password)
        elif no_password:
            raise InvalidInput("pass either --password-file or --no-password, not both")
        if (tls_cert is None) != (tls_key is None):
            raise InvalidInput("pass both --tls-cert and --tls-key")
        try:
            from mx_rmq.dashboard import Dashboard, Password
            from mx_rmq.dashboard.security import LOOPBACK
        except ImportError as error:
            raise CommandFailed(str(error)) from error
        names = (*LOOPBACK, _in_url(host), *map(host_of, origins))
        app = Dashboard(
            mq,
            authorize=None if password_file is None else Password(user, _password(password_file)),
            allow_all=password_file is None,
            read_only=read_only,
            hosts=names if _is_loopback(host) else None,
            origins=origins,
            metrics=_metrics(mq),
            root_path=root_path or "",
            hsts=True,
        )
        configure_logging(log_level)
        _throttle_logs()
        _keep_audit_log(audit_log)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)  # both raise KeyboardInterrupt
        asyncio.run(
            _serve(mq, app, host=host, port=port, ssl_certfile=tls_cert, ssl_keyfile=tls_key)
        )
    except KeyboardInterrupt:  # uvicorn has stopped cleanly and raises the signal again
        sys.exit(0)
    except MxRmqError as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or host}: {error.strerror or error}") from error


def _refuse_other_machines(
    host: str, origins: tuple[str, ...], root_path: str | None, *, no_password: bool
) -> None:
    """Require a password if other machines can connect, unless a proxy asks for one."""
    required = "other machines can connect, so a password is required: --password-file FILE"
    if not _is_loopback(host):
        raise InvalidInput(f"--host {host}: {required}")
    proxies = [f"--origin {one}" for one in origins if not _is_loopback(host_of(one).strip("[]"))]
    if root_path:
        proxies.append(f"--root-path {root_path}")
    if proxies and not no_password:
        raise InvalidInput(
            f"{proxies[0]}: {required}; or --no-password, if the proxy authenticates users"
        )


def host_of(origin: str) -> str:
    """Return the host of an origin, as a browser writes it."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise InvalidInput(f"--origin {origin} must have the form https://queues.example.org")
    return _in_url(parts.hostname)


def _password(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip("\r\n")
    except UnicodeDecodeError:
        raise InvalidInput(f"--password-file {path} is not UTF-8") from None


def _metrics(mq: MessageQueue) -> Metrics | None:
    """Return the metrics for Prometheus; None if the extra is not installed."""
    try:
        from mx_rmq.metrics import Depth, Renderer
    except ImportError:
        return None
    depth = Depth(lambda: mq.admin)
    render = Renderer(depth.registry)

    async def metrics(accept: str) -> tuple[str, bytes]:
        await depth.refresh()
        return await render(accept)

    return metrics


async def _serve(mq: MessageQueue, app: Dashboard, **options: Any) -> None:
    try:
        import uvicorn
    except ImportError as missing:  # not needed to mount the dashboard in an application
        raise CommandFailed(
            f"the command needs uvicorn: {how_to_install('dashboard')}"
        ) from missing

    from mx_rmq.dashboard.server import BACKLOG, HttpConnection, Tls

    loop = asyncio.get_running_loop()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            if self.config.ssl is not None:
                self.config.http_protocol_class = Tls(self.config.ssl)  # type: ignore[assignment] # it is called like a class
                self.config.ssl = None  # so that we see connections before the handshake
            await super().startup(sockets)
            say(f"dashboard: {_address(self)}  (Ctrl-C stops it)")

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """End the event streams, or the shutdown would wait for them."""
            loop.call_soon_threadsafe(lambda: loop.create_task(app.parts.sampler.end_streams()))
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http=HttpConnection,
        ws="none",
        backlog=BACKLOG,
        timeout_graceful_shutdown=LEAVE_WITHIN,
        **options,
    )
    log = logging.getLogger("uvicorn.error")
    log.addFilter(lambda record: not isinstance(record.msg, OSError))  # raised below
    async with mq:
        try:
            await Server(config).serve()
        except SystemExit as ended:
            where = f"cannot listen on {config.host}, port {config.port}"
            raise InvalidInput(f"{where}: {ended.__context__}") from ended


def _address(server: uvicorn.Server) -> str:
    scheme = "https" if server.config.ssl_certfile else "http"
    port = server.servers[0].sockets[0].getsockname()[1]
    return f"{scheme}://{_in_url(server.config.host)}:{port}/"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _throttle_logs() -> None:
    """Limit log lines: uvicorn writes one or two for every malformed request."""
    from mx_rmq.dashboard.audit_log import Throttle

    for handler in logging.getLogger().handlers:
        handler.addFilter(Throttle())


def _keep_audit_log(path: Path | None) -> None:
    """Log actions at every level, and to a file if one is given."""
    audit = logging.getLogger("mx_rmq.dashboard.audit")
    audit.setLevel(logging.INFO)
    if path is not None:
        _make_private(path)
        handler = logging.FileHandler(path, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(message)s"))
        audit.addHandler(handler)


def _make_private(path: Path) -> None:
    """Create a file that only this user can read, or restrict an existing one."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISREG(mode) and mode & 0o077:
            os.fchmod(file, 0o600)
            old = stat.S_IMODE(mode)
            logger.warning("--audit-log %s had mode %04o; it is 0600 now", path, old)
    except PermissionError as error:
        raise InvalidInput(
            f"--audit-log {path}: other users can read it, and it belongs to another user"
        ) from error
    finally:
        os.close(file)
