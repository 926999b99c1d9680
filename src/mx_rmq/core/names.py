"""The rules for names that become part of a key or a field, and for the names of options.

A valid name cannot break out of its place in a key, in a list of ids, or in a glob: it has no
brace, no space and no asterisk. A topic has no slash, which begins the number of a partition, and
no @, which begins the name of a subscription. A worker has no colon, which ends the token before it
in a lease. A message's key may be any text without
control characters: a tab ends it in its line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)
SUBSCRIPTION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
LISTED: Final = re.compile(rf"{TOPIC.pattern}(@{SUBSCRIPTION.pattern})?", re.ASCII)
"""A topic, or one of its subscriptions: what the registry lists."""
PARTITION: Final = re.compile(rf"{LISTED.pattern}(/[1-9][0-9]{{0,3}})?", re.ASCII)
ID: Final = re.compile(r"[A-Za-z0-9._:@/+=~-]{1,128}", re.ASCII)
SCHEDULE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}", re.ASCII)  # part of an id
WORKER: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
KEY: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,128}")  # at most 512 bytes of UTF-8
PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)

SHOWN: Final = 80

ONE_OR_MANY: Final = (
    "a topic has one handler without a subscription, or any number of subscriptions"
)

_LETTERS: Final = "letters, digits and"
_FIRST: Final = ", the first a letter or a digit"

_RANDOM: Final = re.compile(r"(?<=-[0-9a-f]{8})[0-9a-f]{24}$")


def check_topic(topic: str) -> str:
    """Refuse what is not a topic, such as a subscription: it only gets copies."""
    if isinstance(topic, str) and "@" in topic and LISTED.fullmatch(topic):
        name, _, subscription = topic.partition("@")
        raise InvalidInput(
            f"{topic!r:.200} is a subscription, not a topic: produce to {name!r:.140}, and declare "
            f"a handler with @mq.handler({name!r:.140}, subscription={subscription!r})"
        )
    return _check("topic", topic, TOPIC, f"{_LETTERS} . _ - :, at most 128 characters{_FIRST}")


def check_listed(name: str) -> str:
    """Refuse what is neither a topic nor a subscription such as `order.created@billing`."""
    if isinstance(name, str) and LISTED.fullmatch(name):
        return name
    return check_topic(name)


def check_subscription(name: str) -> str:
    return _check(
        "subscription", name, SUBSCRIPTION, f"{_LETTERS} . _ -, at most 64 characters{_FIRST}"
    )


def check_partition(name: str) -> str:
    if isinstance(name, str) and PARTITION.fullmatch(name):
        return name
    return check_topic(name)


def check_id(id: str) -> str:
    return _check("message id", id, ID, f"{_LETTERS} . _ - : @ / + = ~, at most 128 characters")


def check_key(key: str) -> str:
    if not isinstance(key, str) or not KEY.fullmatch(key):
        raise InvalidInput(
            f"key={shown(key)} is not a string of 1 to 128 characters without control characters"
        )
    return key


def check_schedule(name: str) -> str:
    rule = f"{_LETTERS} . _ - :, at most 100 characters{_FIRST}"
    return _check("schedule", name, SCHEDULE, rule)


def check_worker(worker: str) -> str:
    return _check("worker", worker, WORKER, f"{_LETTERS} . _ -, at most 64 characters")


def short_worker(worker: str) -> str:
    """Return the short, unique start of a worker's name, if we generated the name."""
    return _RANDOM.sub("", worker)


def check_prefix(prefix: str) -> str:
    return _check("prefix", prefix, PREFIX, f"{_LETTERS} . _ - :, at most 64 characters{_FIRST}")


def check_options(function: str, options: Iterable[str], known: type, *named: str) -> None:
    """Refuse an option that is not a key of `known`, a TypedDict.

    `named` are the options that the function's signature names; the error lists them too.
    """
    for name in options:
        if name not in known.__annotations__:
            every = ", ".join([*named, *known.__annotations__])
            raise TypeError(f"{function}() has no option {name!r}; its options are {every}")


def _check(what: str, value: str, pattern: re.Pattern[str], rule: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        given = repr(value)
        if len(given) > SHOWN:
            given = given[:SHOWN] + "…"
        raise InvalidInput(f"{what} {given} must consist of {rule}")
    return value
