"""The store: the servers of one URL, with all transitions, reads and the audit."""

from __future__ import annotations

from collections import defaultdict
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Self

from mx_rmq.core.errors import InvalidInput, OutcomeUnknown, ServerUnavailable
from mx_rmq.core.message import State
from mx_rmq.core.partition import topic_of
from mx_rmq.net.caller import REPLY_WITHIN, Caller
from mx_rmq.net.doorbell import Doorbell
from mx_rmq.net.redis_errors import cannot_use
from mx_rmq.net.url import connect
from mx_rmq.safe_log import get_logger
from mx_rmq.settings import SECOND_NET, Limits
from mx_rmq.store import operator_calls, producer_calls, registry, worker_calls
from mx_rmq.store.archive_budgets import Budgets
from mx_rmq.store.arguments import to_ms
from mx_rmq.store.audit import Audit
from mx_rmq.store.keys import DEFAULT_PREFIX, Keys
from mx_rmq.store.lanes import Lanes
from mx_rmq.store.memory_use import Memory
from mx_rmq.store.preflight import Preflight, preflight
from mx_rmq.store.reads import Views
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mx_rmq.net.availability import Link
    from mx_rmq.net.connection import Value
    from mx_rmq.store.keys import TopicKeys
    from mx_rmq.store.lanes import Lane
    from mx_rmq.store.script import Script

logger = get_logger(__name__)

MAX_PATIENCE: Final = 300
"""Seconds for which a call may be retried; the server remembers the first try for ten minutes."""

PATIENCE: Final = 10.0
"""Seconds that a call waits for a server that is away, before it gives up."""

CENTURY: Final = 100 * 365 * 86_400
"""Seconds; servers refuse a much longer TTL of a hash field."""

SHORTEST: Final = 100
"""The fewest entries of a partition's history: the server drops them in blocks of a hundred."""


class Store:
    """An open store. `async with await Store.open(url) as store: …`

    It runs scripts; each has a function in one of the modules named below. `clock` is for tests: it
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
    ) -> None:
        self.caller = caller
        self.keys = keys
        self.limits = limits or Limits()
        self.links = caller.links
        """Whether the servers are reachable."""
        self.warnings = found.warnings
        self.hexpire = found.hexpire
        self.lanes = Lanes()
        self.partitions: dict[str, int] = {}
        """How many partitions each topic used here has, as the server last said."""
        self.memory = Memory(caller, keys)
        self.views = Views(caller, keys, clock=clock)
        self.audit = Audit(caller, keys, self.limits, hexpire=found.hexpire, clock=clock)
        self._found = found
        self._clock = clock
        self._budgets = Budgets(caller, keys)
        self._names: dict[tuple[str, str], list[str]] = {}
        """The keys of each script call, by script and topic."""

    # what producers call
    produce_normal_message = producer_calls.produce_normal_message
    produce_delay_message = producer_calls.produce_delay_message
    produce_cron_message = producer_calls.produce_cron_message
    draft = producer_calls.draft
    prepare = producer_calls.prepare
    produce = producer_calls.produce
    has_made_ids = producer_calls.has_made_ids

    # what workers call
    dispatch_message = worker_calls.dispatch_message
    complete_message = worker_calls.complete_message
    retry_message = worker_calls.retry_message
    postpone_message = worker_calls.postpone_message
    release_message = worker_calls.release_message
    extend_lease = worker_calls.extend_lease
    move_to_dlq = worker_calls.move_to_dlq
    handle_parse_error = worker_calls.handle_parse_error
    trim_archive = worker_calls.trim_archive
    handle_timeout_message = worker_calls.handle_timeout_message
    expire_message = worker_calls.expire_message
    get_next_delay_task = worker_calls.get_next_delay_task
    process_delay_message = worker_calls.process_delay_message
    survey_topics = worker_calls.survey_topics
    ring_doorbell = worker_calls.ring_doorbell
    beat_worker = worker_calls.beat_worker
    forget_worker = worker_calls.forget_worker

    # what operators call
    requeue_message = operator_calls.requeue_message
    discard_message = operator_calls.discard_message
    cancel_message = operator_calls.cancel_message
    pause_topic = operator_calls.pause_topic
    resume_topic = operator_calls.resume_topic
    repair_message = operator_calls.repair_message
    repair_topic = operator_calls.repair_topic

    # the registry of topics
    register_topics = registry.register_topics
    register = registry.register
    grow = registry.grow
    tend_topics = registry.tend_topics
    claim_layout = registry.claim_layout

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
    ) -> Self:
        """Connect and run the preflight."""
        keys = Keys(prefix)
        if not 0 <= patience <= MAX_PATIENCE:
            raise InvalidInput(f"patience={patience!r} is not from 0 to {MAX_PATIENCE} seconds")
        servers = await connect(url)
        try:
            reply_within = min(REPLY_WITHIN, max(1.0, patience))
            caller = Caller(
                servers, patience=patience, reply_within=reply_within, load_scripts=load_scripts
            )
            found = await preflight(caller, keys)
        except (OutcomeUnknown, ServerUnavailable) as error:
            await servers.close()
            raise cannot_use(url, error, patience) from error
        except BaseException:
            await servers.close()
            raise
        for warning in found.warnings:
            logger.warning("%s", warning)
        return cls(caller, keys, found, limits=limits, clock=clock)

    # running a script

    async def run(
        self,
        name: str,
        keys: TopicKeys,
        named: dict[str, Value],
        items: Sequence[Value] = (),
        *,
        lane: Lane | None = None,
        archive: State | None = None,
        maker: str | None = None,
    ) -> Any:
        """Run a script on the keys of a topic."""
        call = self.script_call(name, keys, named, items, lane=lane, archive=archive, maker=maker)
        return await self.caller.run(*call)

    def script_call(
        self,
        name: str,
        keys: TopicKeys,
        named: dict[str, Value],
        items: Sequence[Value] = (),
        *,
        lane: Lane | None = None,
        archive: State | None = None,
        maker: str | None = None,
        extra_keys: Sequence[str] = (),
    ) -> tuple[Script, list[str], list[Value]]:
        """Return a script, its keys and its arguments, in the script's order.

        `lane`: where the receipt goes. `archive`: the state whose archive to use. `maker`: the lane
        that made the message's id.
        """
        script = load(name)
        if "history" in script.place:
            alone = self.partitions.get(keys.topic) == 1
            named["remember"] = self.limits.history if alone else self._remember(keys.topic)
        known = self._names.get((name, keys.topic))
        if known is None:  # keys that differ per call are filled in below
            known = [getattr(keys, key, "") for key in script.keys]
            self._names[name, keys.topic] = known
        names = [*known, *extra_keys]
        if lane is not None:
            names[script.place["receipt"]] = keys.receipt(lane.name)
            if "maker" in script.place:  # if no lane made the id, the script ignores this key
                names[script.place["maker"]] = keys.receipt(maker or lane.name)
        if archive is not None:
            index, contents = keys.archive_of(archive)
            names[script.place["archive"]] = index
            names[script.place["archive_payload"]] = contents
            if "kind" in script.args:
                named["kind"] = archive.value
        return script, names, script.arguments(named, items)

    def now(self) -> Value:
        """Return the time to pass to a script; empty: it uses the server's."""
        return "" if self._clock is None else self._clock()

    def hexpire_s(self, ttl_ms: int) -> int:
        """Return in how many seconds the server itself drops an archived field; 0: it does not."""
        if not self.hexpire or ttl_ms == 0:
            return 0
        return min(ceil(ttl_ms / 1000) + SECOND_NET, CENTURY)

    def caps(self, state: State) -> tuple[int, int]:
        """Return how many messages an archive may hold, and their age limit in ms.

        The cap is per partition. If partitions shared it, a topic that grows would be over its cap
        and lose messages.
        """
        if state == State.DEAD:
            return self.limits.dlq_max, to_ms(self.limits.dlq_ttl)
        return self.limits.quarantine_max, to_ms(self.limits.quarantine_ttl)

    async def budget(self, topic: str, state: State) -> int:
        """Return how many bytes an archive of a partition may hold; 0: no limit."""
        self.keys.of(topic).archive_of(state)  # refuses a state without an archive
        await self._budgets.refresh()
        known = self.partitions.get(topic_of(topic), 1)
        return self._budgets.of(topic, state, self.limits, known)

    def share(self, topic: str, most: int) -> int:
        """Return a partition's share of its topic's limit."""
        return ceil(most / self.partitions.get(topic_of(topic), 1))

    def _remember(self, topic: str) -> int:
        """Return how many history entries a partition may have: its share of the topic's."""
        most = self.limits.history
        return min(most, max(SHORTEST, self.share(topic, most)))

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
