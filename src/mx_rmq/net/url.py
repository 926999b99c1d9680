"""URL -> servers.

    redis://HOST:PORT/DB                        one server; rediss:// with TLS
    unix:///PATH, embedded://DIR                one server on this machine
    redis+sentinel://HOST,HOST/NAME/DB          the current primary NAME; rediss+sentinel://
    redis+cluster://HOST,HOST                   a cluster; rediss+cluster://

A login comes before the hosts (user:password@). Or the option `password_file` names a file with
the password; it is read for every connection, so a changed password needs no restart. The other
options after the ? are the client library's.

The client never retries on its own (caller.py does) and never decodes replies: ids and records can
be any bytes.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from mx_rmq.core.errors import InvalidInput, ServerUnavailable
from mx_rmq.embedded import EmbeddedServer
from mx_rmq.in_thread import in_thread
from mx_rmq.login import read_password, shown_url
from mx_rmq.net.cluster import Cluster
from mx_rmq.net.sentinel import PrimaryNode, Sentinels
from mx_rmq.net.topology import Node, OneServer

if TYPE_CHECKING:
    from redis.asyncio.client import Redis as RedisClient

    from mx_rmq.net.topology import Servers

CONNECT_WITHIN: Final = 5.0  # seconds that connecting may take
SENTINEL_WITHIN: Final = 1.0  # seconds until the next Sentinel is asked for the primary

SCHEMES: Final = (
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "unix",
    "embedded",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)
_PORTS: Final = {"cluster": 6379, "sentinel": 26379}
_RESERVED_OPTIONS: Final = frozenset(
    ("protocol", "decode_responses", "encoding", "encoding_errors", "socket_timeout", "retry")
)  # options of the client that decide how we read replies

_SENTINEL_OPTIONS: Final = frozenset(
    ("sentinel_username", "sentinel_password", "sentinel_password_file")
)


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """The parts of a URL."""

    scheme: str  # redis, rediss, unix or embedded
    way: str  # how to find the server: sentinel, cluster, or empty for a plain address
    login: str  # as in the URL, including the @
    hosts: list[str]
    path: str
    options: dict[str, str]

    def plain(self, host: str, path: str = "") -> str:
        """Return the URL of one host, as the client library reads it."""
        query = urlencode(self.options)
        return f"{self.scheme}://{self.login}{host}{path}" + (f"?{query}" if query else "")


class PasswordFile(CredentialProvider):
    """Reads the password from a file, for every connection."""

    def __init__(self, path: str, user: str | None) -> None:
        self._path = Path(path)
        self._user = user

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = read_password(self._path)
        return (password,) if self._user is None else (self._user, password)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Return the same. The file is short, so this may block."""
        return self.get_credentials()


def check_url(url: str) -> None:
    """Refuse an invalid server URL. Does not connect."""
    address = _read(url)
    if address.scheme != "embedded":
        _servers(address, url)


async def connect(url: str) -> Servers:
    """Return the servers of a URL. `embedded://DIR` starts one, or joins the running one."""
    address = _read(url)
    if address.scheme == "embedded":
        server = await _start(address.path)
        return OneServer(Node(_client(server.url, url)), server)
    for option in ("password_file", "sentinel_password_file"):
        if path := address.options.get(option):
            try:
                read_password(Path(path))  # later connections retry, the first one fails at once
            except OSError as error:
                raise ServerUnavailable(
                    f"cannot use {shown_url(url)}: {option}: {error}"
                ) from error
    servers = _servers(address, url)
    await servers.find_servers()
    return servers


def _read(url: str) -> Address:
    full_scheme, separator, rest = url.partition("://")
    scheme, plus, way = full_scheme.partition("+")
    scheme = {"valkey": "redis", "valkeys": "rediss"}.get(scheme, scheme)
    if not separator or scheme + plus + way not in SCHEMES:
        what = f"URL {shown_url(url)!r}" if separator else "the URL has no scheme: it"
        raise InvalidInput(
            f"{what} must start with one of " + ", ".join(f"{known}://" for known in SCHEMES)
        )
    if scheme == "embedded":
        if not rest:
            raise InvalidInput("embedded:// names no directory; example: embedded://./data")
        return Address(scheme, way, "", [], rest, {})
    front, _, query = rest.partition("?")
    before, at, front = front.rpartition("@")
    hosts, slash, path = front.partition("/")
    if way and ("@" in before or not all(hosts.split(","))):  # one login, before all hosts
        raise _refused(url)
    ports = re.findall(r":(\d+)(?=,|$)", hosts)
    if any(int(port) > 65_535 for port in ports):
        raise InvalidInput(f"URL {shown_url(url)!r}: the highest port is 65535")
    named = [hosts]
    if way:
        named = [
            host if re.search(r":\w+$", host) else f"{host}:{_PORTS[way]}"
            for host in hosts.split(",")
        ]
    return Address(
        scheme,
        way,
        before + at,
        named,
        slash + path,
        dict(parse_qsl(query, keep_blank_values=True)),
    )


def _servers(address: Address, url: str) -> Servers:
    if address.way == "cluster":
        return _cluster(address, url)
    if address.way == "sentinel":
        return _sentinel(address, url)
    (host,) = address.hosts
    if address.scheme != "unix":
        if "," in host:
            raise _refused(url)
        if not re.fullmatch(r"/?\d*", address.path):  # not shown: it may be part of a password
            raise InvalidInput(
                f"URL {shown_url(url)!r}: the database, after the host and a /, is not a number; "
                "example: redis://HOST:6379/0"
            )
    return OneServer(Node(_client(address.plain(host, address.path), url)))


def _cluster(address: Address, url: str) -> Cluster:
    if address.path not in ("", "/", "/0"):
        raise InvalidInput(f"URL {shown_url(url)!r}: a cluster has only database 0")
    pools = [_client(address.plain(host), url).connection_pool for host in address.hosts]
    seeds = [(pool.connection_kwargs["host"], pool.connection_kwargs["port"]) for pool in pools]
    return Cluster(seeds, pools[0].connection_class, dict(pools[0].connection_kwargs))


def _sentinel(address: Address, url: str) -> OneServer:
    named = re.fullmatch(r"/([^/]+)(/\d*)?", address.path)
    if named is None:
        raise InvalidInput(
            f"URL {shown_url(url)!r} must name the primary and the number of the database; "
            "example: redis+sentinel://HOST:26379,HOST:26379/NAME/0"
        )
    unknown = {name for name in address.options if name.startswith("sentinel_")} - _SENTINEL_OPTIONS
    if unknown:
        raise InvalidInput(
            f"{', '.join(sorted(unknown))} is not an option of a Sentinel URL; "
            f"the options are {', '.join(sorted(_SENTINEL_OPTIONS))}"
        )
    options = dict(address.options)
    user, password = (
        quote(options.pop(f"sentinel_{name}", ""), safe="") for name in ("username", "password")
    )
    file = options.pop("sentinel_password_file", None)
    theirs = {name: value for name, value in options.items() if name.startswith("ssl_")}
    if file is not None:
        theirs["password_file"] = file
    login = f"{user}:{password}@" if user or password else ""
    to_sentinel = Address(address.scheme, "", login, address.hosts, "", theirs)
    to_primary = Address(address.scheme, "", address.login, address.hosts, named[2] or "", options)
    primary = unquote(named[1])

    def node() -> Node:
        hosts = [to_sentinel.plain(host) for host in address.hosts]
        sentinels = Sentinels([_client(host, url, within=SENTINEL_WITHIN) for host in hosts])
        pattern = _client(to_primary.plain(address.hosts[0], to_primary.path), url)
        known = dict(pattern.connection_pool.connection_kwargs)
        del known["host"], known["port"]
        pool = SentinelConnectionPool(  # type: ignore[no-untyped-call] # redis-py leaves it untyped
            primary, sentinels, ssl=address.scheme == "rediss", **known
        )
        return PrimaryNode(Redis.from_pool(pool), sentinels, primary)

    return OneServer(node(), renew=node)


async def _start(directory: str) -> EmbeddedServer:
    starting = asyncio.create_task(in_thread(EmbeddedServer.start, directory))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        server = await starting  # the thread cannot be stopped, but its server can
        await in_thread(server.stop)
        raise


def _client(plain: str, url: str, within: float | None = None) -> RedisClient:
    """Return a client for one server. `url` is what the user wrote, for error messages."""
    try:
        parts = urlsplit(plain)
        if parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path):
            raise ValueError  # the client would silently use database 0
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if _RESERVED_OPTIONS & options.keys():
            raise ValueError  # these decide how we read replies
        for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
            if name in options and not Path(options[name]).is_file():
                raise InvalidInput(f"{name}={options[name]}: no such file")
        login: dict[str, Any] = {}
        if path := options.pop("password_file", None):
            user = unquote(parts.username) if parts.username else options.pop("username", None)
            login["credential_provider"] = PasswordFile(path, user)
            host = parts.netloc.rpartition("@")[2]
            plain = f"{parts.scheme}://{host}{parts.path}?{urlencode(options)}"
        client = Redis.from_url(
            plain,
            decode_responses=False,
            encoding_errors="surrogateescape",
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            socket_timeout=within,
            socket_connect_timeout=within or CONNECT_WITHIN,
            **login,
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # refuses unknown options
    except InvalidInput:
        raise
    except (ValueError, TypeError) as error:  # never shown: it may contain part of the password
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown is None:
            raise _refused(url) from None
        hint = ": use rediss://" if unknown[1].startswith("ssl_") and "rediss" not in url else ""
        raise InvalidInput(
            f"{unknown[1]} is not an option of URL {shown_url(url)!r}{hint}"
        ) from None
    return client


def _refused(url: str) -> InvalidInput:
    return InvalidInput(
        f"URL {shown_url(url)!r} is not valid: in a password, write / as %2F, # as %23, "
        "? as %3F and @ as %40; ports and databases are numbers; options after the ? are those "
        "of the redis client"
    )
