"""A login that is set beside the URL, put into it. What the URL says itself, wins."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote

from mx_rmq.core.errors import InvalidInput


def with_login(url: str, username: str | None, password: str | None, file: str | None) -> str:
    """Return a URL with a user, and with a password or the file that holds it."""
    if username is None and password is None and file is None:
        return url
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "embedded":
        return url
    if password is not None and file is not None:
        raise InvalidInput("password and password_file are both set; one decides")
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
