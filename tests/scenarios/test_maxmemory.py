"""At maxmemory only produce is refused, and cleanly; everything that ends a message still works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.exceptions import OutOfMemoryError

from mx_rmq import MessageQueue, Worker
from mx_rmq.core.errors import ServerFull
from mx_rmq.store.results import Placed
from mx_rmq.store.store import Store
from tests.conftest import assert_clean
from tests.lab.cases import CASES, Case, Stage
from tests.lab.messages import TOPIC, draft, leased, pending
from tests.lab.servers import Kind, Server
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.asyncio import Redis

    from tests.lab.clock import Clock

PRODUCES = [case for case in CASES if case.script.startswith(("produce", "replace_message"))]
COPIES = [case for case in CASES if case.script == "fan_out"]
OTHERS = [case for case in CASES if case not in (*PRODUCES, *COPIES)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], Server]]:
    """Return a server of a kind whose memory these tests may shrink."""
    started: dict[Kind, Server] = {}

    def get(kind: Kind) -> Server:
        if kind not in started:
            started[kind] = Server(kind, tmp_path_factory.mktemp("small")).start()
        return started[kind]

    yield get
    for server in started.values():
        server.kill()


@pytest.fixture
def server(kind: Kind, small: Callable[[Kind], Server]) -> Server:
    return small(kind)


@pytest.fixture(autouse=True)
async def roomy(raw: Redis) -> None:
    """Begin with as much memory as there is."""
    await raw.config_set("maxmemory", 0)


async def fill_up(raw: Redis) -> None:
    """Leave no memory, whatever the test will set free."""
    await raw.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        await raw.set("anything", "1")


@pytest.mark.parametrize("case", PRODUCES, ids=str)
async def test_a_produce_at_maxmemory_is_refused_and_leaves_no_trace(
    raw: Redis, store: Store, clock: Clock, case: Case
) -> None:
    await pending(store, 2)
    await leased(store, 1)
    seeded = await case.seed(Stage(store, clock, TOPIC))
    await fill_up(raw)
    before = await snapshot(raw, TOPIC), await raw.dbsize()

    with pytest.raises(ServerFull, match="raise maxmemory"):
        await case.act(store, TOPIC, seeded)

    assert (await snapshot(raw, TOPIC), await raw.dbsize()) == before
    await raw.config_set("maxmemory", 0)
    assert await case.act(store, TOPIC, seeded) == case.done


@pytest.mark.parametrize("case", COPIES, ids=str)
async def test_messages_wait_in_their_topic_while_there_is_no_memory_for_copies(
    raw: Redis, store: Store, clock: Clock, case: Case
) -> None:
    seeded = await case.seed(Stage(store, clock, TOPIC))
    await fill_up(raw)
    before = await snapshot(raw, TOPIC), await raw.dbsize()
    with pytest.raises(ServerFull, match="raise maxmemory"):
        await case.act(store, TOPIC, seeded)
    assert (await snapshot(raw, TOPIC), await raw.dbsize()) == before
    await raw.config_set("maxmemory", 0)
    assert await case.act(store, TOPIC, seeded) == case.done


@pytest.mark.parametrize("case", OTHERS, ids=str)
async def test_every_other_transition_works_at_maxmemory(
    raw: Redis, store: Store, clock: Clock, case: Case
) -> None:
    seeded = await case.seed(Stage(store, clock, TOPIC))
    await fill_up(raw)
    assert await case.act(store, TOPIC, seeded) == case.done


async def test_a_queue_that_fills_the_server_can_be_worked_off_and_filled_again(
    raw: Redis, store: Store
) -> None:
    used = (await raw.info("memory"))["used_memory"]
    await raw.config_set("maxmemory", used + 2_000_000)

    for _ in range(2):
        stored = await fill(store)
        assert 10 < stored < 1_000
        while taken := (await store.dispatch_message(TOPIC, "w1", count=9, lease=1_000)).messages:
            stored -= len(taken)
            assert all(await store.complete_message(TOPIC, "w1", taken))
        assert stored == 0


async def fill(store: Store) -> int:
    """Produce until the server refuses; return how many it took."""
    for stored in range(1_000):
        try:
            await pending(store, 1, headers={"filler": "x" * 20_000})
        except ServerFull:
            return stored
    return 1_000


async def test_a_first_produce_to_a_new_topic_at_maxmemory_is_refused_alike(
    raw: Redis, store: Store
) -> None:
    await fill_up(raw)
    with pytest.raises(ServerFull):
        await store.produce_normal_message("new", [draft(1)])
    assert await raw.dbsize() == 0
    await raw.config_set("maxmemory", 0)
    ((_, placed),) = await store.produce_normal_message("new", [draft(1)])
    assert placed is Placed.STORED


async def test_a_worker_can_start_at_maxmemory_and_work_off_what_is_there(
    raw: Redis, server: Server, store: Store, clock: Clock
) -> None:
    await Stage(store, clock, TOPIC).pending()
    await fill_up(raw)
    async with await Store.open(server.url, clock=clock) as newcomer:
        await assert_clean(newcomer, raw)  # the preflight has left no key behind
        taken = await newcomer.dispatch_message(TOPIC, "w1", count=9, lease=1_000)
        claims = taken.messages
        assert all(await newcomer.complete_message(TOPIC, "w1", claims))
    assert len(claims) == 3


async def test_a_worker_starts_at_maxmemory_and_handles_every_partition(
    raw: Redis, server: Server
) -> None:
    mq, handled = MessageQueue(server.url), list[int]()

    @mq.handler("known", partitions=3)
    async def known(number: int) -> None:
        handled.append(number)

    @mq.handler("new")
    async def new(number: int) -> None: ...

    async with mq:
        await mq.produce_many("known", range(300))
    await fill_up(raw)
    async with mq:
        await Worker(mq).drain()
    assert sorted(handled) == [*range(300)]
