"""A flow: messages that wait for other messages, produced together or not at all.

One message, the head, carries all the others in its record, so one call stores the whole flow. At
first the head is delayed. Meanwhile the others are produced, those that wait before those that they
wait for: then no message can tell another one that does not exist yet. Then the head is released,
without the others in its record. If the caller dies on the way, the head becomes due, and the
worker that gets it produces the others.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from msgspec.structs import replace

from mx_rmq.core import codec
from mx_rmq.core import steps as core_steps
from mx_rmq.core.errors import InvalidInput, MxRmqError, ScriptFailed
from mx_rmq.core.middleware import as_sent
from mx_rmq.core.names import check_id, check_topic
from mx_rmq.core.outgoing import Outgoing, ProduceOptions
from mx_rmq.core.partition import base_topic, subscription_of, topic_of
from mx_rmq.core.steps import (
    MAX_AFTER,
    MAX_FLOW,
    MAX_FLOW_BYTES,
    ON_DEAD,
    OnDead,
    Planned,
    Prerequisite,
    Steps,
    Target,
)
from mx_rmq.core.text import shown
from mx_rmq.runtime.follow_ups import FollowUps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mx_rmq.admin import Admin
    from mx_rmq.core.message import Message
    from mx_rmq.core.middleware import Middleware
    from mx_rmq.store import Store

HEAD_START: Final = 5000
"""Milliseconds that the caller has to produce the other messages, before a worker does. Less if the
head would expire before."""

Earlier = str | tuple[str, str]
"""A message to wait for: its id, or topic and id."""


@dataclass(slots=True, eq=False)
class _Member:
    """A message of a flow."""

    outgoing: Outgoing
    message: Message
    after: list[Earlier]
    on_dead: OnDead
    own_id: bool  # the caller gave the id
    part: str = ""
    sources: list[Prerequisite] = field(default_factory=list)
    tell: list[Target] = field(default_factory=list)


class Flow:
    """Collects messages; they are sent when the `async with` block ends without an exception."""

    def __init__(self, store: Store, admin: Admin, middleware: Sequence[Middleware] = ()) -> None:
        self._store = store
        self._admin = admin
        self._middleware = middleware
        self._name = f"f{secrets.token_hex(6)}"
        self._members: list[_Member] = []
        self._begun = self._ended = False

    def produce(
        self,
        topic: str,
        payload: Any,
        *,
        after: Iterable[Earlier] = (),
        on_dead: OnDead = "wait",
        id: str | None = None,
        key: str | None = None,
        **options: Unpack[ProduceOptions],
    ) -> str:
        """Add a message and return its id. Not awaited: it is sent when the block ends.

        With `after`, it waits until these messages have completed, of this flow or not; then
        `delivery.results` has what they returned. `on_dead` says what it does if one of them is
        dead: `wait` until that one is requeued and completes, `run` without its result, or `die`.
        """
        if self._ended:
            raise InvalidInput("the flow has ended: produce inside its `async with` block")
        if not self._begun:
            raise InvalidInput("the flow has not begun: write `async with mq.flow() as flow:`")
        check_topic(topic)
        if on_dead not in ON_DEAD:
            raise InvalidInput(f"on_dead={shown(on_dead)} is not one of {', '.join(ON_DEAD)}")
        for name in ("on_duplicate", "dedup", "confirm"):
            if name in options:
                raise InvalidInput(f"{name}: a message of a flow does not take this option")
        if len(self._members) >= MAX_FLOW:
            raise InvalidInput(f"a flow has at most {MAX_FLOW:,} messages")
        sources = _listed(after)
        made = id or f"{self._name}+{len(self._members) + 1}"
        outgoing = Outgoing.of(topic, payload, options, id=made, key=key)
        message = outgoing.message(self._store.limits.max_payload)
        if any(one.message.topic == topic and one.message.id == made for one in self._members):
            raise InvalidInput(f"the flow already has a message {made!r} in topic {topic!r}")
        if self._middleware:
            outgoing = outgoing.copy()
        self._members.append(_Member(outgoing, message, sources, on_dead, own_id=id is not None))
        return made

    async def __aenter__(self) -> Self:
        self._begun = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended = True
        if kind is None and self._members:
            await self._send()

    async def _send(self) -> None:
        follow_ups = FollowUps(self._store, worker="")
        members = self._members
        if self._middleware:
            await self._pass_to_middleware()
        planned = await follow_ups.plan(member.message for member in members)
        for member, plan in zip(members, planned, strict=True):
            member.part, member.message = plan.part, plan.message
        for place, member in enumerate(members):
            for earlier in member.after:
                await self._link(place, member, earlier)
        linked = {member.part for member in members if member.tell or member.sources}
        awaited = {source.part for member in members for source in member.sources if source.part}
        for part in linked | awaited:
            await self._refuse_copies(part)
        head = _head(members)
        at_head = Prerequisite(head.part, head.message.id)
        rest = [
            Planned(member.part, _with_links(member, at_head))
            for member in reversed(members)
            if member is not head
        ]
        message = _with_links(head, at_head)
        if rest:
            before = [_after_delay(one, head.message.delay) for one in rest]
            message = core_steps.write(message, replace(core_steps.read(message), before=before))
        if len(message.steps) > MAX_FLOW_BYTES:
            raise InvalidInput(
                f"the flow takes {len(message.steps):,} bytes; the limit is {MAX_FLOW_BYTES:,}"
            )
        if not rest:
            await follow_ups.produce([Planned(head.part, message)], limited=True)
            return
        most = HEAD_START if message.ttl is None else min(HEAD_START, message.ttl // 2)
        delay = max(message.delay, most)
        held_back = message if message.due is not None else replace(message, delay=delay)
        if not await follow_ups.produce([Planned(head.part, held_back)], limited=True):
            return  # its id is taken: the flow was sent before
        with suppress(MxRmqError):  # else a worker does the rest, when the head is due
            await follow_ups.produce(rest)
            await self._release(head)

    async def _pass_to_middleware(self) -> None:
        given = [member.outgoing for member in self._members]
        sent = await as_sent(self._middleware, given)
        if [one.id for one in sent] != [one.id for one in given]:
            raise InvalidInput("middleware must pass on every message of a flow, under its id")
        for member, outgoing in zip(self._members, sent, strict=True):
            member.message = outgoing.message(self._store.limits.max_payload)

    async def _release(self, head: _Member) -> None:
        """Let the head run: all other messages exist."""
        part, id = head.part, head.message.id
        seen = await self._store.views.record(part, id)
        if seen is None:
            return
        message = codec.decode(seen, topic_of(part), id)
        released = core_steps.write(message, replace(core_steps.read(message), before=[]))
        due = head.message.due
        if due is None:
            due = message.created_at + head.message.delay
        await self._store.reschedule_message(part, message=released, seen=seen, at=due)

    async def _refuse_copies(self, part: str) -> None:
        """Refuse links to and from messages that are copied: each copy is a message by itself."""
        with suppress(ScriptFailed):  # a producer without the right to look
            topic = topic_of(part)
            if subscription_of(topic) or await self._store.subscriptions(part):
                raise InvalidInput(
                    f"topic {base_topic(topic)!r} has subscriptions, so its messages are handled "
                    "several times: in a flow they cannot wait for others, or others for them"
                )

    async def _link(self, place: int, member: _Member, earlier: Earlier) -> None:
        """Let a message wait for another one, of this flow or not."""
        topic, id = earlier if isinstance(earlier, tuple) else (None, earlier)
        own = [
            (number, one)
            for number, one in enumerate(self._members)
            if one.message.id == id and topic in (None, one.outgoing.topic)
        ]
        if len(own) > 1:
            raise InvalidInput(f"after={id!r}: two messages have this id; pass (topic, id)")
        if own:
            number, source = own[0]
            if number >= place:
                raise InvalidInput(
                    f"after={id!r}: produce this message before {member.message.id!r}, "
                    "which waits for it"
                )
            # A custom id may belong to an older message, which does not know of this flow.
            member.sources.append(Prerequisite(source.part, id, told=not source.own_id))
            source.tell.append(Target(member.part, member.message.id, member.on_dead))
            return
        if topic is None:
            found = await self._admin.find(id)
            if len(found) > 1:
                where = ", ".join(one.topic for one in found)
                raise InvalidInput(f"after={id!r}: {where} have this id; pass (topic, id)")
            topic = found[0].topic if found else None
        part = "" if topic is None else await self._admin.partition_of(topic, id)
        member.sources.append(Prerequisite(part, id, told=False))


def _listed(after: Iterable[Earlier]) -> list[Earlier]:
    """Check what a message waits for."""
    if isinstance(after, str):
        raise InvalidInput(f"after={after!r:.80} is not a list: pass [id]")
    listed = list(after)
    if len(listed) > MAX_AFTER:
        raise InvalidInput(f"after has {len(listed):,} messages; the limit is {MAX_AFTER:,}")
    for one in listed:
        if isinstance(one, tuple) and len(one) == 2:
            check_topic(one[0])
            check_id(one[1])
        elif isinstance(one, str):
            check_id(one)
        else:
            raise InvalidInput(f"after contains {shown(one)}, which is no id and no (topic, id)")
    if len(set(listed)) != len(listed):
        raise InvalidInput("after names a message twice")
    return listed


def _head(members: list[_Member]) -> _Member:
    """Choose the message that carries the others.

    It should be due first. One with a custom id is best: a flow that is sent twice then runs once.
    """

    def rank(member: _Member) -> tuple[int, int, bool]:
        message = member.message
        return message.due or 0, message.delay, not member.own_id

    return min(members, key=rank)


def _after_delay(one: Planned, passed: int) -> Planned:
    """Return a message as the worker that gets the head produces it: `passed` ms later."""
    if not one.message.delay:
        return one
    delay = max(0, one.message.delay - passed)
    return Planned(one.part, replace(one.message, delay=delay))


def _with_links(member: _Member, head: Prerequisite) -> Message:
    if not member.sources and not member.tell:
        return member.message
    steps = Steps(
        after=member.sources,
        head=head if member.sources else None,
        on_dead=member.on_dead,
        tell=member.tell,
    )
    return core_steps.write(member.message, steps)
