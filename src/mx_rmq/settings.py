"""Settings, validated when they are loaded.

Each one comes from an argument, else from the environment (`MX_RMQ_LEASE`), else from
`mx-rmq.toml` in the current directory (or the file that `MX_RMQ_CONFIG` names), else from its
default. The file is one flat table of all settings.

The file decides which server gets the password. So a file in the current directory must belong to
us or root and must not be writable by other users, and a login is never sent to a server named by a
weaker source.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from enum import IntEnum
from functools import cache
from pathlib import Path
from stat import S_ISREG, S_IWGRP, S_IWOTH
from typing import TYPE_CHECKING, Any, Final, TypedDict

from mx_rmq.core.confirm import Confirm, Level, check_level
from mx_rmq.core.durations import Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.names import check_listed, check_prefix, check_worker
from mx_rmq.login import with_login
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = get_logger(__name__)

DAY: Final = 86_400.0

LONGEST_LEASE: Final = DAY

SECOND_NET: Final = (
    3600  # seconds after its age limit, the server drops an archived field (HEXPIRE)
)

FILE: Final = "mx-rmq.toml"
VARIABLE: Final = "MX_RMQ_"

_OTHERS: Final = {
    "CONFIG",
    "LOG_LEVEL",
    "LOG_FORMAT",
    "OPERATOR",
    "QUIET",
    "SERVER_BINARY",
}

_INTEGERS: Final = ("int", "int | None")  # annotations of settings that are whole numbers
_DURATIONS: Final = ("float", "float | None")  # and of those that are durations

_MAX_SECONDS: Final = 2**53 / 1000  # the largest number of seconds that is exact in milliseconds


def _range(least: float, most: float) -> dict[str, tuple[float, float]]:
    return {"range": (least, most)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be stored, how much and for how long. Times in seconds; 0 turns a limit off."""

    max_payload: int = 1_048_576
    """Bytes of one encoded payload."""
    max_pending: int = 0
    """Messages of a topic that may wait (pending or delayed) before produce is refused."""
    dedup: float = 120.0
    """How long a custom id stays taken after its produce, even if the message has finished."""
    dlq_max: int = 100_000
    """Dead letters kept per topic; the oldest are dropped first."""
    dlq_ttl: float = 90 * DAY
    """Age at which a dead letter is dropped."""
    dlq_max_bytes: int | None = None
    """Bytes of dead letters kept per topic, shared by its partitions; the oldest are dropped first.
    None: 256 MiB, but all topics together at most a tenth of the server's maxmemory, if set."""
    quarantine_max: int = 10_000
    """Quarantined messages kept per topic; the oldest are dropped first."""
    quarantine_ttl: float = 30 * DAY
    """Age at which a quarantined message is dropped."""
    quarantine_bytes: int = 4 * 1_048_576
    """Bytes kept of one quarantined record. A longer one is cut, and its length is kept."""
    quarantine_max_bytes: int | None = None
    """Bytes of quarantined messages kept per topic, shared by its partitions; the oldest are
    dropped first. None: 64 MiB, with the same limit by maxmemory as `dlq_max_bytes`."""
    results_max: int = 10_000
    """Results kept per topic, of handlers with a `result_ttl`; the oldest are dropped first."""
    results_bytes: int | None = None
    """Bytes of results kept per topic, shared by its partitions; the oldest are dropped first.
    None: 64 MiB, with the same limit by maxmemory as `dlq_max_bytes`."""
    history: int = 250_000
    """Entries kept of a topic's history, shared by its partitions; the oldest are dropped first.
    One entry covers up to 25 messages."""
    history_ttl: float = 7 * DAY
    """Age at which an entry of the history is dropped."""
    history_max_bytes: int | None = None
    """Bytes of history kept per topic, shared by its partitions; the oldest entries are dropped
    first. None: 32 MiB, with the same limit by maxmemory as `dlq_max_bytes`."""

    def __post_init__(self) -> None:
        _validate(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings(Limits):
    """The settings of a MessageQueue, limits included. Times in seconds."""

    url: str = field(default="", repr=False)
    """The server: redis://, rediss://, valkey://, unix://, embedded://DIR, redis+sentinel:// or
    redis+cluster://. Required."""
    username: str | None = None
    """The user to log in as, if the URL names none."""
    password: str | None = field(default=None, repr=False)
    """The password, if the URL has none."""
    password_file: str | None = None
    """A file that holds the password instead. It is read for every new connection."""
    prefix: str = "mx-rmq"
    """What every key begins with. Queues with different prefixes do not see each other."""
    lease: float = field(default=30.0, metadata=_range(0.1, LONGEST_LEASE))
    """How long a worker may be silent before another one gets its messages."""
    patience: float = field(default=10.0, metadata=_range(0, 300))
    """How long a call keeps retrying while the server is away."""
    ttl: float | None = field(default=None, metadata=_range(0.001, _MAX_SECONDS))
    """The ttl of messages that have none and whose handler declares none; None: they never
    expire."""
    confirm: str = "stored"
    """How safe a message must be before produce returns: stored, replicated or fsynced."""
    confirm_replicas: int = field(default=1, metadata=_range(1, 100))
    """Replicas that must have the message, with confirm=replicated or fsynced."""
    confirm_within: float = field(default=1.0, metadata=_range(0.001, 60))
    """How long produce waits for that confirmation."""
    load_scripts: bool = True
    """Whether to send a script that the server lacks. False: an operator loads them
    (`mx-rmq load-scripts`), and the user needs EVALSHA but not EVAL."""

    @classmethod
    def load(cls, **arguments: Any) -> QueueSettings:
        """Return the settings from arguments (None: not given), environment, file and defaults."""
        values, sources = _load(cls, arguments)
        _check_login(values, sources)
        return cls(**values)

    @property
    def address(self) -> str:
        """The URL with the login added. Contains the password: do not show it."""
        return with_login(self.url, self.username, self.password, self.password_file)

    def confirmation(self, level: str | None = None) -> Confirm | None:
        """Return what a produce waits for, at this level or else at the configured one."""
        chosen = check_level(self.confirm if level is None else level)
        if chosen is Level.STORED:
            return None
        return Confirm(chosen, self.confirm_replicas, self.confirm_within)

    @property
    def limits(self) -> Limits:
        """The limits alone, as the store takes them."""
        return Limits(**{known.name: getattr(self, known.name) for known in fields(Limits)})


class QueueOptions(TypedDict, total=False):
    """The arguments of MessageQueue, apart from the URL: see QueueSettings. None: not given."""

    username: str | None
    password: str | None
    password_file: str | None
    prefix: str | None
    lease: Seconds | None
    patience: Seconds | None
    ttl: Seconds | None
    confirm: str | None
    confirm_replicas: int | None
    confirm_within: Seconds | None
    load_scripts: bool | None
    max_payload: int | None
    max_pending: int | None
    dedup: Seconds | None
    dlq_max: int | None
    dlq_ttl: Seconds | None
    dlq_max_bytes: int | None
    quarantine_max: int | None
    quarantine_ttl: Seconds | None
    quarantine_bytes: int | None
    quarantine_max_bytes: int | None
    results_max: int | None
    results_bytes: int | None
    history: int | None
    history_ttl: Seconds | None
    history_max_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of a Worker. Times in seconds."""

    concurrency: int = field(default=100, metadata=_range(1, 10_000))
    """Messages that the worker handles at the same time."""
    topics: tuple[str, ...] | None = None
    """The topics it works on; None: every topic that has a handler."""
    grace: float = field(default=30.0, metadata=_range(0, _MAX_SECONDS))
    """How long handlers may keep running after the worker is told to stop."""
    prefetch: int = field(default=1000, metadata=_range(0, 10_000))
    """How many messages the worker may take ahead of free slots."""
    name: str | None = None
    """The worker's name in leases and lists; None: a generated name."""
    metrics_port: int = field(default=0, metadata=_range(0, 65_535))
    """The port where `mx-rmq worker` serves metrics and health; 0: none."""
    metrics_host: str = "127.0.0.1"
    """The address that this port is opened on."""
    metrics_keys: int = field(default=0, metadata=_range(0, 10))
    """How many keys of each topic the metrics name, those with the most waiting; 0: none."""

    def __post_init__(self) -> None:
        _validate(self)

    @classmethod
    def load(cls, **arguments: Any) -> WorkerSettings:
        """Return the settings from arguments (None: not given), environment, file and defaults."""
        values, _ = _load(cls, arguments)
        return cls(**values)


class Source(IntEnum):
    """Where a setting comes from. A larger number takes precedence."""

    FILE = 1  # mx-rmq.toml, found in the current directory
    ENVIRONMENT = 2  # a variable, or the file that MX_RMQ_CONFIG names
    ARGUMENT = 3


_LOGIN: Final = ("username", "password", "password_file")


def _validate(settings: Limits | WorkerSettings) -> None:
    """Check every field and normalize its value."""
    for known in fields(settings):
        value = getattr(settings, known.name)
        object.__setattr__(settings, known.name, _checked(known, value, known.name))


def _checked(known: Field[Any], value: Any, label: str) -> Any:
    """Return a setting's normalized value, or refuse it. `label` names it in errors."""
    if known.type == "bool":
        if not isinstance(value, bool):
            raise InvalidInput(f"{label}={value!r:.80} is not true or false")
        return value
    if known.name == "url":
        return _url(value, label)
    if value is None and known.default is None:
        return None
    if known.type in (*_INTEGERS, *_DURATIONS):
        return _number(known, value, label)
    if known.name in ("username", "password", "password_file", "metrics_host"):
        return _text(value, label)
    if known.name == "topics":
        return _topics(value, label)
    checks = {"prefix": check_prefix, "name": check_worker, "confirm": check_level}
    check = checks[known.name]
    try:
        return check(value)
    except InvalidInput as error:
        raise InvalidInput(f"{label}={value!r:.80} is not valid: {error}") from error


def _number(known: Field[Any], value: Any, label: str) -> float:
    least, most = known.metadata.get("range", (0, _MAX_SECONDS))
    if known.type in _DURATIONS:
        return as_seconds(f"{label}=", value, least, most)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{label}={value!r:.80} is not a number")
    if not isinstance(value, int):
        raise InvalidInput(f"{label}={value!r} is not a whole number")
    if known.name == "max_payload" and value == 0:
        raise InvalidInput(f"{label}=0 would refuse every payload")
    if not least <= value <= most:
        raise InvalidInput(f"{label}={value!r} is not between {least:,.16g} and {most:,.16g}")
    return value


def _url(value: Any, label: str) -> str:
    if value is None or value == "":
        raise InvalidInput(f"no URL: pass one, set {VARIABLE}URL, or set url in {FILE}")
    if not isinstance(value, str):  # not shown: it may hold a password
        raise InvalidInput(f"{label} is of type {type(value).__name__}, not a string")
    if not value.startswith("embedded://~"):
        return value
    directory = Path(value.removeprefix("embedded://"))
    try:
        return f"embedded://{directory.expanduser()}"
    except RuntimeError:
        raise InvalidInput(f"{label}: there is no home directory for {directory}") from None


def _text(value: Any, label: str) -> str:
    if not isinstance(value, str) or not value:  # not shown: it may be a password
        raise InvalidInput(f"{label} must be a non-empty string")
    if set(value) & set("\r\n\0"):
        raise InvalidInput(f"{label} has more than one line")
    return value


def _topics(value: Any, label: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise InvalidInput(f"{label}={value!r:.80} is not a list of topics")
    if not value:
        raise InvalidInput(f"{label}={value!r} names no topic; omit it to serve all topics")
    try:
        return tuple(dict.fromkeys(check_listed(topic) for topic in value))
    except InvalidInput as error:
        raise InvalidInput(f"{label}: {error}") from error


def _load(
    cls: type[Limits | WorkerSettings], arguments: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Source]]:
    """Return the settings that are set, and the source of each."""
    if unknown := _unknown(arguments, [known.name for known in fields(cls)]):
        raise TypeError(unknown)
    values = {name: value for name, value in arguments.items() if value is not None}
    sources = dict.fromkeys(values, Source.ARGUMENT)
    path, table, source = _file()
    _warn_of_unknown(tuple(name for name in os.environ if name.startswith(VARIABLE)))
    for known in fields(cls):
        name = known.name
        if name in values:
            continue
        variable = VARIABLE + name.upper()
        if text := os.environ.get(variable):
            values[name] = _checked(known, _parsed(known, text, variable), variable)
            sources[name] = Source.ENVIRONMENT
        elif name in table:
            values[name] = _checked(known, table[name], f"{path}: {name}")
            sources[name] = source
    return values, sources


def _check_login(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """Refuse to send a login to a server named by a weaker source."""
    url = values.get("url")
    for name in _LOGIN:
        if name not in values or not url or sources[name] <= sources["url"]:
            continue
        alone = {one: values[name] if one == name else None for one in _LOGIN}
        if with_login(url, *alone.values()) != url:  # else the URL has its own login
            given = name if sources[name] is Source.ARGUMENT else VARIABLE + name.upper()
            named = "the environment" if sources["url"] is Source.ENVIRONMENT else FILE
            cure = "as an argument" if sources[name] is Source.ARGUMENT else f"as {VARIABLE}URL"
            raise InvalidInput(
                f"{given} is not sent to a URL that comes from {named}: pass the URL {cure}, too"
            )


def _parsed(known: Field[Any], text: str, variable: str) -> Any:
    """Parse a variable's text according to the type of the field."""
    if known.name == "topics":
        return [topic.strip() for topic in text.split(",") if topic.strip()]
    if known.type == "bool":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    try:
        if known.type in _INTEGERS:
            return int(text)
        if known.type in _DURATIONS:
            return float(text)
    except ValueError:
        whole = "whole " if known.type in _INTEGERS else ""
        raise InvalidInput(f"{variable}={text!r:.80} is not a {whole}number") from None
    return text


def _file() -> tuple[Path, dict[str, Any], Source]:
    """Return the settings file, its table (empty if there is no file), and its precedence."""
    named = os.environ.get(f"{VARIABLE}CONFIG")
    path = Path(named or FILE)
    source = Source.ENVIRONMENT if named else Source.FILE
    try:
        with path.open("rb") as file:
            found, text = os.fstat(file.fileno()), file.read()
    except FileNotFoundError:
        if named:
            raise InvalidInput(f"{VARIABLE}CONFIG={named!r}: no such file") from None
        return path, {}, source
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    _check_trust(path, found, named=bool(named))
    try:
        table = tomllib.loads(text.decode("utf-8"))
    except ValueError as error:  # not TOML, or not UTF-8
        raise InvalidInput(f"{path} is not TOML: {error}") from None
    if unknown := _unknown(table, _names()):
        raise InvalidInput(f"{path}: {unknown}")
    return path, table, source


def _names() -> list[str]:
    return [known.name for cls in (QueueSettings, WorkerSettings) for known in fields(cls)]


def _unknown(given: Iterable[str], known: list[str]) -> str:
    """Say which of the given names is unknown, and what was probably meant; empty: none is."""
    for name in given:
        if name not in known:
            closest = get_close_matches(name, known, n=1, cutoff=0)[0]
            return f"{name!r:.80} is not a setting; did you mean {closest!r}?"
    return ""


@cache  # so each process warns once
def _warn_of_unknown(variables: tuple[str, ...]) -> None:
    """Warn of misspelt variables. Kubernetes sets some for a service that is called mx-rmq."""
    known = [VARIABLE + name for name in (*map(str.upper, _names()), *_OTHERS)]
    for variable in variables:
        of_kubernetes = variable.startswith((f"{VARIABLE}PORT", f"{VARIABLE}SERVICE_"))
        if not of_kubernetes and (unknown := _unknown([variable], known)):
            logger.warning("ignoring an environment variable: %s", unknown)


def _check_trust(path: Path, found: os.stat_result, *, named: bool) -> None:
    """Refuse a file that another user could have written.

    A file that MX_RMQ_CONFIG names may have any owner: naming it means trusting its owner.
    """
    owners = {found.st_uid, path.lstat().st_uid}  # of the file and of a symbolic link to it
    if not named and not owners <= {0, os.geteuid()}:
        other = max(owners - {0, os.geteuid()})
        raise InvalidInput(
            f"{path.absolute()} belongs to another user (uid {other}), who would decide where your "
            f"password goes: change its owner, or set {VARIABLE}CONFIG to use it anyway"
        )
    writable = found.st_mode & (S_IWOTH if named else S_IWGRP | S_IWOTH)
    if writable and S_ISREG(found.st_mode):
        raise InvalidInput(
            f"{path.absolute()} can be written by other users, who would decide where your "
            f"password goes: chmod go-w {path}"
        )
