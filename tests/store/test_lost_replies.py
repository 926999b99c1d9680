"""Connections that break around a call: whatever was sent, it is done once."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import cycle, product
from typing import TYPE_CHECKING, Protocol

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from mx_rmq.core import codec
from mx_rmq.core.errors import OutcomeUnknown, ProduceUnknown, ServerUnavailable
from mx_rmq.net.caller import RECEIPT_MS
from mx_rmq.store import lanes as lane
from mx_rmq.store import store as store_module
from mx_rmq.store.keys import Keys
from mx_rmq.store.results import Placed, RetryRequest, Settled
from mx_rmq.store.script import load, names
from mx_rmq.store.store import PATIENCE, Store
from tests.conftest import assert_clean
from tests.lab.cases import CASES, DELAY, MONITOR, RECOVERY, WORKER, Case, Stage, die, drafts
from tests.lab.clock import Clock
from tests.lab.messages import FAILURE, LEASE, TOPIC, draft
from tests.lab.proxy import Fault, Proxy
from tests.lab.servers import USUAL, Kind, Server, chosen
from tests.lab.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from mx_rmq.store.results import Leased

    class OpenScene(Protocol):
        async def __call__(self, patience: float = ..., on: Server = ...) -> Scene: ...


PRODUCES = [case for case in CASES if case.script.startswith("produce")]
NOTED = [case for case in CASES if "receipt" in load(case.script).place]
MINUTE = 60_000
KINDS = chosen(*USUAL)
IN_TROUBLE = [
    *product(KINDS, ["a lost reply"], CASES),
    *(
        (kind, *one)
        for kind, one in zip(
            cycle(KINDS),
            product(["three lost replies", "a flushed script cache", "a lost request"], CASES),
            strict=False,
        )
    ),
]
"""A reply is lost on every server. The other troubles take turns on the servers, to save time."""


def sha_of(script: str) -> bytes:
    """Return what stands in a request that runs a script."""
    return load(script).sha.encode()


@dataclass
class Scene:
    """A server seen twice: directly, and through a network that fails."""

    raw: Redis
    clock: Clock
    proxy: Proxy
    direct: Store
    through: Store
    server: Server

    @property
    def stage(self) -> Stage:
        return Stage(self.direct, self.clock, TOPIC)

    @property
    def snapshot(self) -> Awaitable[Snapshot]:
        return snapshot(self.raw, TOPIC)

    async def dispatch(self, worker: str = WORKER) -> list[Leased]:
        taken = await self.direct.dispatch_message(TOPIC, worker, count=10, lease=LEASE)
        if taken.in_turn:
            taken = await self.direct.dispatch_in_turn(TOPIC, worker, count=10, lease=LEASE)
        return taken.messages

    async def finish(self) -> None:
        """Let another worker take and complete everything that waits."""
        self.clock.advance(DELAY)
        await self.direct.process_delay_message(TOPIC, count=10)
        claims = await self.dispatch()
        settled = await self.direct.complete_message(TOPIC, WORKER, claims)
        assert len(settled) == 3
        assert all(settled)

    async def bury(self) -> None:
        """Let another worker take everything that waits and give it up."""
        self.clock.advance(DELAY)
        await self.direct.process_delay_message(TOPIC, count=10)
        for one in await self.dispatch():
            assert await die(self.direct, TOPIC, [one])

    async def flush_scripts(self) -> None:
        await self.raw.script_flush()


@pytest.fixture
async def scenes(
    server: Server, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[OpenScene]:
    """Open scenes, each on an emptied server; two of them name their lanes alike."""
    number = iter(range(100))
    async with AsyncExitStack() as stack:

        async def open_scene(patience: float = PATIENCE, on: Server = server) -> Scene:
            monkeypatch.setattr(lane, "secrets", random.Random(1))
            raw = await stack.enter_async_context(Redis.from_url(on.url))
            await raw.flushall()
            await raw.script_flush()
            clock = Clock()
            proxy = await stack.enter_async_context(
                Proxy(on.socket, short_path / f"p{next(number)}")
            )
            direct = await stack.enter_async_context(await Store.open(on.url, clock=clock))
            through = await stack.enter_async_context(
                await Store.open(proxy.url, clock=clock, patience=patience)
            )
            for name in names():
                await raw.script_load(load(name).source)
            return Scene(raw, clock, proxy, direct, through, on)

        yield open_scene


@pytest.fixture
async def scene(scenes: OpenScene) -> AsyncIterator[Scene]:
    scene = await scenes()
    yield scene
    await assert_clean(scene.direct, scene.raw)


@pytest.fixture
async def impatient(scenes: OpenScene) -> AsyncIterator[Scene]:
    """A scene whose client sends each call once."""
    scene = await scenes(patience=0.0)
    yield scene
    await assert_clean(scene.direct, scene.raw)


@pytest.fixture
def durable(kind: Kind, short_path: Path) -> Iterator[Server]:
    """A server of the test's own, which keeps what it was told."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with Server(kind, short_path / "durable", *options) as server:
        yield server


@pytest.fixture(scope="module")
def uncut() -> dict[tuple[Kind, str], Snapshot]:
    """What each case leaves behind when nothing goes wrong."""
    return {}


async def play(scene: Scene, case: Case) -> tuple[object, Snapshot]:
    """Bring the topic into the case's state, act through the proxy, look."""
    seeded = await case.seed(scene.stage)
    answer = await case.act(scene.through, TOPIC, seeded)
    return answer, await scene.snapshot


@pytest.mark.parametrize(("kind", "trouble", "case"), IN_TROUBLE, ids=str, indirect=["kind"])
async def test_a_call_in_trouble_succeeds_and_is_done_once(
    scenes: OpenScene,
    uncut: dict[tuple[Kind, str], Snapshot],
    kind: Kind,
    case: Case,
    trouble: str,
) -> None:
    if (kind, case.name) not in uncut:
        answer, uncut[kind, case.name] = await play(await scenes(), case)
        assert answer == case.done

    scene = await scenes()
    sha = sha_of(case.script)
    match trouble:
        case "a lost request":
            scene.proxy.cut_request(1, sha)
        case "a flushed script cache":
            scene.proxy.cut_reply(1, sha, then=scene.flush_scripts)
        case _:
            scene.proxy.cut_reply(3 if "three" in trouble else 1, sha)
    answer, found = await play(scene, case)

    assert scene.proxy.count(sha) == (4 if "three" in trouble else 2)
    assert answer == (case.done if trouble == "a lost request" else case.again)
    assert found == uncut[kind, case.name]
    await assert_clean(scene.direct, scene.raw)


@pytest.mark.parametrize(
    "script", ["produce_normal_message", "dispatch_message", "retry_message", "requeue_message"]
)
async def test_a_call_survives_a_restart_of_the_server(
    scenes: OpenScene, durable: Server, script: str
) -> None:
    case = next(case for case in CASES if case.script == script)
    _, wanted = await play(await scenes(on=durable), case)

    async def restart() -> None:
        durable.kill()
        durable.start()

    scene = await scenes(on=durable)
    scene.proxy.cut_reply(1, sha_of(script), then=restart)
    answer, found = await play(scene, case)

    kept_scripts = durable.kind is Kind.REDIS_6_2  # SCRIPT LOAD stands in its append-only file
    assert kept_scripts or scene.proxy.count(b"EVAL\r\n") == 1
    assert answer == case.again
    assert found == wanted


@pytest.mark.parametrize(
    ("refuse", "allow"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        (
            ("CONFIG SET", "min-replicas-to-write", "1"),
            ("CONFIG SET", "min-replicas-to-write", "0"),
        ),
    ],
    ids=["a replica that is then promoted", "too few replicas for a moment"],
)
async def test_a_refusal_that_passes_is_waited_out(
    scenes: OpenScene, durable: Server, refuse: tuple[str, ...], allow: tuple[str, ...]
) -> None:
    scene = await scenes(on=durable)
    await scene.stage.pending()
    execute: Callable[..., Awaitable[object]] = scene.raw.execute_command

    async def recover() -> None:
        await execute(*allow)

    await execute(*refuse)
    scene.proxy.delay_reply(then=recover)
    taken = await scene.through.dispatch_message(TOPIC, WORKER, count=3, lease=LEASE)
    assert len(taken.messages) == 3
    assert scene.proxy.count(sha_of("dispatch_message")) == 2  # one was refused


async def test_a_connection_that_falls_silent_is_given_up_and_the_call_is_done_once(
    scenes: OpenScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "REPLY_WITHIN", 0.1)
    scene = await scenes()
    scene.proxy.hold_reply(1, sha_of("produce_normal_message"))
    produced = await scene.through.produce_normal_message(TOPIC, drafts(own=False))

    assert [placed for _, placed in produced] == [Placed.REPEATED] * 3
    assert len((await scene.snapshot).records) == 3


# What others did between the server's run of a call and its repetition.


@pytest.mark.parametrize("case", PRODUCES, ids=str)
async def test_a_produce_repeated_after_its_messages_were_handled_makes_no_second_copy(
    scene: Scene, case: Case
) -> None:
    scene.proxy.cut_reply(1, sha_of(case.script), then=scene.finish)
    answer, found = await play(scene, case)

    assert answer == case.again
    assert found.records == {}
    assert found.high == found.normal == found.low == []
    assert found.delayed_high == found.delayed == found.delayed_low == {}


async def test_a_requeue_repeated_after_the_message_died_again_leaves_it_dead(
    scene: Scene,
) -> None:
    case = next(case for case in CASES if case.name == "requeue_message, dead")

    async def die_again() -> None:
        await scene.bury()

    scene.proxy.cut_reply(then=die_again)
    answer, found = await play(scene, case)

    assert answer is Settled.REPEATED
    assert found.dead == {"b": scene.clock.now}
    assert found.normal == []


async def test_a_retry_repeated_after_the_next_dispatch_leaves_the_new_lease_alone(
    scene: Scene,
) -> None:
    await scene.direct.produce_normal_message(TOPIC, [draft(id="a")])
    (one,) = await scene.dispatch()
    before = scene.clock.now

    async def redeliver() -> None:
        scene.clock.advance(DELAY)
        assert await scene.direct.process_delay_message(TOPIC, count=1) == ["a"]
        assert len(await scene.dispatch("w2")) == 1

    scene.proxy.cut_reply(then=redeliver)
    message = codec.decode(one.record).failed(FAILURE)
    (settled,) = await scene.through.retry_message(
        TOPIC, WORKER, [RetryRequest(one, message, DELAY)]
    )

    found = await scene.snapshot
    assert settled is Settled.REPEATED
    assert found.leases == {"a": f"{(before + DELAY) * 1000}:w2"}
    assert found.delayed == {}


async def test_a_dispatch_repeated_after_a_takeover_does_not_give_the_messages_again(
    scene: Scene,
) -> None:
    await scene.stage.pending()

    async def take_over() -> None:
        scene.clock.advance(LEASE)
        late = await scene.direct.handle_timeout_message(TOPIC, MONITOR, count=2, recovery=RECOVERY)
        assert [one.id for one in late.messages] == ["a", "b"]

    scene.proxy.cut_reply(then=take_over)
    taken = await scene.through.dispatch_message(TOPIC, WORKER, count=3, lease=LEASE)
    assert [one.id for one in taken.messages] == ["c"]


@pytest.mark.parametrize(("script", "id"), [("cancel_message", "a"), ("discard_message", "b")])
async def test_a_removal_repeated_after_the_id_came_back_spares_the_new_message(
    scene: Scene, script: str, id: str
) -> None:
    case = next(case for case in CASES if case.script == script)
    came_back = []

    async def come_back() -> None:
        scene.clock.advance(200_000)  # beyond the dedup window
        (produced,) = await scene.direct.produce_normal_message(TOPIC, [draft("new", id=id)])
        came_back.append(produced.placed)

    scene.proxy.cut_reply(then=come_back)
    answer, found = await play(scene, case)

    assert answer is Settled.REPEATED
    assert came_back == [Placed.STORED]
    assert b"new" in found.records[id]


# When patience ends.


@pytest.mark.parametrize(
    ("kind", "case"), list(zip(cycle(KINDS), CASES, strict=False)), ids=str, indirect=["kind"]
)
async def test_the_client_library_sends_nothing_twice_by_itself(
    impatient: Scene, case: Case
) -> None:
    seeded = await case.seed(impatient.stage)
    sha = sha_of(case.script)
    impatient.proxy.cut_reply(5, sha)
    with pytest.raises(OutcomeUnknown):
        await case.act(impatient.through, TOPIC, seeded)
    assert impatient.proxy.count(sha) == impatient.proxy.cuts[Fault.CUT_REPLY] == 1


@pytest.mark.parametrize("delay", [False, True], ids=["normal", "delay"])
@pytest.mark.parametrize(
    ("first", "placed"),
    [
        ("not stored", Placed.STORED),
        ("stored", Placed.LIVE),
        ("completed", Placed.FINISHED),
        ("dead", Placed.DEAD),
    ],
)
async def test_a_produce_of_unknown_outcome_can_be_repeated_with_its_ids(
    impatient: Scene, delay: bool, first: str, placed: Placed
) -> None:
    scene = impatient
    name = "produce_delay_message" if delay else "produce_normal_message"
    batch = drafts(own=False, delay=DELAY if delay else 0)
    # A lane with a history: its receipt must not be taken for this call's.
    (earlier,) = await scene.through.produce_normal_message(TOPIC, [draft(0)])
    assert await scene.through.cancel_message(TOPIC, earlier.id)

    if first == "not stored":
        scene.proxy.cut_request()
    else:
        scene.proxy.cut_reply(then={"completed": scene.finish, "dead": scene.bury}.get(first))
    with pytest.raises(ProduceUnknown) as raised:
        await getattr(scene.through, name)(TOPIC, batch)
    ids = raised.value.ids
    owned = [replace(one, id=id) for one, id in zip(batch, ids, strict=True)]

    assert await getattr(scene.through, name)(TOPIC, owned) == [(id, placed) for id in ids]
    assert all(one.placed.duplicate for one in await getattr(scene.direct, name)(TOPIC, owned))
    found = await scene.snapshot
    copies = [*found.high, *found.normal, *found.low]
    copies += [*found.delayed_high, *found.delayed, *found.delayed_low, *found.dead]
    assert sorted(copies) == ([] if first == "completed" else sorted(ids))


@pytest.mark.parametrize("fault", [Fault.CUT_REQUEST, Fault.CUT_REPLY])
async def test_a_produce_that_gets_no_further_than_the_registry_of_topics_says_what_that_means(
    impatient: Scene, fault: Fault
) -> None:
    cut = impatient.proxy.cut_reply if fault is Fault.CUT_REPLY else impatient.proxy.cut_request
    cut(1, sha_of("register_topics"))
    with pytest.raises((ServerUnavailable, ProduceUnknown)):
        await impatient.through.produce_normal_message(TOPIC, [draft(1)])
    assert (await impatient.snapshot).records == {}


async def test_when_nobody_is_there_the_error_says_that_nothing_was_changed(
    impatient: Scene,
) -> None:
    await impatient.through.produce_normal_message(TOPIC, [draft(1)])
    before = await impatient.snapshot
    await impatient.proxy.close()
    with pytest.raises(ServerUnavailable):
        await impatient.through.produce_normal_message(TOPIC, [draft(2)])
    with pytest.raises(ServerUnavailable):
        await impatient.through.dispatch_message(TOPIC, WORKER, count=1, lease=LEASE)
    assert await impatient.snapshot == before


async def test_a_call_whose_reply_was_lost_is_of_unknown_outcome_although_nobody_is_there_later(
    scenes: OpenScene,
) -> None:
    scene = await scenes(patience=0.5)
    await scene.stage.pending()
    closing = []

    async def go_away() -> None:
        closing.append(asyncio.create_task(scene.proxy.close()))

    scene.proxy.cut_reply(1, sha_of("dispatch_message"), then=go_away)
    with pytest.raises(OutcomeUnknown):
        await scene.through.dispatch_message(TOPIC, WORKER, count=3, lease=LEASE)
    await asyncio.gather(*closing)
    assert len((await scene.snapshot).leases) == 3


# The memory of a call.


@pytest.mark.parametrize("case", NOTED, ids=str)
async def test_a_receipt_outlives_every_repetition_of_its_call(scene: Scene, case: Case) -> None:
    seeded = await case.seed(scene.stage)
    before = await lanes(scene)
    await case.act(scene.through, TOPIC, seeded)

    (lane,) = await lanes(scene) - before
    assert await scene.raw.pttl(Keys().of(TOPIC).receipt(lane)) > RECEIPT_MS - MINUTE


# A caller that is cancelled.


async def cancel_in_flight(scene: Scene, script: str, act: Callable[[], Awaitable[object]]) -> None:
    """Cancel a call after the server ran it, before its reply."""
    ran = asyncio.Event()

    async def say_so() -> None:
        ran.set()

    scene.proxy.hold_reply(1, sha_of(script), then=say_so)
    task = asyncio.ensure_future(act())
    await ran.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def lanes(scene: Scene) -> set[str]:
    """Return the lanes that have left a receipt."""
    keys = [key async for key in scene.raw.scan_iter(Keys().of(TOPIC).receipt("*"))]
    return {key.decode().rpartition(":")[2] for key in keys}


async def test_a_cancelled_produce_retires_its_lane_and_doubles_nothing(scene: Scene) -> None:
    store = scene.through
    produce = store.produce_normal_message
    await cancel_in_flight(scene, produce.__name__, lambda: produce(TOPIC, [draft(1)]))
    before = await lanes(scene)
    (first, second) = [(await produce(TOPIC, [draft(number)]))[0] for number in (2, 3)]

    found = await scene.snapshot
    assert first.placed is second.placed is Placed.STORED
    assert len(found.normal) == len(found.records) == 3
    assert found.normal[1:] == [first.id, second.id]
    assert len(before) == 1
    assert {id.partition("-")[0] for id in found.normal[1:]} == await lanes(scene) - before


async def test_a_cancelled_dispatch_retires_its_lane_and_its_messages_come_back(
    scene: Scene,
) -> None:
    store = scene.through
    await scene.stage.pending()

    async def dispatch() -> list[str]:
        taken = await store.dispatch_message(TOPIC, WORKER, count=2, lease=LEASE)
        return [one.id for one in taken.messages]

    await cancel_in_flight(scene, "dispatch_message", dispatch)
    assert await dispatch() == ["c"]
    assert len(await lanes(scene)) == 3  # the producer's and two of the worker's
    scene.clock.advance(LEASE)
    late = await store.handle_timeout_message(TOPIC, MONITOR, count=10, recovery=RECOVERY)
    assert [one.id for one in late.messages] == ["a", "b", "c"]


async def test_a_cancelled_complete_retires_its_lane_and_is_done_once(scene: Scene) -> None:
    store = scene.through
    claims = await scene.stage.leased()
    complete = store.complete_message
    await cancel_in_flight(scene, complete.__name__, lambda: complete(TOPIC, WORKER, claims[:2]))

    assert await complete(TOPIC, WORKER, claims) == [
        Settled.LOST,
        Settled.LOST,
        Settled.DONE,
    ]
    found = await scene.snapshot
    assert (found.records, found.leases, found.deadlines) == ({}, {}, {})
    assert len(await lanes(scene)) == 3
