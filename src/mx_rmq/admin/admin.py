"""`mq.admin`: what operators read and change in a queue.

The command line and the dashboard use nothing else. A topic with several partitions is one topic
here. Durations are seconds or timedeltas; times are seconds since 1970, by the server's clock.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.admin.actions import Actions, readable
from mx_rmq.admin.arguments import check_text, state_among, state_named, unknown
from mx_rmq.admin.bulk import Bulk
from mx_rmq.admin.fanout import ask_all, ask_for
from mx_rmq.admin.filter import Filter, times
from mx_rmq.admin.history import follow, happening
from mx_rmq.admin.keys import read_key, read_keys
from mx_rmq.admin.limits import read_limits
from mx_rmq.admin.listing import LOOK, read_page
from mx_rmq.admin.models import (
    Cancelled,
    MessageView,
    Page,
    Repair,
    WorkerView,
    message_view,
    worker_view,
)
from mx_rmq.admin.schedules import ScheduleActions
from mx_rmq.admin.set_limits import Limiter
from mx_rmq.admin.stats import (
    MOST,
    Overview,
    Stats,
    ask_topics,
    count_between,
    count_topic,
    measure_rates,
)
from mx_rmq.admin.steps import SHOWN, read_wait
from mx_rmq.admin.stuck_waits import StuckWait, find_stuck_waits
from mx_rmq.admin.subscriptions import (
    SubscriptionView,
    read_subscriptions,
    remove_subscription,
)
from mx_rmq.core.codec import encode_payload
from mx_rmq.core.durations import SHORTEST, Seconds, as_seconds
from mx_rmq.core.errors import InvalidInput, WrongType
from mx_rmq.core.message import FAILED, LIVE, UNSTARTED, State
from mx_rmq.core.names import (
    LISTED,
    check_id,
    check_key,
    check_listed,
    check_subscription,
    check_topic,
)
from mx_rmq.core.outgoing import new_due_time
from mx_rmq.core.partition import check_partitions, partitions, subscription_of
from mx_rmq.core.status import ProgressNote
from mx_rmq.core.steps import check_name
from mx_rmq.store.audit import Violation
from mx_rmq.store.operator_calls import KEEP, Keep
from mx_rmq.store.results import Signal, Signalled
from mx_rmq.store.worker_calls import MAX_SIGNALS

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncIterator, Collection, Sequence
    from datetime import datetime, tzinfo
    from typing import Literal, Unpack

    from mx_rmq.admin.bulk import Act, BulkOptions, CanAct
    from mx_rmq.admin.history import Happening
    from mx_rmq.admin.keys import KeyList, KeyView
    from mx_rmq.admin.limits import LimitsView
    from mx_rmq.admin.schedules import ScheduleView
    from mx_rmq.admin.stats import Rates
    from mx_rmq.core.cron import Missed
    from mx_rmq.core.limits import Rate
    from mx_rmq.core.schedule import ScheduleOptions
    from mx_rmq.store import Store
    from mx_rmq.store.history import HistoryEntry
    from mx_rmq.store.messages import Found
    from mx_rmq.store.reads import ServerView

LONGEST_RATES: Final = 60.0  # maximum seconds for measuring rates


class Admin:
    """Everything an operator asks of a queue.

    A topic that was never produced to is refused with InvalidInput, so that a typo is not
    mistaken for an empty queue.
    """

    def __init__(self, store: Store, *, operator: str = "") -> None:
        self._store = store
        self._pages = store.views.pages
        self._actions = Actions(store, operator)
        self._limiter = Limiter(store, self._parts, by=operator)
        self._schedules = ScheduleActions(store, by=operator)

    def as_operator(self, name: str) -> Admin:
        """Return the same admin under this name, which the history shows beside its actions."""
        return Admin(self._store, operator=name)

    # topics and servers

    async def topics(self) -> builtins.list[str]:
        """Return every topic that was ever produced to, and every subscription, sorted."""
        return [name for name in await self._store.views.topics() if LISTED.fullmatch(name)]

    async def check_topic(self, topic: str) -> None:
        """Refuse a topic that was never produced to."""
        await self._parts(topic)

    async def _parts(self, topic: str) -> builtins.list[str]:
        """Return the current partitions of a topic; refuse an unknown topic."""
        if count := await self._store.views.partitions(check_listed(topic)):
            return partitions(topic, count)
        raise unknown("topic", topic, await self.topics(), self._store.keys.prefix)

    async def stats(self, topic: str) -> Stats:
        """Return how many messages of a topic are in each state, and how long they have waited."""
        return await count_topic(self._store, topic, await self._parts(topic))

    async def overview(
        self,
        *topics: str,
        most: int | None = MOST,
        first: Collection[str] = (),
        each: Seconds | None = None,
        within: Seconds | None = None,
    ) -> Overview[Stats]:
        """Return the stats of these topics, or of all; one that cannot be reached hides no other.

        If there are more than `most`, those in `first` are asked, then the first ones by name.
        `each` limits the time for one answer, `within` the time for all.
        """
        each = None if each is None else as_seconds("each=", each)
        within = None if within is None else as_seconds("within=", within)
        began = time.monotonic()
        async with asyncio.timeout(within):
            names = list(dict.fromkeys(topics)) or await self.topics()
        left = None if within is None else within - (time.monotonic() - began)
        found = await ask_topics(names, self.stats, most=most, first=first, each=each, within=left)
        for error in found.away.values() if topics else ():
            if isinstance(error, InvalidInput):  # a typo
                raise error
        return found

    async def rates(self, *topics: str, over: Seconds = 1.0) -> dict[str, Rates]:
        """Return how fast messages come and go, measured over a while; by default of all topics."""
        over = as_seconds("over=", over, SHORTEST, LONGEST_RATES)
        return await measure_rates(topics or await self.topics(), self.stats, over)

    async def now(self) -> float:
        """Return the server's time, which everything here uses."""
        return await self._store.views.now() / 1000

    async def workers(self) -> builtins.list[WorkerView]:
        """Return every worker that was seen recently, including silent ones."""
        return [worker_view(one) for one in await self._store.views.workers()]

    async def servers(self) -> builtins.list[ServerView]:
        """Return how full each server is, and whether it persists data.

        A server that is away is left out. Needs the right to run INFO.
        """
        return await self._store.views.servers()

    async def pause(
        self,
        topic: str,
        key: str | None = None,
        *,
        seconds: Seconds | None = None,
        reason: str = "",
    ) -> bool:
        """Let no message of a topic, or of one of its keys, start; return whether that changed
        anything.

        For this many seconds, or until it is resumed. Messages in processing are not affected.
        """
        check_text("reason=", reason)
        if key is not None:
            return await self._limiter.pause(topic, check_key(key), seconds, reason)
        return await self._limiter.pause_topic(topic, seconds, reason)

    async def resume(self, topic: str, key: str | None = None) -> bool:
        """Let the messages of a topic, or of one of its keys, start again; return whether that
        changed anything."""
        if key is not None:
            return await self._limiter.resume(topic, check_key(key))
        return await self._limiter.resume_topic(topic)

    async def limit(
        self,
        topic: str,
        key: str | None = None,
        *,
        running: int | Keep | None = KEEP,
        rate: Rate | str | Keep | None = KEEP,
        weight: float | Keep | None = KEEP,
    ) -> None:
        """Change the limits of a topic, or of one of its keys, at once.

        Only what is given is changed. It overrides what the handler declares; None restores that.
        `running=0`: nothing starts. `rate` is "50/s", "100/m", "1000/h" or a Rate. `weight`, only
        with a key: how many turns it gets for each turn of the others, 1 unless set. The limits of
        a topic are shared out over its partitions, with at least 1 running in each.
        """
        key = None if key is None else check_key(key)
        given = {"running": running, "rate": rate, "weight": weight}
        await self._limiter.limit(topic, key, given)

    async def limits(self, topic: str, key: str | None = None) -> LimitsView:
        """Return the limits of a topic: what its handler declares, and what operators have set.

        With a key, `LimitsView.keys` has only what is set for this key, if anything is.
        """
        key = None if key is None else check_key(key)
        return await read_limits(self._store, topic, await self._parts(topic), key)

    async def keys(self, topic: str, *, limit: int = 20) -> KeyList:
        """Return up to `limit` (1 to 200) keys of a topic, those with the most waiting first.

        Keys with their own limits come next, if there is room. If more than 1,000 messages have a
        key, the busiest keys are found in a random sample of 1,000. `KeyList.partial` says whether
        keys that wait are left out.
        """
        return await read_keys(self._store, topic, await self._parts(topic), limit)

    async def key(self, topic: str, key: str) -> KeyView:
        """Return the line of one key, even if it is empty."""
        return await read_key(self._store, topic, await self._parts(topic), check_key(key))

    async def grow(self, topic: str, partitions: int) -> int:
        """Grow a topic to this many partitions; return how many it has now. It never shrinks.

        Producers use the new ones within ten seconds, and running workers serve them within
        fifteen. A paused topic stays paused. Limits that were set are shared out again.
        """
        wanted = check_partitions(partitions)
        parts = await self._parts(topic)
        if subscription_of(topic) is not None:
            raise InvalidInput(
                f"subscription {topic!r} has as many partitions as its topic: grow that instead"
            )
        if wanted < len(parts):
            raise InvalidInput(
                f"topic {topic!r} has {len(parts)} partitions and cannot have {wanted}: "
                "the messages in the others would be lost"
            )
        await self._store.grow(topic, wanted, by=self._actions.by)
        return self._store.partitions[topic]

    async def subscriptions(self, topic: str) -> builtins.list[SubscriptionView]:
        """Return the subscriptions of a topic, and how far each is behind."""
        await self._parts(check_topic(topic))
        return await read_subscriptions(self._store, topic, self.stats)

    async def unsubscribe(
        self, topic: str, name: str, *, waiting: Literal["dead", "drop"] = "dead"
    ) -> int:
        """End a subscription: it gets no more copies. Return how many messages waited in it.

        They become dead letters with the reason `unsubscribed`, or are dropped. Running messages
        may finish. If the call is interrupted, repeat it. First stop the workers that have the
        subscription: one that starts later declares it again.
        """
        if waiting not in ("dead", "drop"):
            raise InvalidInput(f'waiting={waiting!r:.80} is neither "dead" nor "drop"')
        await self._parts(check_topic(topic))
        copies = f"{topic}@{check_subscription(name)}"
        await remove_subscription(self._store, topic, name, by=self._actions.by)
        if not await self._store.views.partitions(copies):
            return 0  # there never was one

        async def act(part: str, found: Found) -> object:
            if waiting == "drop":
                return await self._actions.cancel(part, found.id)
            return await self._actions.dead_letter(part, found.id, "unsubscribed")

        can_act = readable if waiting == "dead" else None
        done = 0
        while some := sum(
            [await self._bulk(copies, state, act, {}, can_act=can_act) for state in UNSTARTED]
        ):
            done += some  # again: what ran may wait for its next attempt now
        return done

    async def audit(self, topic: str) -> builtins.list[Violation]:
        """Return every message that is not in exactly one state; an empty list: all is well.

        A message that waits for one that is gone is reported, too. One partition is read at a time,
        because what was read is kept in memory.
        """
        found: builtins.list[Violation] = []
        for part in await self._parts(topic):
            found += await self._store.audit.topic(part)
            found += [
                Violation(part, one.id, f"it {one}; cancel or abort it")
                for one in await self._lost_waits(part)
            ]
        return found

    async def _lost_waits(self, part: str) -> builtins.list[StuckWait]:
        try:
            return [one for one in await find_stuck_waits(self._store, part, None) if one.is_lost]
        except WrongType:  # the audit has reported it
            return []

    async def stuck_waits(self, topic: str, *, most: int | None = 1000) -> builtins.list[StuckWait]:
        """Return messages that wait for gone or dead ones, and need an operator to go on.

        Only messages that have waited for at least a minute are checked; in each partition, at most
        the `most` that have waited longest.
        """
        found = await ask_all(
            await self._parts(topic), lambda part: find_stuck_waits(self._store, part, most)
        )
        return [one for some in found for one in some]

    async def repair(self, topic: str, *, dry_run: bool = False) -> builtins.list[Repair]:
        """Fix what `audit` finds; return what was done. `dry_run`: what would be done.

        Each repair checks again on the server, atomically, so it is safe under live traffic.
        No message is lost: one with a record stays alive, one with an archived copy stays archived.
        A key of a wrong type is left alone: its data is not ours. So is a message that waits for
        one that is gone: only you know whether it is still needed.
        """
        done: builtins.list[Repair] = []
        for part in await self._parts(topic):
            done += await self._actions.repair(part, dry_run=dry_run)
            done += [
                Repair(part, one.id, f"not repaired: it {one}. Cancel or abort it")
                for one in await self._lost_waits(part)
            ]
        return done

    # schedules

    async def schedule(
        self,
        name: str,
        topic: str,
        expression: str,
        payload: Any = None,
        *,
        tz: str | tzinfo = "UTC",
        missed: Missed | str = "skip",
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleView:
        """Produce this payload at every tick of a cron expression, once across all workers.

        It replaces the schedule of the same name. If expression, time zone and `missed` are the
        same as before, its ticks go on as they were; else only ticks after now fire. A paused
        schedule stays paused. Running workers, whatever they serve, know it within 2 s.
        """
        return await self._schedules.schedule(
            name, topic, expression, payload, tz=tz, missed=missed, options=options
        )

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule; return whether there was one. Once this returns, it does not fire.

        InvalidInput: it is a cron that is declared in code. You can pause it.
        """
        return await self._schedules.unschedule(name)

    async def schedules(self) -> builtins.list[ScheduleView]:
        """Return every schedule, sorted by name.

        A cron that is declared in code has the name of its topic. It is listed for a day after a
        worker last declared it.
        """
        return await self._schedules.all()

    async def get_schedule(self, name: str) -> ScheduleView:
        """Return one schedule, or the cron of a topic."""
        return await self._schedules.get(name)

    async def pause_schedule(self, name: str, reason: str = "") -> bool:
        """Stop a schedule, or the cron of a topic, from firing; return whether that changed
        anything."""
        return await self._schedules.pause(name, reason)

    async def resume_schedule(self, name: str) -> bool:
        """Let a schedule fire again; return whether it was paused. Ticks up to now are skipped."""
        return await self._schedules.resume(name)

    async def run_schedule(self, name: str) -> str:
        """Produce the message of a schedule now, and return its id. The next tick stays as it is.

        This also works while it is paused. The header `cron-tick` has the time of this call.
        """
        return await self._schedules.run(name)

    # reading messages

    async def count(
        self,
        topic: str,
        state: State | str,
        *,
        since: float | None = None,
        until: float | None = None,
    ) -> int:
        """Count the messages of a state between two times, without reading them.

        The times mean the same as in a Filter. Pending messages have none: all are counted.
        """
        chosen = state_named(state)
        low, high = times(Filter(since=since, until=until), chosen)
        return await count_between(self._store, await self._parts(topic), chosen, low, high)

    async def get(self, topic: str, id: str) -> MessageView | None:
        """Return one message, in any state; None: it is finished or never existed."""
        parts = await self._parts(topic)
        found = await ask_for(id, parts, lambda part: self._pages.find(part, id))
        if found is None:
            return None
        part, view = found[0], message_view(*found)
        if view.state is State.PROCESSING:
            (now,) = await self._store.read_status(part, [id], with_progress=True)
            if now is not None:
                report = ProgressNote.read(now.progress, now.lease)
                view = replace(view, progress=report.share, note=report.note)
        if view.wait is not None:
            wait = await read_wait(self._store, part, id, view.wait, view.steps)
            view = replace(view, wait=wait)
        if view.state in LIVE:
            signals = await self._store.views.waits.signals(part, id, SHOWN)
            view = replace(view, signals=tuple(signals))
        return view

    async def find(self, id: str) -> builtins.list[MessageView]:
        """Return the message with this id from every topic that has one."""
        check_text("message id ", id)
        found = await ask_all(await self.topics(), lambda topic: self.get(topic, id))
        return [one for one in found if one is not None]

    async def list(
        self,
        topic: str,
        state: State | str,
        *,
        filter: Filter | None = None,
        limit: int = 100,
        cursor: str | None = None,
        look: int = LOOK,
    ) -> Page:
        """Return up to `limit` (1 to 1,000) messages of a state, from where the last page ended.

        Pending ones come in dispatch order: high, normal, low; within each the first of every
        partition, then the second ones. Those with a key come last, line by line. Delayed ones come
        by due time, waiting ones by how long they have waited, those in processing by the deadline
        of their lease, dead and quarantined ones newest first. A cursor is a position: a message
        that moves between two calls may be on both pages or on neither. Partitions added meanwhile
        are on later pages. A page also ends after 8 MiB of messages.

        With a filter, one call reads at most about `look` messages (5,000) or 4 MiB. `Page.looked`
        says how many; the cursor continues after them.
        """
        chosen = state_named(state)
        parts = await self._parts(topic)
        return await read_page(
            self._pages, parts, chosen, filter=filter, limit=limit, cursor=cursor, look=look
        )

    async def history(self, topic: str, id: str) -> builtins.list[Happening]:
        """Return what has happened to a message, oldest first, also after it is finished.

        As far back as the topic's history goes: see `history_begins`.
        """

        async def find(part: str) -> builtins.list[HistoryEntry] | None:
            return await self._store.views.history.of(part, id) or None

        part, entries = await ask_for(id, await self._parts(topic), find) or ("", [])
        return [seen for entry in entries if (seen := happening(part, entry))]

    async def history_begins(self, topic: str) -> float | None:
        """Return when the oldest entry of a topic's history was written; None: it has none.

        The settings `history`, `history_ttl` and `history_max_bytes` limit it.
        """
        found = await ask_all(await self._parts(topic), self._store.views.history.begins)
        return min((at / 1000 for at in found if at is not None), default=None)

    async def tail(self, *topics: str, since: float | None = None) -> AsyncIterator[Happening]:
        """Yield what happens from now on, or since a time; by default in all topics."""

        async def parts() -> builtins.list[str]:
            found = await ask_all(topics or await self.topics(), self._parts)
            return [part for some in found for part in some]

        async for one in follow(self._store.views.history, parts, since=since):
            yield one

    # acting on one message

    async def requeue(
        self,
        topic: str,
        id: str,
        *,
        state: State | str | None = None,
        archived_at: float | None = None,
    ) -> bool:
        """Requeue a dead or quarantined message; its attempts start again at 0.

        `state` None: whichever archive has it. `archived_at`: as you saw it, so that a message
        archived under the same id since then is left alone. False: it is in neither archive, or a
        live message has its id. InvalidInput: it is not the message you saw, or it cannot be read,
        so no worker could read it either.
        """
        archived = await self._archived(topic, id, state, archived_at)
        return archived is not None and await self._actions.requeue(*archived)

    async def edit(
        self,
        topic: str,
        id: str,
        payload: Any,
        *,
        state: State | str | None = None,
        archived_at: float | None = None,
    ) -> bool:
        """Requeue a dead or quarantined message with another payload.

        It keeps its id, headers, priority and errors, as far as the record can be read. `state`,
        `archived_at` and the result are those of `requeue`. InvalidInput: produce would refuse the
        payload, or it is not the message you saw.
        """
        archived = await self._archived(topic, id, state, archived_at)
        return archived is not None and await self._actions.edit(*archived, payload)

    async def discard(
        self,
        topic: str,
        id: str,
        *,
        state: State | str | None = None,
        archived_at: float | None = None,
    ) -> bool:
        """Delete a dead or quarantined message. False: it is in neither archive.

        `state` and `archived_at` are those of `requeue`.
        """
        archived = await self._archived(topic, id, state, archived_at)
        return archived is not None and await self._actions.discard(*archived)

    async def cancel(self, topic: str, id: str) -> Cancelled:
        """Cancel a message that no worker has taken. The result is true if that was done."""
        part = await self._part_with(id, await self._parts(topic))
        return Cancelled.ABSENT if part is None else await self._actions.cancel(part, id)

    async def abort(self, topic: str, id: str, reason: str = "") -> bool:
        """Stop a message for good: it goes to the dead letters, and `requeue` undoes that.

        False: it is not pending, delayed, waiting or in processing. InvalidInput: it cannot be
        read. Once this returns, the message does not run again. A running handler is cancelled, or
        interrupted as by its timeout, within 2 s on a healthy system.
        """
        return (await self.abort_many(topic, [id], reason))[0]

    async def reschedule(
        self,
        topic: str,
        id: str,
        *,
        delay: Seconds | None = None,
        at: datetime | float | None = None,
    ) -> bool:
        """Give a pending or delayed message another due time. See `mq.reschedule`."""
        wait, due = new_due_time(delay, at)
        part = await self._part_with(id, await self._parts(topic))
        return part is not None and await self._actions.reschedule(part, id, delay=wait, at=due)

    async def signal(self, topic: str, id: str, name: str, value: Any = None) -> bool:
        """Send a signal to a message. See `mq.signal`."""
        check_name("signal", name)
        data = bytes(encode_payload(value, self._store.limits.max_payload))
        signals = [Signal(check_id(id), name, data)]

        async def send(part: str) -> Signalled | None:
            (answer,) = await self._store.signal_message(part, signals, by=self._actions.by)
            return None if answer is Signalled.UNKNOWN else answer

        _, answer = await ask_for(id, await self._parts(topic), send) or ("", Signalled.UNKNOWN)
        if answer is Signalled.FULL:
            raise InvalidInput(f"message {id!r:.80} has {MAX_SIGNALS:,} signals; it gets no more")
        if answer is Signalled.COPIED:
            raise InvalidInput(
                f"topic {topic!r} has subscriptions, which get copies of its messages: pass "
                f"{topic + '@NAME'!r} to signal one of these"
            )
        return bool(answer)

    async def partition_of(self, topic: str, id: str) -> str:
        """Return the partition that has a message in any state, or else the likeliest one."""
        parts = await self._parts(topic)
        found = await ask_for(id, parts, lambda part: self._pages.find(part, id))
        return parts[0] if found is None else found[0]

    async def _part_with(self, id: str, parts: Sequence[str]) -> str | None:
        """Return which of these partitions has a live message; None: none has."""
        found = await ask_for(id, parts, lambda part: self._store.views.record(part, id))
        return None if found is None else found[0]

    async def _archived(
        self, topic: str, id: str, state: State | str | None, seen: float | None
    ) -> tuple[str, Found] | None:
        states = FAILED if state is None else (state_among(FAILED, state),)
        return await self._actions.find_archived(await self._parts(topic), id, states, seen)

    # acting on many messages

    async def requeue_all(
        self, topic: str, state: State | str, **options: Unpack[BulkOptions]
    ) -> int:
        """Requeue the dead or quarantined messages that match a filter; return how many.

        One partition after the other, the oldest of each first. Messages archived meanwhile are
        left alone, and so are unreadable ones. At most `limit` messages, at most `rate` per second.
        `dry_run`: only count them. `progress` is called on the way. If it is interrupted, each
        message is either requeued or as it was.
        """
        chosen = state_among(FAILED, state)
        return await self._bulk(topic, chosen, self._actions.requeue, options, can_act=readable)

    async def discard_all(
        self, topic: str, state: State | str, **options: Unpack[BulkOptions]
    ) -> int:
        """Delete the dead or quarantined messages that match a filter; return how many.

        Order and options are those of `requeue_all`.
        """
        return await self._bulk(topic, state_among(FAILED, state), self._actions.discard, options)

    async def cancel_all(
        self, topic: str, state: State | str, **options: Unpack[BulkOptions]
    ) -> int:
        """Remove the pending, delayed or waiting messages that match a filter; return how many.

        One partition after the other; within it high, normal, low. Pending ones newest first, then
        those with a key, line by line; delayed ones by due time. Messages produced meanwhile are
        left alone; those that workers hand back or retry meanwhile may be missed. Options are those
        of `requeue_all`.
        """

        async def cancel(part: str, found: Found) -> Cancelled:
            return await self._actions.cancel(part, found.id)

        return await self._bulk(topic, state_among(UNSTARTED, state), cancel, options)

    async def abort_many(
        self, topic: str, ids: Sequence[str], reason: str = ""
    ) -> builtins.list[bool]:
        """Abort these messages; return for each whether there was something to abort."""
        if isinstance(ids, str):
            raise InvalidInput(f"abort_many takes a list of ids, not the string {ids!r:.80}")
        check_text("reason=", reason)
        parts = await self._parts(topic)

        async def abort(id: str) -> bool:
            part = await self._part_with(id, parts)
            return part is not None and await self._actions.abort(part, id, reason)

        return await ask_all(ids, abort)

    async def abort_all(
        self,
        topic: str,
        state: State | str,
        reason: str = "",
        **options: Unpack[BulkOptions],
    ) -> int:
        """Abort the live messages of a state that match a filter; return how many.

        Same order and options as `cancel_all`; messages in processing come by the deadline of their
        lease. Unreadable messages are left alone.
        """
        check_text("reason=", reason)

        async def abort(part: str, found: Found) -> bool:
            return await self._actions.abort(part, found.id, reason)

        return await self._bulk(topic, state_among(LIVE, state), abort, options, can_act=readable)

    async def _bulk(
        self,
        topic: str,
        state: State,
        act: Act,
        options: BulkOptions,
        can_act: CanAct | None = None,
    ) -> int:
        now = self._store.views.now
        bulk = Bulk(self._pages, state, act, now=now, can_act=can_act, **options)
        return await bulk.run(await self._parts(topic))
