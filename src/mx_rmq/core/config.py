"""Settings, validated at once.

Each one comes from an argument, else from the environment (`MX_RMQ_LEASE`), else from
`mx-rmq.toml` in the current directory (or the file that `MX_RMQ_CONFIG` names), else it has its
default. The file is one flat table for all settings.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from mx_rmq.core.confirm import Confirm, Level, check_level
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.login import with_login
from mx_rmq.core.names import check_prefix, check_topic, check_worker

DAY: Final = 86_400.0

SECOND_NET: Final = 3600
"""Seconds after its age limit at which the server itself drops an archived field (HEXPIRE)."""

FILE: Final = "mx-rmq.toml"
VARIABLE: Final = "MX_RMQ_"

_WHOLE: Final = ("int", "int | None")
"""Types of settings that are whole numbers, as they are written here."""

_MOST: Final = 2**53 / 1000
"""The largest number of seconds that is exact in milliseconds everywhere."""


def _range(least: float, most: float) -> dict[str, tuple[float, float]]:
    return {"range": (least, most)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be stored, how much of it and for how long. Times in seconds; 0 switches off."""

    max_payload: int = 1_048_576
    """Bytes of one encoded payload."""
    max_pending: int = 0
    """Messages of a topic that may wait (pending or delayed) before produce is refused."""
    dedup: float = 120.0
    """How long a caller's own id stays taken after its produce, also when it has finished."""
    dlq_max: int = 100_000
    """Dead letters kept per topic: the newest ones."""
    dlq_ttl: float = 90 * DAY
    """Age at which a dead letter is dropped."""
    dlq_max_bytes: int | None = None
    """Bytes of dead letters kept per topic, which its partitions share: the newest ones. None:
    256 MiB, but over all topics not more than a tenth of the server's maxmemory, if it has one."""
    quarantine_max: int = 10_000
    """Quarantined messages kept per topic: the newest ones."""
    quarantine_ttl: float = 30 * DAY
    """Age at which a quarantined message is dropped."""
    quarantine_bytes: int = 4 * 1_048_576
    """Bytes kept of one quarantined record. A longer one is cut, its length noted."""
    quarantine_max_bytes: int | None = None
    """Bytes of quarantined messages kept per topic, which its partitions share: the newest ones.
    None: 64 MiB, and not more than a tenth of maxmemory, as of `dlq_max_bytes`."""
    history: int = 10_000
    """Entries of a topic's history, which its partitions share: the newest ones. Each covers
    up to 25 messages."""

    def __post_init__(self) -> None:
        _settle(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings(Limits):
    """What a MessageQueue goes by, its limits included. Times in seconds."""

    url: str = field(default="", repr=False)
    """The server: redis://, rediss://, valkey://, unix://, embedded://DIR, redis+sentinel:// or
    redis+cluster://. Required."""
    username: str | None = None
    """The server's user, if the URL names none."""
    password: str | None = field(default=None, repr=False)
    """Its password, if the URL holds none."""
    password_file: str | None = None
    """A file that holds the password instead; it is read anew for every connection."""
    prefix: str = "mx-rmq"
    """What every key begins with: queues of different prefixes do not see each other."""
    lease: float = field(default=30.0, metadata=_range(0.1, DAY))
    """How long a worker may be silent before its messages are given to another one."""
    patience: float = field(default=10.0, metadata=_range(0, 300))
    """How long a call goes on trying while the server is away."""
    confirm: str = "stored"
    """How far a message must have come before produce returns: stored, replicated or fsynced."""
    confirm_replicas: int = field(default=1, metadata=_range(1, 100))
    """Replicas that must have it, if it shall be replicated or fsynced."""
    confirm_within: float = field(default=1.0, metadata=_range(0.001, 60))
    """How long produce waits for them."""

    @classmethod
    def load(cls, **arguments: Any) -> QueueSettings:
        """Return the settings from arguments (None: not given), environment, file and defaults."""
        return cls(**_load(cls, arguments))

    @classmethod
    def address_of(cls, url: str) -> str:
        """Return a URL with the login that is set; no other setting is looked at."""
        login = _load(cls, {"url": url}, only=("username", "password", "password_file"))
        login.pop("url")
        return with_login(
            url, login.get("username"), login.get("password"), login.get("password_file")
        )

    @property
    def address(self) -> str:
        """The URL with the login that is set beside it. Not for showing."""
        return with_login(self.url, self.username, self.password, self.password_file)

    def confirmation(self, level: str | None = None) -> Confirm | None:
        """Return what a produce waits for, at this level or at the one that is set."""
        chosen = check_level(self.confirm if level is None else level)
        if chosen is Level.STORED:
            return None
        return Confirm(chosen, self.confirm_replicas, self.confirm_within)

    @property
    def limits(self) -> Limits:
        """The limits alone, as the store takes them."""
        return Limits(**{known.name: getattr(self, known.name) for known in fields(Limits)})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a Worker goes by. Times in seconds."""

    concurrency: int = field(default=100, metadata=_range(1, 10_000))
    """Messages that the worker handles at the same time."""
    topics: tuple[str, ...] | None = None
    """The topics it works on; None: every topic that has a handler."""
    grace: float = field(default=30.0, metadata=_range(0, _MOST))
    """How long handlers may go on when the worker is told to stop."""
    prefetch: int = field(default=1000, metadata=_range(0, 10_000))
    """Messages taken ahead of free slots, at the most."""
    name: str | None = None
    """What the worker is called in leases and lists; None: a name is made."""
    metrics_port: int = field(default=0, metadata=_range(0, 65_535))
    """Where `mx-rmq worker` serves its metrics and its health; 0: nowhere."""
    metrics_host: str = "127.0.0.1"
    """The address that it listens on for that."""

    def __post_init__(self) -> None:
        _settle(self)

    @classmethod
    def load(cls, **arguments: Any) -> WorkerSettings:
        """Return the settings from arguments (None: not given), environment, file and defaults."""
        return cls(**_load(cls, arguments))


def _settle(settings: Limits | WorkerSettings) -> None:
    """Check every field and keep it in its proper form."""
    for known in fields(settings):
        value = _checked(known, getattr(settings, known.name), known.name)
        object.__setattr__(settings, known.name, value)


def _checked(known: Field[Any], value: Any, said: str) -> Any:
    """Return a setting's value in its proper form, or refuse it. `said`: where it came from."""
    if known.name == "url":
        return _url(value, said)
    if value is None and known.default is None:
        return None
    if known.type in (*_WHOLE, "float"):
        return _number(known, value, said)
    if known.name in ("username", "password", "password_file", "metrics_host"):
        return _word(value, said)
    if known.name == "topics":
        return _topics(value, said)
    checks = {"prefix": check_prefix, "name": check_worker, "confirm": check_level}
    check = checks[known.name]
    try:
        return check(value)
    except InvalidInput as error:
        raise InvalidInput(f"{said}={value!r:.80} is refused: {error}") from error


def _number(known: Field[Any], value: Any, said: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{said}={value!r:.80} is not a number")
    if known.type in _WHOLE and not isinstance(value, int):
        raise InvalidInput(f"{said}={value!r} is not a whole number")
    if known.name == "max_payload" and value == 0:
        raise InvalidInput(f"{said}=0 would refuse every payload")
    least, most = known.metadata.get("range", (0, _MOST))
    if not least <= value <= most:
        raise InvalidInput(f"{said}={value!r} is not between {least:,.16g} and {most:,.16g}")
    return value


def _url(value: Any, said: str) -> str:
    if value is None or value == "":
        raise InvalidInput(f"no URL: pass one, set {VARIABLE}URL, or write url into {FILE}")
    if not isinstance(value, str):  # not shown: it may hold a password
        raise InvalidInput(f"{said} is of type {type(value).__name__}, not a text")
    return value


def _word(value: Any, said: str) -> str:
    if not isinstance(value, str) or not value:  # not shown: it may be a password
        raise InvalidInput(f"{said} is not a text with something in it")
    return value


def _topics(value: Any, said: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise InvalidInput(f"{said}={value!r:.80} is not a list of topics")
    if not value:
        raise InvalidInput(f"{said}={value!r} names no topic; leave it out for all of them")
    try:
        return tuple(dict.fromkeys(check_topic(topic) for topic in value))
    except InvalidInput as error:
        raise InvalidInput(f"{said}: {error}") from error


def _load(
    cls: type[Limits | WorkerSettings], arguments: dict[str, Any], only: tuple[str, ...] = ()
) -> dict[str, Any]:
    values = {name: value for name, value in arguments.items() if value is not None}
    path, table = _file()
    for known in fields(cls):
        if known.name in values or (only and known.name not in only):
            continue
        variable = VARIABLE + known.name.upper()
        if text := os.environ.get(variable):
            values[known.name] = _checked(known, _parsed(known, text, variable), variable)
        elif known.name in table:
            values[known.name] = _checked(known, table[known.name], f"{path}: {known.name}")
    return values


def _parsed(known: Field[Any], text: str, variable: str) -> Any:
    """Return what a variable's text says, by the type of the field."""
    if known.name == "topics":
        return [topic.strip() for topic in text.split(",") if topic.strip()]
    try:
        if known.type in _WHOLE:
            return int(text)
        if known.type == "float":
            return float(text)
    except ValueError:
        whole = "whole " if known.type in _WHOLE else ""
        raise InvalidInput(f"{variable}={text!r:.80} is not a {whole}number") from None
    return text


def _file() -> tuple[Path, dict[str, Any]]:
    """Return the settings file and what it holds; nothing if there is none."""
    named = os.environ.get(f"{VARIABLE}CONFIG")
    path = Path(named or FILE)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise InvalidInput(f"{VARIABLE}CONFIG={named!r} names no file") from None
        return path, {}
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise InvalidInput(f"{path} is not TOML: {error}") from None
    every = [known.name for cls in (QueueSettings, WorkerSettings) for known in fields(cls)]
    for key in table:
        if key not in every:
            closest = get_close_matches(key, every, n=1, cutoff=0)[0]
            raise InvalidInput(f"{path}: {key!r:.80} is no setting; the closest one is {closest!r}")
    return path, table
