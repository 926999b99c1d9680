"""Every exception that mx-rmq raises.

MxRmqError
├── InvalidInput            a value breaks a rule; nothing was sent          (also a ValueError)
│   └── PayloadTooLarge     the payload is over the size limit
├── NotOpen                 the queue is not open, or was opened in another event loop
├── DecodeError             stored bytes are not a message; keeps the bytes
│   └── NewerRecord         … or one that only a newer release can read
├── DuplicateMessage        a produce with on_duplicate="error" whose id is taken
├── QueueFull               the topic's cap on waiting messages refused a produce
├── ServerUnavailable       the server did not take the call; nothing was changed
│   └── ServerFull          the server is at its maxmemory
├── OutcomeUnknown          the reply was lost and the deadline passed: done or not done
│   └── ProduceUnknown      … of a produce; repeating it with the same ids is safe
├── NotConfirmed            a produce is stored, but not replicated or fsynced as asked
├── PartlyProduced          a produce_many that failed halfway; says which ids are stored
├── ScriptFailed            the server ran a script and answered with an error
│   └── WrongType           a key of the topic has the wrong type
├── UnsafeServer            the preflight found a server that would lose messages
│   ├── MissingRights       … or a user whose missing rights would tear a script
│   └── NewerLayout         … or keys in the layout of a newer release
├── ResultTimeout           a message had not ended in time                  (also a TimeoutError)
├── ResultUnknown           nothing is known of a message whose result was asked for
├── MessageDied             … or it ended without a result: dead or quarantined
├── AlreadyDone             `delivery.once`: the work of this message is committed already
│   └── StaleDelivery       … by a newer delivery: this worker has lost its lease
├── WorkerBroken            a part of a worker could not be started, or kept dying
└── EmbeddedServerError     our own server did not start
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class MxRmqError(Exception):
    """The root of the tree."""


class InvalidInput(MxRmqError, ValueError):
    """A value breaks a rule. The text names the value and the rule."""


class PayloadTooLarge(InvalidInput):
    """The encoded payload is over the limit."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the payload is {size:,} bytes; the limit is {limit:,} (setting max_payload)"
        )
        self.size = size
        self.limit = limit


class NotOpen(MxRmqError):
    """The queue is not open here."""


class DecodeError(MxRmqError):
    """Stored bytes are not a message. `data` holds exactly what was stored."""

    def __init__(self, reason: str, data: bytes) -> None:
        super().__init__(reason)
        self.reason = reason
        self.data = data


class NewerRecord(DecodeError):
    """The record was written by a newer release. The message waits for a worker of that release."""


class DuplicateMessage(MxRmqError):
    """The id of a produce with `on_duplicate="error"` is taken. The message was not stored.

    `state` is where the message with this id is: pending, delayed, processing, dead, quarantined,
    or completed if it is gone and its dedup window is not over. `duplicates` has the state of every
    id that was taken: a `produce_many` stores all other messages, then raises.
    """

    def __init__(self, duplicates: Mapping[str, str]) -> None:
        self.duplicates = dict(duplicates)
        self.id, self.state = next(iter(self.duplicates.items()))
        more = len(self.duplicates) - 1
        others = f"; so {'is' if more == 1 else 'are'} {more:,} of the others" if more else ""
        super().__init__(f"id {self.id!r} is taken: its message is {self.state}{others}")


class QueueFull(MxRmqError):
    """The topic has `max_pending` messages waiting. The call stored nothing."""

    def __init__(self, topic: str, limit: int) -> None:
        super().__init__(
            f"topic {topic!r} may have {limit:,} messages waiting (setting max_pending) and "
            "is full: let workers catch up, then produce again"
        )
        self.topic = topic
        self.limit = limit


class ServerUnavailable(MxRmqError):
    """The server was not reached, or refused, until the deadline. Nothing was changed."""


class ServerFull(ServerUnavailable):
    """The server is at its maxmemory and refused to store more. Nothing was changed."""


class OutcomeUnknown(MxRmqError):
    """The call was sent, its reply was lost, and the deadline passed: done or not done."""


class ProduceUnknown(OutcomeUnknown):
    """A produce whose reply was lost. Producing again with these ids makes no second copy.

    This holds for ten minutes for generated ids, and for the dedup window for custom ids.
    """

    def __init__(self, reason: str, ids: Sequence[str]) -> None:
        super().__init__(reason)
        self.add_note("Produce again with the ids of this error: it makes no second copy.")
        self.ids = tuple(ids)


class NotConfirmed(MxRmqError):
    """Messages are stored, but were not confirmed in time as `confirm` asked for.

    `ids` are those messages, in the order given. They exist and will be handled. They can be lost
    only if the primary is lost now. To wait again, produce them again with these ids: it makes no
    second copy. `taken` says for each whether its id was taken before: the state of the message
    that has it, or empty.
    """

    def __init__(
        self, what: str, level: str, within: float, ids: Sequence[str], taken: Sequence[str] = ()
    ) -> None:
        stored = "the message is" if len(ids) == 1 else f"{len(ids):,} messages are"
        super().__init__(f"{stored} stored, but not {level} within {within:g} s: {what}")
        self.what = what
        self.level = level
        self.within = within
        self.ids = tuple(ids)
        self.taken = tuple(taken) or ("",) * len(self.ids)

    def of(self, ids: Sequence[str]) -> NotConfirmed:
        """Return the same error for other messages."""
        return NotConfirmed(self.what, self.level, self.within, ids)


class PartlyProduced(MxRmqError):
    """Some messages of a `produce_many` are stored and some are not; `__cause__` says why.

    `ids` are the stored ones. `places` are their positions in the call, from 0: the first ones in
    order, unless the topic has partitions and keys or custom ids choose them. `unconfirmed` are
    those of `ids` that were not confirmed as `confirm` asked for. `unknown` are the ids of the call
    that failed, if its reply was lost.
    """

    def __init__(
        self,
        reason: str,
        ids: Sequence[str],
        unknown: Sequence[str],
        total: int,
        *,
        places: Sequence[int] | None = None,
        unconfirmed: Sequence[str] = (),
    ) -> None:
        short = f" ({len(unconfirmed):,} of them not confirmed)" if unconfirmed else ""
        super().__init__(f"{len(ids):,} of {total:,} messages are stored{short}, then: {reason}")
        self.ids = tuple(ids)
        self.places = tuple(range(len(ids)) if places is None else places)
        self.unconfirmed = tuple(unconfirmed)
        self.unknown = tuple(unknown)


class ScriptFailed(MxRmqError):
    """The server answered a script call with an error that a retry cannot fix."""


class WrongType(ScriptFailed):
    """A key of the topic has the wrong type for the script. Nothing was changed."""


class UnsafeServer(MxRmqError):
    """The server's settings would lose messages. The text says why and what to do."""


class MissingRights(UnsafeServer):
    """The server's user may not run a command that a script needs."""


class NewerLayout(UnsafeServer):
    """A newer release has changed the layout of the keys under this prefix. Upgrade this one."""


class ResultTimeout(MxRmqError, TimeoutError):
    """A message had not ended within the `timeout` of `mq.result`. It is still handled."""

    def __init__(self, topic: str, id: str, timeout: float, *, away: bool = False) -> None:
        why = "; the server was unreachable" if away else ""
        super().__init__(
            f"message {id!r} of topic {topic!r} has no result after {timeout:g} s{why}"
        )
        self.topic = topic
        self.id = id
        self.timeout = timeout


class ResultUnknown(MxRmqError):
    """There is no result, and nothing else is known of the message. The text says why."""


class MessageDied(MxRmqError):
    """A message has no result: it is dead or quarantined. `error` is its last failure."""

    def __init__(self, topic: str, id: str, state: str, reason: str, error: str) -> None:
        super().__init__(f"message {id!r} of topic {topic!r} is {state}: {reason}")
        self.topic = topic
        self.id = id
        self.state = state
        self.reason = reason
        self.error = error


class AlreadyDone(MxRmqError):
    """`delivery.once` found that the work of this message is committed. Do not catch it: a handler
    that raises it has nothing left to do, so the message completes."""


class StaleDelivery(AlreadyDone):
    """A newer delivery of the message has committed its work. This worker has lost its lease, so
    the server refuses whatever it reports."""


class WorkerBroken(MxRmqError):
    """A part of the worker could not be started, or kept dying. The worker has stopped."""


class EmbeddedServerError(MxRmqError):
    """The embedded server did not start. The text quotes its log."""
