"""Checks of arguments that operators pass."""

from __future__ import annotations

from typing import Final

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import FAILED, LIVE, UNSTARTED, State

KNOWN: Final = 10  # names in the error about an unknown one


def state_named(state: State | str) -> State:
    """Return a state by its name."""
    try:
        return State(state)
    except ValueError:
        raise InvalidInput(f"state={state!r:.80} is not one of {', '.join(State)}") from None


def state_among(states: tuple[State, ...], state: State | str) -> State:
    """Return a state by its name; refuse one that is not among these."""
    chosen = state_named(state)
    if chosen not in states:
        act = {FAILED: "requeue, edit or discard", UNSTARTED: "cancel", LIVE: "abort"}[states]
        which = f"{', '.join(states[:-1])} or {states[-1]}"
        raise InvalidInput(f"state={chosen!s}: you can only {act} {which} messages")
    return chosen


def unknown(what: str, name: str, known: list[str], prefix: str) -> InvalidInput:
    """Return the error about a topic or schedule that does not exist."""
    more = ", …" if len(known) > KNOWN else ""
    return InvalidInput(
        f"no {what} {name!r} under the prefix {prefix!r}; "
        f"known {what}s ({len(known)}): {', '.join(known[:KNOWN])}{more}"
    )


def check_text(name: str, value: str) -> str:
    """Return a string; refuse anything else, which `name` introduces in the error."""
    if not isinstance(value, str):
        raise InvalidInput(f"{name}{value!r:.80} is not a string")
    return value
