"""Retry policies: whether there is another attempt after a failure, and when.

A policy is a value without a clock or random numbers: the caller counts the failures and passes a
random number. It is stored in a message as its `retry` dict.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from mx_rmq.core.durations import Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import shown


def _number(what: str, value: Any, least: float, most: float, rule: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most or not isfinite(value):
        raise InvalidInput(f"{what} {shown(value)} is not {rule}")
    return float(value)


class Delays(msgspec.Struct, frozen=True, tag="delays"):
    """Fixed waits: `Delays((1, 10, 60))`. The last one repeats."""

    delays: tuple[float, ...]
    """Seconds before the second attempt, the third and so on."""

    if TYPE_CHECKING:  # it accepts more types than it stores

        def __init__(self, delays: tuple[Seconds, ...] | list[Seconds]) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.delays, tuple | list):
            raise InvalidInput(f"retry delays={shown(self.delays)} is not a list of durations")
        if not self.delays:
            raise InvalidInput(f"retry delays={self.delays!r} is empty: give at least one duration")
        waits = tuple(as_seconds("retry delay ", delay) for delay in self.delays)
        msgspec.structs.force_setattr(self, "delays", waits)

    def delay(self, failures: int, error: BaseException, chance: float) -> float | None:
        """Return the wait after this many failures; `error` and `chance` are ignored."""
        return self.delays[min(max(failures, 1), len(self.delays)) - 1]


class Exponential(msgspec.Struct, frozen=True, tag="exponential"):
    """Growing waits: 1, 2, 4, 8 … seconds, each shortened at random so that retries spread out."""

    first: float = 1.0
    """Seconds before the second attempt."""
    factor: float = 2.0
    """Each wait is the previous one times this."""
    cap: float = 600.0
    """The longest wait in seconds."""
    jitter: float = 0.5
    """The share of a wait that is random: 0 none, 1 all of it."""

    if TYPE_CHECKING:

        def __init__(
            self,
            first: Seconds = ...,
            factor: float = ...,
            cap: Seconds = ...,
            jitter: float = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        settled = {
            "first": as_seconds("retry first ", self.first),
            "factor": _number("retry factor", self.factor, 1, inf, "a finite number of at least 1"),
            "cap": as_seconds("retry cap ", self.cap),
            "jitter": _number("retry jitter", self.jitter, 0, 1, "a number from 0 to 1"),
        }
        for name, value in settled.items():
            msgspec.structs.force_setattr(self, name, value)

    def delay(self, failures: int, error: BaseException, chance: float) -> float | None:
        """Return the wait after this many failures; `chance` in [0, 1) shortens it."""
        try:
            wait = min(self.cap, self.first * self.factor ** (max(failures, 1) - 1))
        except OverflowError:
            wait = self.cap if self.first else 0.0
        return wait * (1 - self.jitter * chance)


Waits: TypeAlias = Delays | Exponential  # a policy that treats all errors the same


class ByError(msgspec.Struct, frozen=True, tag="by_error"):
    """One policy per error type: `ByError({ConnectionError: [1, 5], ValueError: None})`.

    A rule covers subclasses too; the most specific rule wins. None: no further attempt. Errors are
    matched by class name, because a policy is stored.
    """

    rules: dict[str, Waits | None]
    """Name of an error's class -> its policy. Given as types or names, policies or numbers."""
    otherwise: Waits | None = Exponential()
    """The policy for every other error."""

    if TYPE_CHECKING:

        def __init__(self, rules: Mapping[Any, Rule], otherwise: Rule = ...) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.rules, Mapping) or not self.rules:
            raise InvalidInput(
                f"retry rules={shown(self.rules)} is not a dict of error types to policies"
            )
        rules: dict[str, Waits | None] = {}
        for key, rule in self.rules.items():
            name = _error_name(key)
            if name in rules:
                raise InvalidInput(
                    f"retry has two rules for {name!r}: errors are matched by class name"
                )
            rules[name] = _waits(f"retry rule for {name}", rule)
        msgspec.structs.force_setattr(self, "rules", rules)
        msgspec.structs.force_setattr(self, "otherwise", _waits("retry otherwise", self.otherwise))

    def delay(self, failures: int, error: BaseException, chance: float) -> float | None:
        """Return the wait by this error's policy; None: no further attempt."""
        policy = self.otherwise
        for kind in type(error).__mro__:
            if kind.__name__ in self.rules:
                policy = self.rules[kind.__name__]
                break
        return None if policy is None else policy.delay(failures, error, chance)


Policy: TypeAlias = Delays | Exponential | ByError  # any retry policy

Rule: TypeAlias = Waits | Seconds | list[Seconds] | tuple[Seconds, ...] | None
"""The forms in which a rule of ByError can be given."""

RetryOption: TypeAlias = ByError | Rule | Mapping[Any, Rule]
"""What the option `retry` accepts; see `policy_of`."""


def policy_of(value: Any) -> Policy:
    """Return the policy for a value: a duration, a list of them, a dict of errors, or a policy."""
    if isinstance(value, Delays | Exponential | ByError):
        return value
    if isinstance(value, Mapping):
        return ByError(value)
    if isinstance(value, tuple | list):
        return Delays(tuple(value))
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        return Delays((value,))
    raise InvalidInput(
        f"retry={shown(value)} is not a number of seconds, a list of them, a dict of error types, "
        "Delays, Exponential or ByError"
    )


def as_dict(policy: Policy) -> dict[str, Any]:
    """Return a policy as a message stores it."""
    stored: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(policy))
    return stored


def from_dict(data: dict[str, Any]) -> Policy:
    """Return the policy stored in a message, or refuse it if it is invalid."""
    try:
        policy: Policy = msgspec.convert(data, Policy)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidInput(f"retry={shown(data)} is not a stored retry policy: {error}") from error
    return policy


def _waits(what: str, value: Any) -> Waits | None:
    if value is None:
        return None
    if isinstance(value, Mapping | ByError):
        raise InvalidInput(f"{what}: {shown(value)} is a dict of errors: rules cannot be nested")
    try:
        policy = policy_of(value)
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error}") from error
    return None if isinstance(policy, ByError) else policy  # never one: see above


def _error_name(key: Any) -> str:
    if isinstance(key, type) and issubclass(key, BaseException):
        key = key.__name__
    if not isinstance(key, str) or not key.isidentifier():
        raise InvalidInput(
            f"retry rules: {shown(key)} is not an exception type or the name of one "
            "(without its module)"
        )
    return key
