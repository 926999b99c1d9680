"""What several scripts promise alike. Each script's own file derives its tests from these."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import (
    InvalidInput,
    PayloadTooLarge,
    ProduceUnknown,
    QueueFull,
    ScriptFailed,
)
from mx_rmq.core.message import State
from mx_rmq.settings import Limits
from mx_rmq.store.arguments import MAX_BATCH
from mx_rmq.store.results import Claim, HandedBack, Leased, Placed, Settled
from mx_rmq.store.script import load
from mx_rmq.store.store import Store
from tests.lab.broken import assert_refused, broken, for_lines, key_named, vital
from tests.lab.calls import lose_next, resend_next
from tests.lab.cases import TWO_PER_KEY
from tests.lab.messages import (
    LEASE,
    TOPIC,
    Priority,
    bring,
    delayed,
    draft,
    drafts,
    leased,
    leased_in_turn,
    pending,
    renamed,
    settle,
    take,
)
from tests.lab.servers import Kind, chosen
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from mx_rmq.core.message import Message
    from mx_rmq.store.results import Produced
    from tests.lab.clock import Clock
    from tests.lab.servers import Server

ONE_SERVER = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1))
"""For what is refused before any server sees it."""

WINDOW = 120_000
"""The default dedup window, ms."""

STATES = [None, *State]
"""Where a message may be; None: finished and gone."""

ANSWERS = {
    None: Placed.FINISHED,
    State.PENDING: Placed.LIVE,
    State.DELAYED: Placed.LIVE,
    State.WAITING: Placed.LIVE,
    State.PROCESSING: Placed.LIVE,
    State.DEAD: Placed.DEAD,
    State.QUARANTINED: Placed.QUARANTINED,
    State.COMPLETED: Placed.FINISHED,
}
FINISHED = (None, State.COMPLETED)
"""Where a message does not keep its id from being produced again, after the window."""

LOST = [
    *(state for state in STATES if state is not State.PROCESSING),
    "never leased",
    "redelivered",
    "taken over",
    "another worker's",
]
"""How a worker may have lost a message that it still believes to hold."""


def placed(produced: list[Produced]) -> list[Placed]:
    return [one.placed for one in produced]


LEVELS = ("_high", "", "_low")
PARTITION = f"{TOPIC}/3"


def needed(script: str) -> list[str]:
    """Return the keys that a script needs for messages of normal priority, by name."""
    used = "pending" if script in ("produce_normal_message", "release_message") else "delay_tasks"
    others = [f"{kind}{level}" for kind in ("pending", "delay_tasks") for level in LEVELS]
    others += ["cancelled", "expiry"]  # which only matter where there is a cap, or a ttl
    return [name for name in vital(script) if name not in others or name == used]


class ProduceContract:
    """(new) -> pending or delayed."""

    name: ClassVar[str]

    def given(self, new: Sequence[Message]) -> Sequence[Message]:
        """Return drafts as the script is given them."""
        return new

    async def produce(self, store: Store, new: Sequence[Message]) -> list[Produced]:
        raise NotImplementedError

    def waiting(self, found: Snapshot) -> list[str]:
        """Return the ids of normal priority that wait where the script puts them."""
        raise NotImplementedError

    async def arrived(self, store: Store, clock: Clock) -> list[Leased]:
        """Dispatch everything that waits, delayed or not."""
        clock.advance(WINDOW // 2)
        await store.process_delay_message(TOPIC, count=MAX_BATCH)
        return await take(store, MAX_BATCH)

    async def test_the_record_is_the_draft_stamped_with_the_servers_time(
        self, store: Store, raw: Redis, clock: Clock
    ) -> None:
        plain = draft({"a": [1, None, "é"]})
        rich = draft(
            1,
            id="own",
            priority=Priority.HIGH,
            max_attempts=3,
            retry={"base": 1.5},
            ttl=9,
            headers={"k": "v"},
        )
        produced = await self.produce(store, [plain, rich])
        found = await snapshot(raw, TOPIC)
        assert [codec.decode(found.records[id], TOPIC, id) for id, _ in produced] == [
            msgspec.structs.replace(renamed(one, id), created_at=clock.now)
            for one, (id, _) in zip(self.given([plain, rich]), produced, strict=True)
        ]

    async def test_ids_of_every_kind_wait_in_their_level(self, store: Store, raw: Redis) -> None:
        _, came_back = await self.lose(store, stored=False, count=3)
        ids: dict[Priority, list[str]] = {}
        new = []
        for level, made in zip(Priority, came_back, strict=True):
            new += [draft(id=id, priority=level) for id in (None, f"own-{level}", made)]
        produced = await self.produce(store, new)
        assert placed(produced) == [Placed.STORED] * 9
        for one, (id, _) in zip(new, produced, strict=True):
            ids.setdefault(one.priority, []).append(id)
        found = await snapshot(raw, TOPIC)
        assert [*found.high, *found.delayed_high] == ids[Priority.HIGH]
        assert [*found.normal, *found.delayed] == ids[Priority.NORMAL]
        assert [*found.low, *found.delayed_low] == ids[Priority.LOW]
        assert found.recent.keys() == {f"own-{level}" for level in Priority} | set(came_back)

    async def test_each_own_id_of_a_call_has_its_own_window(
        self, store: Store, clock: Clock
    ) -> None:
        for id in ("old", "new"):
            await bring(store, None, id=id)
            clock.advance(WINDOW // 2)
        again = [draft(), draft(id="old"), draft(id="new"), draft(), draft(id="newest")]
        assert "".join(placed(await self.produce(store, again))) == "11f11"

    @ONE_SERVER
    @pytest.mark.parametrize("how", ["1", "1 0", "1 0 urgent", "own 0 high", "1 x high", " "])
    async def test_a_message_of_which_the_script_cannot_tell_how_stops_the_call(
        self, store: Store, raw: Redis, how: str
    ) -> None:
        call = store.prepare(self.name, TOPIC, [draft(), draft(id="own")])
        call.items[len(call.items) // 2 + 1] = how
        with pytest.raises(ScriptFailed):
            await store.produce(call)
        assert await snapshot(raw, TOPIC) == Snapshot()

    async def test_without_a_clock_of_the_tests_the_time_is_the_servers(
        self, store: Store, raw: Redis, server: Server
    ) -> None:
        async def now() -> int:
            seconds, micros = await raw.time()
            return int(seconds) * 1000 + int(micros) // 1000

        async with await Store.open(server.url) as real:
            earliest = await now()
            ((id, _),) = await self.produce(real, [draft()])
            latest = await now()
        record = await store.views.record(TOPIC, id)
        assert record is not None
        assert earliest <= codec.decode(record).created_at <= latest

    async def test_nothing_to_produce_touches_nothing(self, store: Store, raw: Redis) -> None:
        assert await self.produce(store, []) == []
        assert await raw.dbsize() == 0

    async def test_the_topic_is_listed(self, store: Store) -> None:
        await self.produce(store, drafts(1))
        assert await store.views.topics() == [TOPIC]

    @pytest.mark.parametrize("own", [False, True])
    async def test_a_full_batch_goes_in_one_call_and_one_more_is_refused(
        self, store: Store, raw: Redis, own: bool
    ) -> None:
        many = [draft(n, id=f"own-{n}" if own else None) for n in range(MAX_BATCH + 1)]
        with pytest.raises(InvalidInput, match="1001 messages in one call; the limit is 1000"):
            await self.produce(store, many)
        assert await raw.dbsize() == 0
        produced = await self.produce(store, many[:-1])
        assert set(placed(produced)) == {Placed.STORED}
        found = await snapshot(raw, TOPIC)
        assert self.waiting(found) == [id for id, _ in produced]
        assert len(found.records) == MAX_BATCH

    @pytest.mark.parametrize("own", [False, True])
    async def test_a_repeated_call_says_so_and_makes_no_second_copy(
        self, store: Store, raw: Redis, own: bool
    ) -> None:
        resend_next(store, raw)
        produced = await self.produce(
            store, [draft(n, id=f"own-{n}" if own else None) for n in range(3)]
        )
        assert placed(produced) == [Placed.REPEATED] * 3
        assert self.waiting(await snapshot(raw, TOPIC)) == [id for id, _ in produced]

    @pytest.mark.parametrize("own", ["own", None])
    @pytest.mark.parametrize("state", STATES)
    async def test_a_repeated_call_makes_no_second_copy_of_what_has_moved_on(
        self, store: Store, raw: Redis, clock: Clock, state: State | None, own: str | None
    ) -> None:
        store.limits = Limits(dedup=0)

        async def move_on() -> None:
            (one,) = await self.arrived(store, clock)
            await settle(store, one, state)
            clock.advance(WINDOW)

        resend_next(store, raw, between=move_on)
        assert placed(await self.produce(store, [draft(id=own)])) == [Placed.REPEATED]

    @pytest.mark.parametrize("dedup", [120, 0])
    async def test_a_repeated_call_that_found_its_id_taken_still_makes_nothing(
        self, store: Store, raw: Redis, dedup: int
    ) -> None:
        store.limits = Limits(dedup=dedup)
        (one,) = await leased(store, id="own")
        resend_next(store, raw, between=partial(settle, store, one, None))
        assert placed(await self.produce(store, [draft(id="own")]))[0].duplicate

    @pytest.mark.parametrize("late", [WINDOW - 1, WINDOW])
    @pytest.mark.parametrize("state", STATES)
    async def test_an_own_id_is_taken_while_the_message_exists_and_within_the_window(
        self, store: Store, raw: Redis, clock: Clock, state: State | None, late: int
    ) -> None:
        await bring(store, state, id="own")
        clock.advance(late)
        before = await snapshot(raw, TOPIC)
        answers = placed(await self.produce(store, [draft("other", id="own")]))
        if state in FINISHED and late >= WINDOW:
            assert answers == [Placed.STORED]
            assert not answers[0].duplicate
            assert self.waiting(await snapshot(raw, TOPIC)) == ["own"]
        else:
            assert answers == [ANSWERS[state]]
            assert answers[0].duplicate
            assert await snapshot(raw, TOPIC) == before

    @pytest.mark.parametrize("state", STATES)
    async def test_without_a_window_an_own_id_is_taken_only_while_the_message_exists(
        self, store: Store, raw: Redis, state: State | None
    ) -> None:
        store.limits = Limits(dedup=0)
        await bring(store, state, id="own")
        answers = placed(await self.produce(store, [draft("other", id="own")]))
        assert answers == [Placed.STORED if state in FINISHED else ANSWERS[state]]
        assert (await snapshot(raw, TOPIC)).recent == {}

    async def test_a_duplicate_does_not_lengthen_the_window(
        self, store: Store, clock: Clock
    ) -> None:
        await bring(store, None, id="own")
        clock.advance(WINDOW - 1)
        assert placed(await self.produce(store, [draft(id="own")])) == [Placed.FINISHED]
        clock.advance(1)
        assert placed(await self.produce(store, [draft(id="own")])) == [Placed.STORED]

    async def test_only_own_ids_are_remembered_and_old_ones_forgotten_bit_by_bit(
        self, store: Store, raw: Redis, clock: Clock
    ) -> None:
        await self.produce(store, [draft(id=f"own-{n:02}") for n in range(20)])
        await self.produce(store, drafts(3))
        assert len((await snapshot(raw, TOPIC)).recent) == 20
        clock.advance(WINDOW)
        await self.produce(store, [draft(id="new")])
        left = {f"own-{n}" for n in range(12, 20)}
        assert (await snapshot(raw, TOPIC)).recent.keys() == {*left, "new"}
        await self.produce(store, drafts(1))
        assert (await snapshot(raw, TOPIC)).recent.keys() == {"new"}
        assert await raw.pttl(store.keys.of(TOPIC).recent) > 0

    async def test_an_id_twice_in_one_call_is_one_message_the_first(
        self, store: Store, raw: Redis
    ) -> None:
        produced = await self.produce(
            store, [draft("first", id="own"), draft("second", id="own"), draft(id="other")]
        )
        assert placed(produced) == [Placed.STORED, Placed.LIVE, Placed.STORED]
        found = await snapshot(raw, TOPIC)
        assert self.waiting(found) == ["own", "other"]
        assert bytes(codec.decode(found.records["own"]).payload) == b'"first"'

    async def test_a_taken_id_does_not_stop_the_rest_of_the_call(
        self, store: Store, raw: Redis
    ) -> None:
        for state in sorted(STATES, key=lambda state: state is State.PENDING):
            await bring(store, state, id=f"own-{state}")
        before = self.waiting(await snapshot(raw, TOPIC))
        names = ["new", *(f"own-{state}" for state in STATES), "newer"]
        produced = await self.produce(store, [draft(id=id) for id in names])
        assert placed(produced) == [Placed.STORED, *(ANSWERS[s] for s in STATES), Placed.STORED]
        assert set(self.waiting(await snapshot(raw, TOPIC))) == {*before, "new", "newer"}

    @ONE_SERVER
    @pytest.mark.parametrize("id", ["", "a b", "a,b", "{a}", "a\n", "é", "x" * 129])
    async def test_a_bad_id_is_refused_before_anything_is_stored(
        self, store: Store, raw: Redis, id: str
    ) -> None:
        with pytest.raises(InvalidInput, match=r"message id .* must consist of"):
            await self.produce(store, [draft(id="good"), draft(id=id)])
        assert await snapshot(raw, TOPIC) == Snapshot()
        assert placed(await self.produce(store, [draft(id="good")])) == [Placed.STORED]

    async def test_a_bad_priority_is_refused_before_anything_is_stored(
        self, store: Store, raw: Redis
    ) -> None:
        with pytest.raises((InvalidInput, ScriptFailed)):
            await self.produce(store, [draft(), draft(priority="urgent")])
        assert await snapshot(raw, TOPIC) == Snapshot()

    @ONE_SERVER
    async def test_a_payload_over_the_limit_is_refused_with_size_and_limit(
        self, store: Store, raw: Redis
    ) -> None:
        store.limits = Limits(max_payload=100)
        assert placed(await self.produce(store, [draft("x" * 98, id="fits")])) == ["1"]
        before = await snapshot(raw, TOPIC)
        with pytest.raises(PayloadTooLarge, match=r"is 101 bytes; the limit is 100 "):
            await self.produce(store, [draft(), draft("x" * 99)])
        assert await snapshot(raw, TOPIC) == before

    @ONE_SERVER
    async def test_headers_have_a_limit_of_their_own(self, store: Store, raw: Redis) -> None:
        with pytest.raises(InvalidInput, match=r"headers and settings take .* bytes"):
            await self.produce(store, [draft(), draft(headers={"k": "x" * 65_536})])
        assert await snapshot(raw, TOPIC) == Snapshot()

    @ONE_SERVER
    @pytest.mark.parametrize("topic", ["", "a@", "a}b", "-a", "a\n", "x" * 129])
    async def test_a_bad_topic_is_refused_before_it_becomes_a_key(
        self, store: Store, raw: Redis, topic: str
    ) -> None:
        with pytest.raises(InvalidInput, match=r"topic .* must consist of"):
            await getattr(store, self.name)(topic, drafts(1))
        assert await raw.dbsize() == 0

    # a generated id comes back as the caller's own, after a lost reply

    async def lose(self, store: Store, *, stored: bool, count: int = 1) -> tuple[Any, list[str]]:
        lost = lose_next(store, stored=stored)
        with pytest.raises(ProduceUnknown) as caught:
            await self.produce(store, drafts(count))
        assert len(caught.value.ids) == count
        return lost, list(caught.value.ids)

    @pytest.mark.parametrize("state", STATES)
    async def test_the_ids_of_a_lost_reply_are_taken_if_they_were_stored(
        self, store: Store, raw: Redis, clock: Clock, state: State | None
    ) -> None:
        store.limits = Limits(dedup=0)
        _, (id,) = await self.lose(store, stored=True)
        (one,) = await self.arrived(store, clock)
        await settle(store, one, state)
        clock.advance(10 * WINDOW)
        before = await snapshot(raw, TOPIC)
        assert placed(await self.produce(store, [draft(id=id)])) == [ANSWERS[state]]
        assert await snapshot(raw, TOPIC) == before

    async def test_the_ids_of_a_lost_reply_are_new_if_they_were_not_stored(
        self, store: Store, raw: Redis
    ) -> None:
        await self.produce(store, drafts(2))  # the lane has a receipt, of an earlier call
        _, ids = await self.lose(store, stored=False, count=3)
        produced = await self.produce(store, [draft(id=id) for id in ids])
        assert placed(produced) == [Placed.STORED] * 3
        assert set(ids) < set(self.waiting(await snapshot(raw, TOPIC)))

    @pytest.mark.parametrize("dedup", [120, 0])
    @pytest.mark.parametrize("state", STATES)
    async def test_a_late_call_makes_no_second_copy_of_what_was_produced_again(
        self, store: Store, raw: Redis, clock: Clock, state: State | None, dedup: int
    ) -> None:
        store.limits = Limits(dedup=dedup)
        lost, (id,) = await self.lose(store, stored=False)
        assert placed(await self.produce(store, [draft(id=id)])) == [Placed.STORED]
        (one,) = await self.arrived(store, clock)
        await settle(store, one, state)
        before = await snapshot(raw, TOPIC)
        await lost.arrive()
        assert await snapshot(raw, TOPIC) == before

    async def test_a_late_call_still_stores_those_that_nobody_produced_again(
        self, store: Store, raw: Redis
    ) -> None:
        lost, (one, two, three) = await self.lose(store, stored=False, count=3)
        await self.produce(store, [draft(id=two)])
        assert await lost.arrive() == b"1l1"
        assert set(self.waiting(await snapshot(raw, TOPIC))) == {one, two, three}
        again = await self.produce(store, [draft(id=id) for id in (one, two, three)])
        assert placed(again) == [Placed.LIVE] * 3

    async def test_after_a_lost_reply_new_ids_are_of_another_lane(self, store: Store) -> None:
        _, (lost,) = await self.lose(store, stored=False)
        ((id, _),) = await self.produce(store, drafts(1))
        assert id.partition("-")[0] != lost.partition("-")[0]

    # a partition

    async def test_an_id_made_for_a_partition_says_so_and_its_record_names_the_topic(
        self, store: Store, raw: Redis
    ) -> None:
        await store.register(TOPIC, 4)
        ((id, _),) = await getattr(store, self.name)(PARTITION, drafts(1))
        assert id.endswith("-1.3")
        found = await snapshot(raw, PARTITION)
        assert codec.decode(found.records[id], TOPIC, id).topic == TOPIC
        assert self.waiting(found) == [id]
        assert await snapshot(raw, TOPIC) == Snapshot()

    @pytest.mark.parametrize("stored", [True, False])
    async def test_the_ids_of_a_lost_reply_are_known_to_their_partition(
        self, store: Store, clock: Clock, stored: bool
    ) -> None:
        store.limits = Limits(dedup=0)
        produce = getattr(store, self.name)
        await produce(PARTITION, drafts(12))  # the lane has a receipt, of an earlier call
        lose_next(store, stored=stored)
        with pytest.raises(ProduceUnknown) as caught:
            await produce(PARTITION, drafts(2))
        again = [draft(id=id) for id in caught.value.ids]
        first = Placed.LIVE if stored else Placed.STORED
        assert placed(await produce(PARTITION, again)) == [first] * 2
        clock.advance(WINDOW // 2)
        await store.process_delay_message(PARTITION, count=MAX_BATCH)
        taken = await store.dispatch_message(PARTITION, "w1", count=MAX_BATCH, lease=LEASE)
        assert len(taken.messages) == 14
        await store.complete_message(PARTITION, "w1", claims(taken.messages))
        assert placed(await produce(PARTITION, again)) == [Placed.FINISHED] * 2

    async def test_the_cap_is_shared_out_among_partitions(self, store: Store) -> None:
        await store.register(TOPIC, 4)
        store.limits = Limits(max_pending=10)
        produce = getattr(store, self.name)
        await produce(PARTITION, drafts(3))
        with pytest.raises(QueueFull) as caught:
            await produce(PARTITION, drafts(1))
        assert (caught.value.topic, caught.value.limit) == (TOPIC, 10)
        await produce(TOPIC, drafts(3))

    # the cap

    async def test_the_cap_counts_what_waits_and_refuses_the_whole_call(
        self, store: Store, raw: Redis
    ) -> None:
        await leased(store)  # does not wait, so does not count
        for priority in Priority:
            await pending(store, priority=priority)
            await delayed(store, 1000, priority=priority)
        store.limits = Limits(max_pending=8)
        before = await snapshot(raw, TOPIC)
        with pytest.raises(QueueFull) as caught:
            await self.produce(store, [draft(id="own"), draft(), draft()])
        assert "topic 'orders' may have 8 messages waiting (setting max_pend" in str(caught.value)
        assert (caught.value.topic, caught.value.limit) == (TOPIC, 8)
        assert await snapshot(raw, TOPIC) == before
        assert placed(await self.produce(store, [draft(id="own"), draft()])) == ["1", "1"]
        with pytest.raises(QueueFull):
            await self.produce(store, drafts(1))

    async def test_a_duplicate_needs_no_room(self, store: Store, raw: Redis) -> None:
        store.limits = Limits(max_pending=2)
        await self.produce(store, [draft(id="a")])
        assert placed(await self.produce(store, [draft(id="a"), draft(id="b")])) == ["l", "1"]
        assert placed(await self.produce(store, [draft(id="b"), draft(id="a")])) == ["l", "l"]
        assert self.waiting(await snapshot(raw, TOPIC)) == ["a", "b"]

    async def test_a_repeated_call_is_not_refused_when_it_filled_the_queue_itself(
        self, store: Store, raw: Redis
    ) -> None:
        store.limits = Limits(max_pending=2)
        resend_next(store, raw)
        assert placed(await self.produce(store, drafts(2))) == [Placed.REPEATED] * 2

    async def test_a_refused_call_stays_refused_when_it_comes_again(
        self, store: Store, raw: Redis, clock: Clock
    ) -> None:
        await bring(store, State.PENDING)
        store.limits = Limits(max_pending=1)

        async def make_room() -> None:
            for one in await take(store):
                await settle(store, one, None)

        resend_next(store, raw, between=make_room)
        with pytest.raises(QueueFull):
            await self.produce(store, [draft(id="own"), draft()])
        assert self.waiting(await snapshot(raw, TOPIC)) == []

    async def test_the_ids_of_a_refusal_that_nobody_heard_are_new(
        self, store: Store, raw: Redis
    ) -> None:
        await bring(store, State.PENDING)
        store.limits = Limits(max_pending=1)
        _, ids = await self.lose(store, stored=True, count=2)
        store.limits = Limits()
        produced = await self.produce(store, [draft(id=id) for id in ids])
        assert placed(produced) == [Placed.STORED] * 2
        assert set(ids) <= set(self.waiting(await snapshot(raw, TOPIC)))

    # the topic

    async def test_a_paused_topic_takes_messages(self, store: Store, raw: Redis) -> None:
        await store.pause_topic(TOPIC)
        ((id, answer),) = await self.produce(store, drafts(1))
        assert answer is Placed.STORED
        assert self.waiting(await snapshot(raw, TOPIC)) == [id]

    async def test_topics_do_not_meet(self, store: Store, raw: Redis) -> None:
        await self.produce(store, [draft(id="own")])
        before = await snapshot(raw, TOPIC)
        ((_, answer),) = await getattr(store, self.name)("others", [draft(id="own")])
        assert answer is Placed.STORED
        assert await snapshot(raw, TOPIC) == before

    async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_stored(
        self, store: Store, raw: Redis
    ) -> None:
        await bring(store, None, id="before")  # so that some of the keys exist
        await pending(store)
        for name in needed(self.name):
            call = partial(self.produce, store, [draft(id=f"own-{name}")])
            await assert_refused(store, raw, name, call)

    async def test_a_level_of_a_wrong_type_does_not_stop_the_others(
        self, store: Store, raw: Redis
    ) -> None:
        for name in load(self.name).keys:
            if name not in needed(self.name) and name not in for_lines(self.name):
                async with broken(raw, key_named(store, name)):
                    ((_, placed),) = await self.produce(store, [draft()])
                assert placed is Placed.STORED

    async def test_a_line_key_of_a_wrong_type_is_named_and_nothing_is_stored(
        self, store: Store, raw: Redis
    ) -> None:
        await store.register(TOPIC)
        lines = for_lines(self.name)
        assert "keyed" in lines
        for name in lines:
            new = [draft(key="k")]
            await assert_refused(store, raw, name, partial(self.produce, store, new))


class HolderContract:
    """processing -> anything: only the holder of the lease may."""

    name: ClassVar[str]

    async def settle(
        self, store: Store, taken: Sequence[Leased], *, worker: str = "w1"
    ) -> list[Settled]:
        raise NotImplementedError

    async def test_nothing_to_settle_touches_nothing(self, store: Store, raw: Redis) -> None:
        assert await self.settle(store, []) == []
        assert await raw.dbsize() == 0

    async def test_a_full_batch_goes_in_one_call_and_one_more_is_refused(
        self, store: Store, raw: Redis
    ) -> None:
        taken = await leased(store, MAX_BATCH)
        (last,) = await leased(store)
        before = await snapshot(raw, TOPIC)
        with pytest.raises(InvalidInput, match="1001 messages in one call; the limit is 1000"):
            await self.settle(store, [*taken, last])
        assert await snapshot(raw, TOPIC) == before
        assert await self.settle(store, taken) == [Settled.DONE] * MAX_BATCH

    @ONE_SERVER
    @pytest.mark.parametrize("worker", ["", "a:b", "a b", "w1\n", "x" * 65])
    async def test_a_bad_worker_name_is_refused(
        self, store: Store, raw: Redis, worker: str
    ) -> None:
        taken = await leased(store)
        before = await snapshot(raw, TOPIC)
        with pytest.raises(InvalidInput, match=r"worker .* must consist of"):
            await self.settle(store, taken, worker=worker)
        assert await snapshot(raw, TOPIC) == before

    async def lose(self, store: Store, clock: Clock, how: State | str | None) -> Leased:
        """Return a message that w1 believes to hold, though it does not."""
        (one,) = await leased(store, lease=1)
        if how == "never leased":
            await settle(store, one, None)
            (id,) = await pending(store)
            return one._replace(id=id)
        if how == "redelivered":
            await settle(store, one, State.PENDING)
            await take(store)
        elif how == "taken over":
            clock.advance(1)
            await store.handle_timeout_message(TOPIC, "monitor", count=1, recovery=1000)
        elif how == "another worker's":
            await settle(store, one, State.PENDING)
            (two,) = await take(store, worker="w2")
            return two
        else:
            await settle(store, one, how if isinstance(how, State) else None)
        return one

    @pytest.mark.parametrize("how", LOST)
    async def test_a_worker_that_has_lost_the_message_changes_nothing(
        self, store: Store, raw: Redis, clock: Clock, how: State | str | None
    ) -> None:
        lost = await self.lose(store, clock, how)
        before = await snapshot(raw, TOPIC)
        assert await self.settle(store, [lost]) == [Settled.LOST]
        assert await snapshot(raw, TOPIC) == before

    @pytest.mark.parametrize("wrong", [-1, 1, -(10**9), 10**15])
    async def test_only_the_exact_token_counts(self, store: Store, raw: Redis, wrong: int) -> None:
        (one,) = await leased(store)
        before = await snapshot(raw, TOPIC)
        assert await self.settle(store, [one._replace(token=one.token + wrong)]) == [Settled.LOST]
        assert await snapshot(raw, TOPIC) == before

    @pytest.mark.parametrize("how", LOST)
    async def test_a_lost_message_does_not_stop_the_rest_of_the_call(
        self, store: Store, raw: Redis, clock: Clock, how: State | str | None
    ) -> None:
        lost = await self.lose(store, clock, how)
        first, last = await leased_more(store, 2)
        nobodys = Leased("nobodys", 1, first.record)
        answers = await self.settle(store, [first, lost, nobodys, last])
        assert answers == [Settled.DONE, Settled.LOST, Settled.LOST, Settled.DONE]

    async def test_an_id_twice_in_one_call_counts_once(self, store: Store) -> None:
        one, two = await leased(store, 2)
        stale = one._replace(token=one.token - 1)
        answers = await self.settle(store, [stale, one, one, two])
        assert answers == [Settled.LOST, Settled.DONE, Settled.LOST, Settled.DONE]

    async def test_a_paused_topic_does_not_matter(self, store: Store) -> None:
        taken = await leased(store, 2)
        await store.pause_topic(TOPIC)
        assert await self.settle(store, taken) == [Settled.DONE] * 2

    async def test_a_lease_past_its_deadline_counts_until_somebody_takes_over(
        self, store: Store, clock: Clock
    ) -> None:
        taken = await leased(store, lease=1)
        clock.advance(10_000)
        assert await self.settle(store, taken) == [Settled.DONE]

    async def test_a_message_with_an_id_that_is_not_utf8_can_be_settled(
        self, store: Store, raw: Redis
    ) -> None:
        one = await foreign(store, raw, b"\xff\x00\xfe")
        assert await self.settle(store, [one]) == [Settled.DONE]

    async def test_a_key_of_a_wrong_type_is_named_and_nothing_is_changed(
        self, store: Store, raw: Redis
    ) -> None:
        await delayed(store, 1000)
        taken = await leased(store, 3)
        await store.complete_message(TOPIC, "w1", [taken.pop()])
        for name in needed(self.name):
            await assert_refused(store, raw, name, partial(self.settle, store, taken))
        assert await self.settle(store, taken) == [Settled.DONE] * 2

    async def test_a_level_of_a_wrong_type_does_not_stop_the_others(
        self, store: Store, raw: Redis
    ) -> None:
        for name in load(self.name).keys:
            if name not in needed(self.name) and name not in for_lines(self.name):
                taken = await leased(store, 2)
                async with broken(raw, key_named(store, name)):
                    assert await self.settle(store, taken) == [Settled.DONE] * 2

    async def test_a_line_key_of_a_wrong_type_is_named_and_nothing_is_settled(
        self, store: Store, raw: Redis
    ) -> None:
        lines = for_lines(self.name)
        taken = await leased_in_turn(store, "kkl", limits=TWO_PER_KEY, waiting="k")
        for name in lines:
            if name == "doorbell":  # is read only if something may start, and nobody knows yet
                await raw.delete(key_named(store, name))
            await assert_refused(store, raw, name, partial(self.settle, store, taken))
        assert await self.settle(store, taken) == [Settled.DONE] * 3

    async def test_what_settles_a_keyed_message_wakes_its_line(
        self, store: Store, raw: Redis
    ) -> None:
        taken = await leased_in_turn(store, "kkl", limits=TWO_PER_KEY, waiting="k")
        await raw.delete(key_named(store, "doorbell"))
        before = await snapshot(raw, TOPIC)
        assert before.blocked["k"] > 0
        extends = self.name in ("extend_lease", "note_progress", "note_record")
        assert await self.settle(store, taken[:1]) == [Settled.DONE]
        found = await snapshot(raw, TOPIC)
        assert found.blocked == (before.blocked if extends else {"k": 0})
        assert found.rung is not extends
        assert len(found.running) == 3 - (not extends)


class ReceiptContract(HolderContract):
    """… and a call that comes again is recognised."""

    async def test_a_repeated_call_says_so_and_changes_nothing(
        self, store: Store, raw: Redis
    ) -> None:
        taken = await leased(store, 3)
        stale = taken[1]._replace(token=1)
        resend_next(store, raw)
        answers = await self.settle(store, [taken[0], stale, taken[2]])
        assert answers == [Settled.REPEATED, Settled.LOST, Settled.REPEATED]
        assert all(answers[::2])
        assert not answers[1]
        assert list((await snapshot(raw, TOPIC)).leases) == [taken[1].id]

    @pytest.mark.parametrize("state", STATES)
    async def test_a_repeated_call_leaves_alone_what_has_moved_on(
        self, store: Store, raw: Redis, clock: Clock, state: State | None
    ) -> None:
        (one,) = await leased(store, id="own")

        async def move_on() -> None:
            clock.advance(WINDOW)
            if not (await snapshot(raw, TOPIC)).records:
                await pending(store, id="own")
            await store.process_delay_message(TOPIC, count=1)
            (again,) = await take(store)
            assert again.id == one.id
            await settle(store, again, state)

        resend_next(store, raw, between=move_on)
        assert await self.settle(store, [one]) == [Settled.REPEATED]

    async def test_the_same_claim_in_a_new_call_is_lost(self, store: Store, raw: Redis) -> None:
        taken = await leased(store)
        assert await self.settle(store, taken) == [Settled.DONE]
        before = await snapshot(raw, TOPIC)
        assert await self.settle(store, taken) == [Settled.LOST]
        assert await snapshot(raw, TOPIC) == before


async def leased_more(store: Store, count: int) -> list[Leased]:
    """Lease new messages to w1, also when others are pending already."""
    ids = await pending(store, count)
    taken = await take(store, MAX_BATCH)
    rest = [one for one in taken if one.id not in ids]
    await store.release_message(TOPIC, "w1", [HandedBack(one) for one in rest])
    return [one for one in taken if one.id in ids]


async def foreign(store: Store, raw: Redis, id: bytes) -> Leased:
    """Let somebody else put a message into the topic under any bytes; dispatch it to w1."""
    keys = store.keys.of(TOPIC)
    await store.register(TOPIC)
    await raw.hset(keys.payload, id, codec.encode(renamed(draft(), "foreign")))
    await raw.lpush(keys.pending, id)
    (one,) = await take(store)
    assert one.id == id.decode("utf-8", "surrogateescape")
    return one


def claims(taken: Sequence[Leased]) -> list[Claim]:
    return [Claim(one.id, one.token) for one in taken]
