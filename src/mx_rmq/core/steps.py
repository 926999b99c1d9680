"""What the record of a message carries if its work has more than one step.

A message gets `Steps` when it is part of a flow, or when its handler notes a step, sleeps, waits
for a signal or produces follow-ups. Older releases cannot handle such a message, so its record has
format 2. Releases before 2.0 quarantine it; a requeue brings it back with its steps.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, Literal, get_args

import msgspec

from mx_rmq.core.errors import DecodeError, InvalidInput
from mx_rmq.core.message import WITH_STEPS, Message
from mx_rmq.core.text import shown

OnDead = Literal["wait", "run", "die"]
ON_DEAD: Final = get_args(OnDead)

MAX_AFTER: Final = 2000  # messages that one message may wait for
MAX_FLOW: Final = 10_000  # messages of one flow
MAX_FLOW_BYTES: Final = 16 * 1_048_576  # of all records of a flow, or all follow-ups of a message
MAX_FOLLOW_UPS: Final = 1000  # messages that one handler call may produce
MAX_NAME: Final = 128  # characters of the name of a step or a signal
ALL_STEPS: Final = 4  # all values of a message may take this many times `max_payload`

FOLLOW_UP_WINDOW: Final = 600_000
"""Milliseconds for which the id of a follow-up stays taken after it was produced. If a worker dies
right after it has produced them, the next one does so again within this time."""

_CHILD: Final = "\x01"  # begins the names of signals from messages, which no caller can send
_DEAD: Final = " dead"  # ends those that report a death


NOTHING: Final = msgspec.Raw()


class Target(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that waits for this one."""

    part: str  # its partition
    id: str
    on_dead: str = "wait"


class Prerequisite(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that this one waits for."""

    part: str  # empty: no topic has it, so it has completed
    id: str
    told: bool = True
    """Whether it is sure to know that we wait, and to send a signal when it completes. A message
    produced outside the flow is not, and a custom id may belong to an older message: the worker has
    to check."""

    @property
    def signal(self) -> str:
        """The name of the signal that its completion sends."""
        return f"{_CHILD}{self.part} {self.id}"

    @property
    def death(self) -> str:
        """The name of the signal that its death sends to those who then die, too.

        Another name: if it is requeued and completes, its own signal still comes.
        """
        return f"{self.signal}{_DEAD}"


def is_child(signal: str) -> bool:
    """Return whether a signal comes from a message that completes, not from a caller."""
    return signal.startswith(_CHILD)


def source_of(signal: str) -> Prerequisite:
    """Return the message that sends a signal: see `is_child`."""
    part, _, id = signal.removeprefix(_CHILD).removesuffix(_DEAD).partition(" ")
    return Prerequisite(part, id)


class Planned(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message to produce, and the partition that was chosen for it."""

    part: str
    message: Message


class Steps(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """The progress of a message whose work has more than one step."""

    done: dict[str, msgspec.Raw] = {}
    """Finished steps and their values."""
    until: dict[str, int] = {}
    """When sleeps and waits end, server time in ms."""
    late: list[str] = []
    """Waits that timed out before a step was noted or another wait began. A signal that comes later
    does not count: the handler must not take both branches."""
    after: list[Prerequisite] = []
    """What it waits for before it runs."""
    head: Prerequisite | None = None
    """The head of its flow. While it carries other messages, some of `after` may not exist yet."""
    on_dead: str = "wait"
    """What it does if one of these is dead."""
    tell: list[Target] = []
    """Who waits for it."""
    before: list[Planned] = []
    """The rest of its flow, which its first worker produces before anything else."""
    then: list[Planned] | None = None
    """Its follow-ups. Not None: its handler has returned and never runs again."""
    result: msgspec.Raw = NOTHING
    """What the handler has returned, if that is needed after it."""


NO_STEPS: Final = Steps()

_decoder: Final = msgspec.json.Decoder(Steps)
_encoder: Final = msgspec.json.Encoder()


def read(message: Message) -> Steps:
    """Return the steps of a message."""
    if not message.steps:
        return NO_STEPS
    try:
        return _decoder.decode(message.steps)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"the steps of the message: {error}", bytes(message.steps)) from error


def write(message: Message, steps: Steps) -> Message:
    """Return the message with other steps."""
    return msgspec.structs.replace(message, v=WITH_STEPS, steps=msgspec.Raw(_encoder.encode(steps)))


def has_returned(message: Message) -> bool:
    """Return whether the handler of a message has returned, and never runs again."""
    try:
        return bool(message.steps) and read(message).then is not None
    except DecodeError:
        return False


def check_name(what: str, name: Any) -> str:
    """Refuse a name of a step or a signal that could not be kept."""
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable():
        return name
    raise InvalidInput(f"{what} {shown(name)} is not a name: 1 to {MAX_NAME} printable characters")


def follow_up_id(topic: str, message: Message, number: int) -> str:
    """Return the id of a follow-up: the same whenever the handler runs, and no other message's.

    `topic`: the handler's, with its subscription.
    """
    name = f"{topic}:{message.id}:{message.created_at:x}+{number}"
    if len(name) <= 128:
        return name
    digest = blake2b(name.encode(), digest_size=20).hexdigest()
    return f"{digest}+{number}"
