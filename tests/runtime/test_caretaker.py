"""The caretaker: topics that no worker serves, or none that is alive."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Worker
from mx_rmq.core import codec, events
from mx_rmq.core.errors import ServerUnavailable
from mx_rmq.core.message import State
from mx_rmq.net import availability as link_module
from mx_rmq.net import server_clock as clock_module
from mx_rmq.runtime import caretaker as module
from mx_rmq.runtime import deadlines as deadlines_module
from mx_rmq.runtime import recovery as recovery_module
from mx_rmq.runtime.caretaker import GRACE, ROUND, SPREAD, TURN, Caretaker
from mx_rmq.runtime.event_bus import Events
from mx_rmq.settings import LONGEST_LEASE
from tests.lab.archives import find_archived
from tests.lab.cluster import Cluster, slot_of
from tests.lab.crew import crew
from tests.lab.messages import LEASE, TOPIC, delayed, draft, leased, pending, take
from tests.runtime.stage import Seen, on_a_server, queue, recovery, until_so

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock
    from tests.lab.servers import Kind, Server

HOLD_BACK = 11.0
"""Seconds in which holders extend their leases, however long those are."""


class Rounds:
    """A caretaker called c, and a time that passes when the test says so."""

    def __init__(self, store: Store, clock: Clock, patch: pytest.MonkeyPatch, *served: str) -> None:
        self.now = 1000.0
        for one in (module, clock_module, deadlines_module, link_module, recovery_module):
            patch.setattr(one, "time", self)
        self._clock = clock
        self.bus = Events()
        self.seen = Seen(self.bus)
        self.store = store
        self.caretaker = Caretaker(
            store,
            self.bus,
            recovery(store, self.bus, "c", lease=3.0),
            served,
            worker="c",
        )
        self.caretaker._expected_at = self.now

    def monotonic(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self._clock.advance(round(seconds * 1000))

    async def make(self, after: float = 0.0) -> float:
        """Let some time pass, then make a round."""
        self.passes(after)
        self.caretaker._expected_at = self.now
        return await self.caretaker.step()

    async def make_until(self, seconds: float) -> None:
        """Make rounds for so long, one every second."""
        for _ in range(round(seconds)):
            await self.make(after=1.0)

    def taken(self) -> list[str]:
        return [event.id for event in self.seen.of(events.TakenOver)]


@pytest.fixture
async def rounds(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(store, clock, monkeypatch)


pytestmark = on_a_server


async def counts(store: Store, topic: str = TOPIC) -> tuple[int, int, int]:
    found = await store.views.counts(topic)
    return found.pending, found.delayed, found.processing


# turns


async def test_the_first_round_comes_soon_but_at_a_moment_of_its_own(rounds: Rounds) -> None:
    rounds.caretaker._expected_at = float("inf")
    assert 0 <= await rounds.caretaker.step() <= SPREAD
    assert not isinstance(await rounds.store.tend_topics("other", turn=1000), int)


async def test_it_leaves_the_rounds_to_whoever_has_the_turn(rounds: Rounds) -> None:
    await delayed(rounds.store, 10)
    await rounds.store.tend_topics("other", turn=round(TURN * 1000))
    await rounds.make(after=1)
    assert await counts(rounds.store) == (0, 1, 0)
    assert rounds.caretaker.topics == []


@pytest.mark.parametrize("left", [1.0, 6.0, 10.0])
async def test_it_asks_again_when_the_turn_of_the_other_ends_and_not_before(
    rounds: Rounds, raw: Redis, left: float
) -> None:
    await rounds.store.tend_topics("other", turn=round(TURN * 1000))
    await raw.pexpire(rounds.store.keys.caretaker, round(left * 1000))
    pause = await rounds.make()
    assert await raw.pttl(rounds.store.keys.caretaker) / 1000 <= pause <= left + SPREAD
    assert ROUND < TURN <= ROUND + 1 - SPREAD  # so a round is never more than a second late


async def test_who_leaves_gives_up_the_turn(rounds: Rounds, raw: Redis) -> None:
    await rounds.make()
    assert await raw.exists(rounds.store.keys.caretaker)
    await rounds.caretaker.leave()
    assert not await raw.exists(rounds.store.keys.caretaker)


async def test_who_leaves_without_the_turn_asks_for_nothing(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(worker: str) -> bool:
        raise AssertionError("it has no turn to give up")

    monkeypatch.setattr(rounds.store, "give_up_turn", asked)
    await rounds.caretaker.leave()
    await rounds.store.tend_topics("other", turn=round(TURN * 1000))
    await rounds.make()
    await rounds.caretaker.leave()


async def test_who_stops_before_it_learns_whether_it_has_the_turn_gives_it_up(
    rounds: Rounds, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    tend_topics = rounds.store.tend_topics

    async def cut_off(worker: str, *, turn: int) -> None:
        await tend_topics(worker, turn=turn)
        raise ServerUnavailable("the reply is lost")

    with monkeypatch.context() as patch:
        patch.setattr(rounds.store, "tend_topics", cut_off)
        with pytest.raises(ServerUnavailable):
            await rounds.make()
    await rounds.caretaker.leave()
    assert not await raw.exists(rounds.store.keys.caretaker)


async def test_it_leaves_out_what_its_worker_serves(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.register_topics({TOPIC: 2, "other": 1})
    rounds = Rounds(store, clock, monkeypatch, TOPIC)
    assert await rounds.make() == ROUND
    assert sorted(rounds.caretaker.topics) == [f"{TOPIC}/1", "other"]


async def test_a_caretaker_that_cannot_reach_a_server_lets_another_one_have_the_turn(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(topics: object) -> None:
        raise ServerUnavailable("away")

    await delayed(rounds.store, 10)
    with monkeypatch.context() as patch:
        patch.setattr(rounds.store, "survey_topics", away)
        assert await rounds.make() > TURN + SPREAD
    assert await rounds.make() == ROUND


async def test_the_next_round_begins_in_time_even_if_this_one_took_long(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey = rounds.store.survey_topics

    async def slow(topics: Any) -> Any:
        rounds.passes(3)
        return await survey(topics)

    await delayed(rounds.store, 10)
    monkeypatch.setattr(rounds.store, "survey_topics", slow)
    assert await rounds.make() == ROUND - 3


@pytest.mark.parametrize("work", ["due", "expired", "lost"])
async def test_a_round_ends_before_the_turn_does_and_leaves_the_rest_to_the_next(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    store = rounds.store
    for one in (recovery_module, module):
        monkeypatch.setattr(one, "BATCH", 1)
    monkeypatch.setattr(module, "MOVED", 1)
    script = {
        "due": "process_delay_message",
        "expired": "expire_message",
        "lost": "handle_timeout_message",
    }[work]
    if work == "due":
        await delayed(store, 10, count=5)
    elif work == "expired":
        await pending(store, 5, ttl=10)
    else:
        await leased(store, 5)
        await rounds.make(after=LEASE / 1000 + GRACE + 60)
        rounds.passes(HOLD_BACK)
    call, calls = getattr(store, script), 0

    async def slow(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        found = await call(*args, **options)
        rounds.passes(ROUND / 2)
        return found

    monkeypatch.setattr(store, script, slow)
    assert await rounds.make(after=1) == 0
    assert calls == 2
    await rounds.make()
    assert calls == 4


# what is due


async def test_due_messages_become_pending_and_the_others_wait(rounds: Rounds) -> None:
    await delayed(rounds.store, 1000, count=600)
    await delayed(rounds.store, 5000)
    await rounds.make(after=0.9)
    assert await counts(rounds.store) == (0, 601, 0)
    await rounds.make(after=0.1)
    assert await counts(rounds.store) == (600, 1, 0)


async def test_every_partition_is_looked_after(rounds: Rounds, raw: Redis) -> None:
    await rounds.store.register_topics({TOPIC: 3})
    await rounds.store.produce_delay_message(f"{TOPIC}/2", [draft(delay=10)])
    await rounds.make(after=1)
    assert await counts(rounds.store, f"{TOPIC}/2") == (1, 0, 0)


async def test_a_paused_topic_is_looked_after_too(rounds: Rounds) -> None:
    await delayed(rounds.store, 10)
    await rounds.store.pause_topic(TOPIC)
    await rounds.make(after=1)
    assert await counts(rounds.store) == (1, 0, 0)


@pytest.mark.corrupts
async def test_a_broken_topic_does_not_hold_up_the_others(rounds: Rounds, raw: Redis) -> None:
    store = rounds.store
    await store.produce_delay_message("broken", [draft(delay=10)])
    await delayed(store, 10)
    await raw.delete(store.keys.of("broken").payload)
    await raw.set(store.keys.of("broken").payload, "no hash")
    assert await rounds.make(after=1) == ROUND
    assert await counts(store) == (1, 0, 0)


@pytest.mark.corrupts
async def test_a_topic_that_cannot_expire_does_not_hold_up_the_others(
    rounds: Rounds, raw: Redis
) -> None:
    store = rounds.store
    for topic in ("a", "broken", "z"):
        await store.register(topic)
        await store.produce_normal_message(topic, [draft(ttl=10)])
    await raw.set(store.keys.of("broken").cancelled, "no set")
    assert await rounds.make(after=1) == ROUND
    assert [(await store.views.counts(topic)).dead for topic in ("a", "z")] == [1, 1]


# what is overdue


async def test_a_lost_message_is_left_to_those_who_serve_the_topic_for_a_grace(
    rounds: Rounds,
) -> None:
    (lost,) = await leased(rounds.store, worker="gone")
    rounds.passes(LEASE / 1000)
    await rounds.make_until(GRACE - 1)
    assert rounds.taken() == []
    await rounds.make_until(1)
    assert rounds.taken() == [lost.id]
    assert await counts(rounds.store) == (1, 0, 0)
    (again,) = await take(rounds.store)
    message = codec.decode(again.record)
    assert (message.attempts, message.crashes) == (1, 1)


async def test_nothing_is_taken_over_at_first_sight(rounds: Rounds) -> None:
    await leased(rounds.store)
    await rounds.make(after=LEASE / 1000 + GRACE + 60)
    await rounds.make(after=HOLD_BACK - 0.1)
    assert rounds.taken() == []
    await rounds.make(after=0.1)
    assert len(rounds.taken()) == 1


async def test_who_extends_its_lease_keeps_its_message(rounds: Rounds) -> None:
    (held,) = await leased(rounds.store)
    await rounds.make(after=LEASE / 1000 + GRACE + 60)
    rounds.passes(HOLD_BACK)
    await rounds.store.extend_lease(TOPIC, "w1", [held], lease=10)
    rounds.passes(0.1)
    await rounds.make_until(GRACE - 1)
    assert rounds.taken() == []


@pytest.mark.parametrize("trouble", ["back", "late", "jump", "standstill"])
async def test_after_trouble_the_holders_get_the_time_to_extend(
    rounds: Rounds, clock: Clock, trouble: str
) -> None:
    await leased(rounds.store)
    await rounds.make(after=LEASE / 1000 + GRACE + 60)
    link = rounds.store.link_of(0)
    rounds.passes(HOLD_BACK)
    if trouble == "back":
        link.back_at = rounds.now
    elif trouble == "late":
        link.late_at = rounds.now
    elif trouble == "jump":
        clock.advance(60_000)
    else:
        rounds.caretaker._expected_at = rounds.now - 5
        await rounds.caretaker.step()
    await rounds.make()
    await rounds.make(after=HOLD_BACK - 0.1)
    assert rounds.taken() == []
    await rounds.make(after=0.1)
    assert len(rounds.taken()) == 1


async def test_a_clock_that_is_set_between_the_look_and_the_act_stops_it(
    rounds: Rounds, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leased(rounds.store)
    await rounds.make(after=LEASE / 1000 + GRACE)
    rounds.passes(HOLD_BACK)
    survey = rounds.store.survey_topics

    async def then_jump(topics: Any) -> Any:
        seen = await survey(topics)
        clock.advance(60_000)
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(rounds.store, "survey_topics", then_jump)
        await rounds.make()
    assert rounds.taken() == []
    await rounds.make_until(HOLD_BACK + 1)
    assert len(rounds.taken()) == 1


async def test_after_the_clock_was_set_back_deadlines_that_no_lease_can_have_do_not_count(
    rounds: Rounds, clock: Clock
) -> None:
    (lost,) = await leased(rounds.store)
    clock.advance(-round(LONGEST_LEASE * 1000) - 60_000)
    await rounds.make()
    await rounds.make(after=HOLD_BACK)
    assert rounds.taken() == [lost.id]


async def test_after_the_clock_was_set_back_a_holder_with_a_longer_lease_keeps_its_message(
    rounds: Rounds, clock: Clock
) -> None:
    (held,) = await leased(rounds.store)
    clock.advance(-120_000)
    await rounds.store.extend_lease(TOPIC, "w1", [held], lease=300_000)
    await rounds.make_until(60)
    assert rounds.taken() == []


async def test_a_message_that_has_lost_its_worker_three_times_is_dead(rounds: Rounds) -> None:
    await leased(rounds.store)
    for crashes in range(1, 4):
        rounds.passes(LEASE / 1000)
        await rounds.make_until(GRACE)
        if crashes < 3:
            await rounds.make_until(30)  # it may have to wait before it comes back
            await take(rounds.store)
    (died,) = rounds.seen.of(events.Died)
    assert died.reason == "crashed: its worker was lost 3 times"


async def test_what_cannot_be_read_is_quarantined(rounds: Rounds, raw: Redis) -> None:
    (lost,) = await leased(rounds.store)
    await raw.hset(rounds.store.keys.of(TOPIC).payload, lost.id, "no record")
    rounds.passes(LEASE / 1000)
    await rounds.make_until(GRACE)
    (one,) = rounds.seen.of(events.Quarantined)
    assert one.id == lost.id
    assert await find_archived(rounds.store, TOPIC, State.QUARANTINED, lost.id)


async def test_many_lost_messages_are_taken_over_in_one_round(rounds: Rounds) -> None:
    await leased(rounds.store, 250)
    rounds.passes(LEASE / 1000)
    await rounds.make_until(GRACE)
    assert await counts(rounds.store) == (250, 0, 0)


# real workers


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let caretakers be quicker than they are, so that a test need not wait for a minute."""
    brisk = {"ROUND": 0.2, "TURN": 1.0, "SPREAD": 0.1, "GRACE": 0.5, "LONGEST_LEASE": 3.0}
    for name, seconds in brisk.items():
        monkeypatch.setattr(module, name, seconds)


async def see_to_orphans(mq: MessageQueue, directory: Path, url: str, other: str) -> None:
    """Kill the only worker of a topic; see a worker of another topic look after it."""
    idle = mq.handler(other)

    @idle
    async def nothing(payload: Any) -> None: ...

    with crew(url, directory) as (start, history):
        victim = start(lease=1.0)
        id = await mq.produce("work", {"sleep": 600})

        async def has_begun() -> bool:
            return id in history.ids("start")

        await until_so(has_begun)
        assert victim.end(signal.SIGKILL)
    await mq.produce("plain", {}, delay=0.1)

    async def all_pending() -> bool:
        stats = [await mq.admin.stats(topic) for topic in ("work", "plain")]
        return all((one.pending, one.delayed, one.processing) == (1, 0, 0) for one in stats)

    async with Worker(mq):
        await until_so(all_pending)
    lost = await mq.admin.get("work", id)
    assert lost is not None
    assert (lost.attempts, lost.crashes) == (1, 1)


@pytest.mark.usefixtures("brisk")
async def test_a_worker_of_another_topic_brings_back_what_a_killed_one_held(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    async with queue(server.url, lease=1.0) as mq:
        await see_to_orphans(mq, tmp_path, server.url, "b")


@pytest.mark.usefixtures("brisk")
async def test_in_a_cluster_it_looks_after_topics_on_every_node(
    short_path: Path, kind: Kind
) -> None:
    async with Cluster(short_path, kind=kind) as cluster:
        homes = {cluster.node_of(slot_of(topic)): topic for topic in ("work", "plain")}
        other = next(
            topic
            for topic in (f"t{number}" for number in range(100))
            if cluster.node_of(slot_of(topic)) not in homes or len(homes) == 1
        )
        async with queue(cluster.url, lease=1.0) as mq:
            await see_to_orphans(mq, short_path, cluster.url, other)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_messages_expire_in_time_though_the_caretaker_is_lost(
    raw: Redis, server: Server, tmp_path: Path, number: signal.Signals
) -> None:
    """Lose it right after a round, which is the worst moment."""
    async with queue(server.url) as mq:

        @mq.handler("other")
        async def nothing(payload: Any) -> None: ...

        async def is_cared_for() -> bool:
            return bool(await raw.exists(mq.store.keys.caretaker))

        with crew(server.url, tmp_path) as (start, _):
            caretaker = start()
            await until_so(is_cared_for)
            caretaker.send(number)
            async with Worker(mq):
                id = await mq.produce("unserved", {}, ttl=0.1)
                await mq.produce("late", {}, delay=0.1)

                async def is_dead() -> bool:
                    return (await mq.admin.stats("unserved")).dead == 1

                await until_so(is_dead)
                assert (await mq.admin.stats("late")).pending == 1
        dead = await mq.admin.get("unserved", id)
        assert dead is not None
        assert dead.expires_at is not None
        assert dead.archived_at is not None
        assert dead.archived_at - dead.expires_at < 15


async def test_who_stops_leaves_the_turn_to_others(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    async with queue(server.url) as mq:

        async def is_cared_for() -> bool:
            return bool(await raw.exists(mq.store.keys.caretaker))

        with crew(server.url, tmp_path) as (start, _):
            caretaker = start()
            await until_so(is_cared_for)
            assert caretaker.end(signal.SIGTERM) == 0
        assert not await is_cared_for()
