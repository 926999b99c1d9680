"""Logins: add one to a URL, read a password file, hide the secrets of a URL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote

from mx_rmq.core.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

MAX_PASSWORD_FILE: Final = 4096  # the largest size of a password file, in bytes

HIDDEN: Final = "***"

_SHOWN_OPTIONS: Final = frozenset(
    (
        *("db", "client_name", "max_connections", "health_check_interval", "timeout"),
        *("socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_read_size"),
        *("password_file", "sentinel_password_file"),
        *("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"),
        *("ssl_check_hostname", "ssl_min_version", "ssl_ciphers"),
        *("protocol", "decode_responses", "encoding", "encoding_errors"),
        *("retry", "retry_on_timeout", "retry_on_error"),
    )
)
"""Options whose values are not secret. Every other value is hidden, however it is spelled."""

_HOST: Final = re.compile(r"(\[[0-9A-Za-z:.%]*\]|[^:\[\]]*)(:\d{1,5})?")
_DATABASE: Final = re.compile(r"/?\d*")


def with_login(url: str, username: str | None, password: str | None, file: str | None) -> str:
    """Return a URL with a user, and with a password or a password file. The URL's own win."""
    if username is None and password is None and file is None:
        return url
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "embedded":
        return url
    if password is not None and file is not None:
        raise InvalidInput("password and password_file are both set: set only one")
    rest, _, query = rest.partition("?")
    login, at, hosts = rest.rpartition("@")
    user, colon, known = login.partition(":")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not user and username is not None and "username" not in options:
        user = quote(username, safe="")
    if not known and not {"password", "password_file"} & options.keys():
        if password is not None:
            colon, known = ":", quote(password, safe="")
        elif file is not None:
            query = "&".join(filter(None, (query, f"password_file={quote(file, safe='/')}")))
    at = "@" if at or user or known else ""
    return f"{scheme}://{user}{colon}{known}{at}{hosts}" + (f"?{query}" if query else "")


def read_password(path: Path) -> str:
    """Return a file's only line, the password. Refuse any other file: it is sent to a server."""
    with path.open("rb") as file:
        found = file.read(MAX_PASSWORD_FILE + 1)
    why = "it is longer than a password" if len(found) > MAX_PASSWORD_FILE else ""
    try:
        password = found.decode("utf-8").rstrip("\r\n")
    except ValueError:  # its text would show part of the password
        raise OSError(f"{path} does not hold a password: {why or 'it is not UTF-8'}") from None
    if not password:
        why = "it is empty"
    elif set(password) & set("\r\n\0"):
        why = why or "it has more than one line"
    if why:
        raise OSError(f"{path} does not hold a password: {why}")
    return password


def shown_url(url: str) -> str:
    """Return a URL with everything hidden that may be a secret. Show and log only this form.

    The whole login is hidden, because a lone user may be a token (`redis://TOKEN@host`). So is
    anything unexpected in place of a port, a database or a known option: a password ends up there
    when an @, a / or a ? in it is not quoted.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return HIDDEN
    if scheme == "embedded":  # a directory, with any characters
        return url
    front, question, query = rest.partition("?")
    if "@" in query or "#" in rest:  # we cannot tell where the password ends
        return f"{scheme}://{HIDDEN}"
    login, at, place = front.rpartition("@")
    hosts, slash, path = place.partition("/")
    if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        hosts = HIDDEN
    if not (scheme == "unix" or scheme.endswith("+sentinel") or _DATABASE.fullmatch(path)):
        path = HIDDEN
    options = "&".join(_shown_option(option) for option in query.split("&"))
    return f"{scheme}://{HIDDEN + at if login else ''}{hosts}{slash}{path}{question}{options}"


def _shown_option(option: str) -> str:
    name, equals, _ = option.partition("=")
    if not equals:
        return HIDDEN if option else ""
    return option if name in _SHOWN_OPTIONS else f"{name}={HIDDEN}"
