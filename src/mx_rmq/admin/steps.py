"""What an operator sees of work in several steps: what is done, and what a message waits for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mx_rmq.core import steps as core_steps
from mx_rmq.core.partition import topic_of
from mx_rmq.core.text import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mx_rmq.core.message import Message, State
    from mx_rmq.core.steps import Planned, Prerequisite, Target
    from mx_rmq.store import Store

SHOWN: Final = 100  # things that a message waits for, and signals that have arrived, in one answer


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """A finished step."""

    name: str
    content: bytes = field(repr=False)  # its value as JSON

    @property
    def value(self) -> Any:
        """What the step returned."""
        return msgspec.json.decode(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedMessage:
    """A message that another one waits for, follows or tells."""

    topic: str  # empty: no topic has it
    id: str
    state: State | None = None  # None: it is gone, or was not looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsView:
    """The progress of a message whose work has more than one step."""

    done: tuple[StepView, ...] = ()
    ends: Mapping[str, float | None] = field(default_factory=dict)
    """Its sleeps and waits by name, and when each ends or ended; None: when the signal comes."""
    after: tuple[RelatedMessage, ...] = ()  # the messages of its flow that come before it
    on_dead: str = "wait"  # what it does if one of these is dead
    awaited_by: tuple[RelatedMessage, ...] = ()  # the messages that wait for it
    unsent: int = 0
    """How many messages of its flow only this record has. It is delayed for some seconds while its
    producer sends them; if that fails, the worker that gets it sends them first."""
    follow_ups: tuple[RelatedMessage, ...] | None = None
    """What is produced when it completes. Not None: its handler has returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitView:
    """What a message waits for. Lists do not say which; `admin.get` does, up to 100."""

    since: float | None
    until: float | None  # when it stops waiting; None: it waits as long as it takes
    signals: tuple[str, ...] = ()
    messages: tuple[RelatedMessage, ...] = ()
    count: int = 0  # of both together


def steps_view(message: Message) -> StepsView | None:
    """Return the steps of a message; None: its work is one handler call."""
    if not message.steps:
        return None
    steps = core_steps.read(message)
    return StepsView(
        done=tuple(StepView(name=name, content=bytes(raw)) for name, raw in steps.done.items()),
        ends={name: at / 1000 if at else None for name, at in steps.until.items()},
        after=_related(steps.after),
        on_dead=steps.on_dead,
        awaited_by=_related(steps.tell),
        unsent=len(steps.before),
        follow_ups=None if steps.then is None else tuple(map(_planned, steps.then)),
    )


def _related(others: Iterable[Prerequisite | Target]) -> tuple[RelatedMessage, ...]:
    return tuple(RelatedMessage(topic=topic_of(one.part), id=one.id) for one in others)


def _planned(one: Planned) -> RelatedMessage:
    return RelatedMessage(topic=one.message.topic, id=one.message.id)


async def read_wait(
    store: Store, part: str, id: str, wait: WaitView, steps: StepsView | None
) -> WaitView:
    """Return what a message waits for, and the states of the messages among it.

    The messages come in the order of its `after`: the server has them in the order of their names.
    """
    awaited = await store.views.waits.awaited(part, id, core_steps.MAX_AFTER)
    place = {(one.topic, one.id): n for n, one in enumerate(steps.after if steps else ())}

    def order(name: str) -> int:
        source = core_steps.source_of(name)
        return place.get((topic_of(source.part), source.id), 0)

    names = sorted(filter(core_steps.is_child, awaited.names), key=order)
    messages = await with_states(store, names[:SHOWN])
    signals = tuple(one for one in awaited.names if not core_steps.is_child(one))[:SHOWN]
    return replace(wait, signals=signals, messages=tuple(messages), count=awaited.total)


async def with_states(store: Store, names: Iterable[str]) -> list[RelatedMessage]:
    """Return the messages that send these signals, with their states."""
    sources = list(map(core_steps.source_of, names))
    by_part: defaultdict[str, list[str]] = defaultdict(list)
    for source in sources:
        by_part[source.part].append(source.id)
    states: dict[tuple[str, str], State] = {}
    for part, ids in by_part.items():
        answers = await store.read_status(part, ids) if part else [None] * len(ids)
        for id, status in zip(ids, answers, strict=True):
            if status is not None:
                states[part, id] = status.state
    return [
        RelatedMessage(topic=topic_of(part), id=id, state=states.get((part, id)))
        for part, id, _ in map(msgspec.structs.astuple, sources)
    ]


def what_it_awaits(steps: StepsView | None, wait: WaitView) -> str:
    """Say in a few words what a message waits for."""
    if wait.signals and not wait.messages:
        return "signal " + ", ".join(wait.signals)
    if wait.messages:
        first = wait.messages[0]
        of = f" of {len(steps.after):,}" if steps is not None else ""
        return f"{wait.count:,}{of} messages, the first: {first.id} of {first.topic}"
    if steps is not None and steps.ends:  # not read: the latest one is what its handler waits for
        return f"signal {[*steps.ends][-1]}"
    return count(len(steps.after), "message") if steps is not None and steps.after else ""
