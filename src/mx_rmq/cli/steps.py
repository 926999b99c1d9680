"""What `show` prints about work in several steps, and what a message waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mx_rmq.cli.output import cut, named, say, when
from mx_rmq.core.message import State
from mx_rmq.core.text import count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mx_rmq.admin import MessageView, RelatedMessage, WaitView

SHOWN: Final = 10  # messages of a flow that get a line each
VALUE: Final = 200  # characters of a step's value


def print_steps(message: MessageView) -> None:
    """Print what a message waits for, what it has done, and who waits for it."""
    if message.wait is not None:
        _print_wait(message.wait)
    for name in message.signals:
        _fact("signal", f"{name}, has arrived")
    steps = message.steps
    if steps is None:
        return
    for step in steps.done:
        value = cut(step.content.decode("utf-8", "replace"), VALUE)
        _fact("step done", f"{step.name}: {value}")
    for name, end in steps.ends.items():
        _fact("sleep/wait", name if end is None else f"{name}, until {when(end)}")
    if steps.unsent:
        sends = f"{count(steps.unsent, 'more message')} of its flow"
        if message.state is State.DELAYED:
            sends += ": its producer is sending them; if it died, a worker does when this is due"
        _fact("carries", sends)
    if steps.after and message.wait is None:
        _print_messages("runs after", steps.after)
    if message.wait is not None and steps.on_dead == "wait":
        for one in message.wait.messages:
            if one.state in (State.DEAD, State.QUARANTINED):
                _fact("to go on", named(f"mx-rmq requeue {one.topic} {one.id}"))
                break
    if steps.after and steps.on_dead != "wait":
        does = {"run": "it runs without it", "die": "it dies, too"}[steps.on_dead]
        _fact("on dead", f"if a message that it waits for is dead, {does}")
    _print_messages("awaited by", steps.awaited_by)
    if steps.follow_ups is not None:
        _fact("returned", "its handler has returned and does not run again")
        _print_messages("follow-up", steps.follow_ups)


def _print_wait(wait: WaitView) -> None:
    _fact("since", when(wait.since))
    _fact("until", when(wait.until) or "as long as it takes")
    for name in wait.signals:
        _fact("waits for", f"signal {name}")
    _print_messages("waits for", wait.messages, count=wait.count - len(wait.signals), states=True)


def _print_messages(
    title: str,
    messages: Iterable[RelatedMessage],
    *,
    count: int | None = None,
    states: bool = False,
) -> None:
    listed = list(messages)
    total = len(listed) if count is None else count
    for one in listed[:SHOWN]:
        state = f", {one.state or 'gone'}" if states else ""
        _fact(title, f"message {one.id} of {one.topic or 'an unknown topic'}{state}")
    if total > SHOWN:
        _fact(title, f"{total - SHOWN:,} more")


def _fact(name: str, fact: Any) -> None:
    if fact:
        say(f"{name + ':':<13}{fact}")
