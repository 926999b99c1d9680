"""The store: the servers of one URL, with all transitions, reads and the audit."""

from __future__ import annotations

from collections import defaultdict
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Self

from mx_rmq.core.durations import as_seconds
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.message import State
from mx_rmq.core.partition import topic_of
from mx_rmq.net.caller import REPLY_WITHIN, Caller
from mx_rmq.net.doorbell import Doorbell
from mx_rmq.net.redis_errors import cannot_use
from mx_rmq.net.subscription import PING_EVERY, Subscription
from mx_rmq.net.url import connect
from mx_rmq.safe_log import get_logger
from mx_rmq.settings import SECOND_NET, Limits
from mx_rmq.store import (
    growth,
    operator_calls,
    producer_calls,
    registry,
    schedule_calls,
    subscription_calls,
    upkeep_calls,
    waiter_calls,
    worker_calls,
)
from mx_rmq.store.archive_budgets import Budgets
from mx_rmq.store.arguments import check_worker
from mx_rmq.store.audit import Audit
from mx_rmq.store.keys import DEFAULT_PREFIX, Keys
from mx_rmq.store.lanes import Lanes, Withdrawn
from mx_rmq.store.memory_use import Memory
from mx_rmq.store.preflight import AWAY, Preflight, preflight
from mx_rmq.store.reads import Views
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mx_rmq.core.confirm import Confirm
    from mx_rmq.net.availability import Link
    from mx_rmq.net.connection import Check, Value
    from mx_rmq.store.lanes import Lane

logger = get_logger(__name__)

MAX_PATIENCE: Final = 300
"""Seconds for which a call may be retried; the server remembers the first try for ten minutes."""

PATIENCE: Final = 10.0  # seconds that a call waits for a server that is away, before it gives up

CENTURY: Final = 100 * 365 * 86_400  # seconds; servers refuse a much longer TTL of a hash field

SHORTEST: Final = 100
"""The fewest entries of a partition's history: the server drops them in blocks of a hundred."""


class Store:
    """An open store. `async with await Store.open(url) as store: …`

    It runs scripts; each has a function in one of the modules named below. `own_ttl` returns the
    default time to live in ms that this queue declares for a topic. `clock` is for tests: it
    replaces the server's time.
    """

    def __init__(
        self,
        caller: Caller,
        keys: Keys,
        found: Preflight,
        *,
        limits: Limits | None = None,
        clock: Callable[[], int] | None = None,
        own_ttl: Callable[[str], int | None] = lambda topic: None,
    ) -> None:
        self.caller = caller
        self.keys = keys
        self.limits = limits or Limits()
        self.links = caller.links  # whether the servers are reachable
        self.warnings = found.warnings
        self.hexpire = found.hexpire
        self.lanes = Lanes(keys)
        self.partitions: dict[str, int] = {}
        """How many partitions each topic used here has, as the server last answered."""
        self.own_ttl = own_ttl
        self.ttls: dict[str, int] = {}
        """The default time to live in ms of the topics used here that have one."""
        self.memory = Memory(caller, keys)
        self.views = Views(self)
        self.audit = Audit(self)
        self._found = found
        self._clock = clock
        self._budgets = Budgets(caller, keys)
        self.active: set[str] = set()
        """Partitions whose history this store has written to since it was last trimmed."""
        self.fits: dict[str, int] = {}
        """How many entries of its usual size fit into a partition's history, as last measured."""
        self._names: dict[tuple[str, str], list[str]] = {}
        """The keys of each script call, by script and topic."""

    # what producers call
    produce_normal_message = producer_calls.produce_normal_message
    produce_delay_message = producer_calls.produce_delay_message
    replace_message = producer_calls.replace_message
    produce_cron_message = producer_calls.produce_cron_message
    draft = producer_calls.draft
    prepare = producer_calls.prepare
    produce = producer_calls.produce
    has_made_ids = producer_calls.has_made_ids

    # what workers call
    dispatch_message = worker_calls.dispatch_message
    dispatch_in_turn = worker_calls.dispatch_in_turn
    complete_message = worker_calls.complete_message
    complete_with_result = worker_calls.complete_with_result
    note_progress = worker_calls.note_progress
    retry_message = worker_calls.retry_message
    snooze_message = worker_calls.snooze_message
    park_message = worker_calls.park_message
    note_record = worker_calls.note_record
    signal_message = worker_calls.signal_message
    signals_of = worker_calls.signals_of
    postpone_message = worker_calls.postpone_message
    release_message = worker_calls.release_message
    release_replaced = worker_calls.release_replaced
    extend_lease = worker_calls.extend_lease
    move_to_dlq = worker_calls.move_to_dlq
    handle_parse_error = worker_calls.handle_parse_error

    # what workers call besides handling messages
    handle_timeout_message = upkeep_calls.handle_timeout_message
    expire_message = upkeep_calls.expire_message
    undated_messages = upkeep_calls.undated_messages
    set_expiry = upkeep_calls.set_expiry
    get_next_delay_task = upkeep_calls.get_next_delay_task
    process_delay_message = upkeep_calls.process_delay_message
    trim_archive = upkeep_calls.trim_archive
    trim_history = upkeep_calls.trim_history
    survey_topics = upkeep_calls.survey_topics
    ring_doorbell = upkeep_calls.ring_doorbell
    beat_worker = upkeep_calls.beat_worker
    forget_worker = upkeep_calls.forget_worker

    # what waiters call
    read_status = waiter_calls.read_status
    ended_so_far = waiter_calls.ended_so_far

    # what operators call
    requeue_message = operator_calls.requeue_message
    discard_message = operator_calls.discard_message
    cancel_message = operator_calls.cancel_message
    abort_message = operator_calls.abort_message
    reschedule_message = operator_calls.reschedule_message
    pause_topic = operator_calls.pause_topic
    resume_topic = operator_calls.resume_topic
    limit_key = operator_calls.limit_key
    repair_message = operator_calls.repair_message
    repair_topic = operator_calls.repair_topic
    repair_lines = operator_calls.repair_lines
    repair_waits = operator_calls.repair_waits

    # schedules
    store_schedule = schedule_calls.store_schedule
    remove_schedule = schedule_calls.remove_schedule
    pause_schedule = schedule_calls.pause_schedule
    resume_schedule = schedule_calls.resume_schedule
    list_schedule = schedule_calls.list_schedule
    declare_crons = schedule_calls.declare_crons
    put_schedule = schedule_calls.put_schedule
    drop_schedule = schedule_calls.drop_schedule
    schedules_version = schedule_calls.schedules_version
    read_schedules = schedule_calls.read_schedules

    # subscriptions
    subscriptions = subscription_calls.subscriptions
    declare_subscription = subscription_calls.declare_subscription
    remove_subscription = subscription_calls.remove_subscription
    fan_out = subscription_calls.fan_out

    # the registry of topics
    register_topics = registry.register_topics
    register = registry.register
    grow = growth.grow
    tend_topics = registry.tend_topics
    give_up_turn = registry.give_up_turn
    claim_layout = registry.claim_layout
    note_result_ttl = registry.note_result_ttl

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        limits: Limits | None = None,
        patience: float = PATIENCE,
        load_scripts: bool = True,
        clock: Callable[[], int] | None = None,
        own_ttl: Callable[[str], int | None] = lambda topic: None,
    ) -> Self:
        keys = Keys(prefix)
        as_seconds("patience=", patience, most=MAX_PATIENCE)
        servers = await connect(url)
        try:
            reply_within = min(REPLY_WITHIN, max(1.0, patience))
            caller = Caller(
                servers, patience=patience, reply_within=reply_within, load_scripts=load_scripts
            )
            found = await preflight(caller, keys)
        except BaseException as error:
            await servers.close()
            if isinstance(error, AWAY):
                raise cannot_use(url, error, patience) from error
            raise
        for warning in found.warnings:
            logger.warning("%s", warning)
        return cls(caller, keys, found, limits=limits, clock=clock, own_ttl=own_ttl)

    # running a script

    async def run(
        self,
        name: str,
        topic: str,
        named: dict[str, Value],
        items: Sequence[Value] = (),
        *,
        archive: State | None = None,
        maker: str | None = None,
        lane: Lane | None = None,
        makers: Sequence[str] = (),
        confirm: Confirm | None = None,
        check: Check | None = None,
    ) -> Any:
        """Run a script on the keys of a topic, with the arguments that many scripts share.

        A script that leaves a receipt gets a lane, unless the caller has one. `archive`: the state
        whose archive to use. `maker`: the lane that made the message's id. For `makers`, `confirm`
        and `check` see `produce`.
        """
        script = load(name)
        known = self._names.get((name, topic))
        if known is None:  # keys that differ per call are filled in below
            keys = self.keys.of(topic)
            known = self._names[name, topic] = [getattr(keys, key, "") for key in script.keys]
        names, place = [*known, *makers], script.place
        if "worker" in named:
            check_worker(named["worker"])
        if "now_ms" in script.args:
            named["now_ms"] = self.now()
        if "history" in place:
            alone = self.partitions.get(topic) == 1
            share = self.limits.history if alone else self.share_of_history(topic)
            named["remember"] = min(share, self.fits.get(topic, share))
            self.active.add(topic)
        if archive is not None:
            index, contents = self.keys.of(topic).archive_of(archive)
            names[place["archive"]], names[place["archive_payload"]] = index, contents
            if "kind" in script.args:
                named["kind"] = archive.value
        if "channel" in script.args:
            named["channel"] = self.keys.of(topic).channel
        if "receipt" not in place:
            return await self.caller.run(script, names, script.arguments(named, items))
        if lane is None:
            lane = self.lanes.lane(topic)
            lane.number += 1
        named["call"] = lane.number
        names[place["receipt"]] = lane.receipt
        if "maker" in place:  # if no lane made the id, the script ignores this key
            names[place["maker"]] = self.keys.of(topic).receipt(maker or lane.name)
            named["made"] = int(maker is not None)
        try:
            args = script.arguments(named, items)
            if confirm is None:
                answer = await self.caller.run(script, names, args, check)
            else:
                answer = await self.caller.run_confirmed(script, names, args, confirm, check)
        except (InvalidInput, Withdrawn):  # not sent
            lane.give_back()
            raise
        lane.give_back()
        return answer

    def now(self) -> Value:
        """Return the time to pass to a script; empty: it uses the server's."""
        return "" if self._clock is None else self._clock()

    async def time(self, key: str) -> int:
        return await self.caller.time(key) if self._clock is None else self._clock()

    def share_of_history(self, topic: str) -> int:
        """Return how many history entries a partition may have: its share of the topic's."""
        most = self.limits.history
        return min(most, max(SHORTEST, ceil(most / self.partitions.get(topic_of(topic), 1))))

    async def archive_limits(self, topic: str, state: State) -> dict[str, int]:
        """Return how many messages an archive may hold, their age limit, and its bytes.

        The cap is per partition. If partitions shared it, a topic that grows would be over its cap
        and lose messages.
        """
        limits = self.limits
        budget = await self.budget(topic, state)
        if state == State.COMPLETED:
            ttl = await self.views.result_ttl(topic)
            return {"keep": limits.results_max, "ttl_ms": ttl or 0, "budget": budget}
        keep, ttl_s = (
            (limits.dlq_max, limits.dlq_ttl)
            if state == State.DEAD
            else (limits.quarantine_max, limits.quarantine_ttl)
        )
        return {"keep": keep, "ttl_ms": round(ttl_s * 1000), "budget": budget}

    def field_ttl(self, ttl_ms: int) -> int:
        """Return the TTL of an archived field, seconds; 0: the server itself drops nothing."""
        ttl = ceil(ttl_ms / 1000)
        return min(ttl + SECOND_NET, CENTURY) if self.hexpire and ttl else 0

    async def budget(self, topic: str, state: State) -> int:
        """Return how many bytes an archive of a partition may hold; 0: no limit."""
        self.keys.of(topic).archive_of(state)  # refuses a state without an archive
        await self._budgets.refresh()
        known = self.partitions.get(topic_of(topic), 1)
        return self._budgets.of(topic, state, self.limits, known)

    async def history_budget(self, topic: str) -> int:
        """Return how many bytes the history of a partition may hold; 0: no limit."""
        await self._budgets.refresh()
        known = self.partitions.get(topic_of(topic), 1)
        return self._budgets.of_history(topic, self.limits, known)

    # servers

    def site_of(self, topic: str) -> int:
        """Return the site of a topic: topics of one site may share a call."""
        return self.caller.servers.site_of(self.keys.of(topic).payload)

    def by_server(self, topics: Iterable[str]) -> list[dict[int, list[str]]]:
        """Group topics by server, then by site."""
        found: defaultdict[str | None, defaultdict[int, list[str]]]
        found = defaultdict(lambda: defaultdict(list))
        for topic in topics:
            server = self.caller.server_of(self.keys.of(topic).payload)
            found[server][self.site_of(topic)].append(topic)
        return [dict(sites) for sites in found.values()]

    def link_of(self, site: int) -> Link:
        """Return the link of a site: whether its server is reachable."""
        return self.links[site]

    def channel_of(self, topic: str) -> str:
        """Return the channel that tells when a topic's messages end, and their progress."""
        return self.keys.of(topic).channel

    def aborts_channel_of(self, topic: str) -> str:
        """Return the channel that tells workers which of a topic's messages were aborted."""
        return self.keys.of(topic).aborts_channel

    def subscription(
        self,
        on_message: Callable[[str, bytes], None],
        on_gap: Callable[[str], None] | None = None,
        *,
        ping_every: float = PING_EVERY,
    ) -> Subscription:
        """Listen to channels. See `Subscription`."""
        return Subscription(self.caller, on_message, on_gap, ping_every=ping_every)

    def doorbell(self, site: int = 0) -> Doorbell:
        """Return a listener for the doorbells of a site."""

        def keys_of(topic: str) -> tuple[str, str]:
            keys = self.keys.of(topic)
            return keys.doorbell, keys.doorbell_delay

        return Doorbell(self.caller, site, keys_of)

    def twin(self, *, patience: float = PATIENCE, reply_within: float = REPLY_WITHIN) -> Self:
        """Return a store on the same servers with separate connections, for another event loop.

        Close it before this one: an embedded server stops with this one.
        """
        caller = Caller(
            self.caller.servers.another(),
            patience=patience,
            reply_within=reply_within,
            load_scripts=self.caller.load_scripts,
        )
        return type(self)(caller, self.keys, self._found, limits=self.limits, clock=self._clock)

    async def close(self) -> None:
        """Close all connections. Further calls fail."""
        self.caller.closed = True
        await self.caller.servers.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
