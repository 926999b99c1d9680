"""What a produce does if its id is taken: ignore, replace, error; and for how long it is taken."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import (
    Delivery,
    DuplicateMessage,
    InvalidInput,
    MessageQueue,
    Middleware,
    NotConfirmed,
    Outgoing,
    PartlyProduced,
    QueueFull,
    Reject,
    Retry,
    State,
    Worker,
    events,
)
from mx_rmq.admin import What
from mx_rmq.store.results import HandedBack, Leased
from tests.lab.calls import resend_next
from tests.runtime.stage import Seen, on_servers, queue, until, until_so

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from redis.asyncio import Redis

    from tests.lab.servers import Server

pytestmark = on_servers


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


class Handling:
    """A handler whose runs wait until they are let go."""

    def __init__(self, mq: MessageQueue, **options: Any) -> None:
        self.began: list[Any] = []
        self.gates: list[asyncio.Future[Any]] = []

        @mq.handler("t", **options)
        async def handle(payload: Any) -> None:
            gate = asyncio.get_running_loop().create_future()
            self.began.append(payload)
            self.gates.append(gate)
            await gate

    async def runs(self, count: int) -> None:
        await until(lambda: len(self.began) >= count)

    def end(self, error: BaseException | None = None) -> None:
        """End the latest run."""
        if error is None:
            self.gates[-1].set_result(None)
        else:
            self.gates[-1].set_exception(error)


async def is_gone(mq: MessageQueue, id: str = "own", topic: str = "t") -> bool:
    return await mq.admin.get(topic, id) is None


async def is_idle(mq: MessageQueue) -> bool:
    stats = await mq.admin.stats("t")
    return not (stats.pending or stats.delayed or stats.processing)


async def deadline(mq: MessageQueue) -> float:
    found = await mq.admin.get("t", "own")
    assert found is not None
    assert found.lease_deadline is not None
    return found.lease_deadline


# replace


async def test_of_many_updates_within_the_delay_the_newest_runs_once(mq: MessageQueue) -> None:
    handling = Handling(mq)
    for number in range(10):
        id = await mq.produce("t", number, id="own", delay=0.2, on_duplicate="replace")
        assert id == "own"
    async with Worker(mq):
        await handling.runs(1)
        handling.end()
        await until_so(lambda: is_gone(mq))
    assert handling.began == [9]


async def test_an_update_of_a_running_message_runs_once_after_it(mq: MessageQueue) -> None:
    handling, seen = Handling(mq), Seen(mq.events)
    async with Worker(mq):
        await mq.produce("t", "old", id="own")
        await handling.runs(1)
        for payload in ("newer", "newest"):
            await mq.produce("t", payload, id="own", on_duplicate="replace")
        assert not handling.gates[0].cancelled()
        found = await mq.admin.get("t", "own")
        assert found is not None
        assert (found.state, found.payload) == (State.PROCESSING, "newest")
        assert found.worker == (await mq.admin.workers())[0].name
        handling.end()
        await handling.runs(2)
        handling.end()
        await until_so(lambda: is_gone(mq))
    assert handling.began == ["old", "newest"]
    assert (await seen.one(events.Replaced)).error == ""
    stats = await mq.admin.stats("t")
    assert (stats.totals.replaced, stats.totals.completed) == (2, 1)
    happened = [one.what for one in await mq.admin.history("t", "own")]
    assert happened.count(What.REPLACED) == 2


async def test_a_run_whose_message_was_replaced_is_not_counted_as_completed(
    mq: MessageQueue,
) -> None:
    handling = Handling(mq)
    counted: list[float] = []
    mq.events.count_completed(lambda topic, seconds: counted.extend(seconds))
    async with Worker(mq):
        await mq.produce("t", "old", id="own")
        await handling.runs(1)
        await mq.produce("t", "new", id="own", on_duplicate="replace")
        handling.end()
        await handling.runs(2)
        handling.end()
        await until_so(lambda: is_gone(mq))
    assert len(counted) == 1


@pytest.mark.parametrize("error", [ValueError("no"), Reject("never"), Retry(3600)])
async def test_a_failed_attempt_does_not_hold_up_its_replacement(
    mq: MessageQueue, error: Exception
) -> None:
    handling, seen = Handling(mq), Seen(mq.events)
    async with Worker(mq):
        await mq.produce("t", "old", id="own")
        await handling.runs(1)
        await mq.produce("t", "new", id="own", on_duplicate="replace")
        handling.end(error)
        await handling.runs(2)
        handling.end()
        await until_so(lambda: is_gone(mq))
    assert handling.began == ["old", "new"]
    assert type(error).__name__ in (await seen.one(events.Replaced)).error
    assert not seen.of(events.Died)


async def test_the_replacement_of_a_running_message_waits_for_its_delay(mq: MessageQueue) -> None:
    handling = Handling(mq)
    async with Worker(mq):
        await mq.produce("t", "old", id="own")
        await handling.runs(1)
        await mq.produce("t", "new", id="own", on_duplicate="replace", delay=3600)
        handling.end()
        await until_so(lambda: _is_in(mq, State.DELAYED))
    assert handling.began == ["old"]


async def _is_in(mq: MessageQueue, state: State) -> bool:
    found = await mq.admin.get("t", "own")
    return found is not None and found.state is state


async def test_a_long_handler_keeps_its_lease_after_a_replacement(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, lease=1.0) as mq:
        handling, seen = Handling(mq), Seen(mq.events)
        async with Worker(mq):
            await mq.produce("t", "old", id="own")
            await handling.runs(1)
            await mq.produce("t", "new", id="own", on_duplicate="replace")
            first = await deadline(mq)

            async def extended() -> bool:
                return await deadline(mq) > first + 1.0

            await until_so(extended)
            assert not seen.of(events.LeaseLost)
            handling.end()
            await handling.runs(2)
            handling.end()
            await until_so(lambda: is_gone(mq))
        assert handling.began == ["old", "new"]


async def test_a_worker_that_stops_hands_the_replacement_back(mq: MessageQueue) -> None:
    handling = Handling(mq)
    async with Worker(mq, grace=0):
        await mq.produce("t", "old", id="own")
        await handling.runs(1)
        await mq.produce("t", "new", id="own", on_duplicate="replace")
    found = await mq.admin.get("t", "own")
    assert found is not None
    assert (found.state, found.payload, found.attempts) == (State.PENDING, "new", 0)


async def test_if_the_worker_dies_the_replacement_runs_alone(raw: Redis, server: Server) -> None:
    async with queue(server.url, lease=1.0) as mq:
        await mq.produce("t", "old", id="own")
        await mq.store.dispatch_message("t", "killed", count=1, lease=1000)
        await mq.produce("t", "new", id="own", on_duplicate="replace")
        handling, seen = Handling(mq), Seen(mq.events)
        async with Worker(mq):
            await handling.runs(1)
            handling.end()
            await until_so(lambda: is_gone(mq))
        assert handling.began == ["new"]
        assert (await seen.one(events.TakenOver)).lost_by == "killed"
        assert (await seen.one(events.Completed)).attempt == 1  # no crash is counted


@pytest.mark.parametrize("how", ["dead", "quarantined"])
async def test_an_archived_message_is_revived_with_the_new_payload(
    mq: MessageQueue, how: str
) -> None:
    began = []

    @mq.handler("t", max_attempts=1)
    async def handle(payload: dict[str, int]) -> None:
        began.append(payload)
        if "bad" in payload:
            raise ValueError("bad")

    async with Worker(mq):
        await mq.produce("t", {"bad": 1} if how == "dead" else "junk", id="own")
        await until_so(lambda: _is_in(mq, State(how)))
        await mq.produce("t", {"good": 1}, id="own", on_duplicate="replace")
        await until_so(lambda: is_gone(mq))
    assert began[-1] == {"good": 1}


async def test_replacing_races_with_completing_and_no_update_is_lost(mq: MessageQueue) -> None:
    newest: dict[str, int] = {}
    handled: dict[str, int] = {}

    @mq.handler("t", concurrency=20)
    async def handle(payload: dict[str, Any]) -> None:
        await asyncio.sleep(payload["number"] % 3 / 1000)
        handled[payload["id"]] = payload["number"]

    async def update(id: str) -> None:
        for number in range(40):
            newest[id] = number
            payload = {"id": id, "number": number}
            await mq.produce("t", payload, id=id, on_duplicate="replace")

    async with Worker(mq):
        await asyncio.gather(*(update(f"id{number}") for number in range(20)))
        await until_so(lambda: is_idle(mq))
    assert handled == newest


async def meet(mq: MessageQueue, rival: str, topic: str, held: Sequence[Leased]) -> None:
    """Do what may happen at the same moment as a replacement."""
    store = mq.store
    if rival == "cancel":
        await mq.admin.cancel(topic, "own")
    elif rival == "complete":
        await store.complete_message(topic, "w1", held)
    elif rival == "release":
        await store.release_message(topic, "w1", [HandedBack(one) for one in held])
    elif rival == "takeover":
        await store.handle_timeout_message(topic, "m1", count=9, recovery=1)
    else:
        await store.expire_message(topic, "m1", count=9, recovery=1)


@pytest.mark.parametrize("rival", ["cancel", "complete", "release", "takeover", "expire"])
async def test_whichever_comes_first_the_new_payload_runs_once(
    raw: Redis, server: Server, rival: str
) -> None:
    topics = [f"t{number}" for number in range(30)]
    handled: list[str] = []
    async with queue(server.url, lease=1.0) as mq:

        async def handle(payload: str, delivery: Delivery) -> None:
            if payload == "new":
                handled.append(delivery.topic)

        for number, topic in enumerate(topics):
            mq.handler(topic)(handle)
            held: list[Leased] = []
            await mq.produce(topic, "old", id="own", ttl=0.001 if rival == "expire" else None)
            if rival in ("complete", "release", "takeover"):
                held = (await mq.store.dispatch_message(topic, "w1", count=1, lease=1)).messages
            new = mq.produce(topic, "new", id="own", on_duplicate="replace")
            both = [meet(mq, rival, topic, held), new]
            await asyncio.gather(*(both if number % 2 else reversed(both)))
        left = [topic for topic in topics if await mq.admin.get(topic, "own")]
        assert left == topics or rival == "cancel"  # which may come second
        async with Worker(mq):
            for topic in topics:
                await until_so(partial(is_gone, mq, "own", topic))
    assert sorted(handled) == sorted(left)


# error


async def place(mq: MessageQueue, state: str) -> None:
    """Bring a message into a state."""
    await mq.produce("t", 1, id="own", delay=3600 if state == "delayed" else None)
    if state not in ("pending", "delayed"):
        taken = (await mq.store.dispatch_message("t", "w1", count=1, lease=60_000)).messages
    if state == "completed":
        await mq.store.complete_message("t", "w1", taken)


@pytest.mark.parametrize("delay", [None, 3600])
@pytest.mark.parametrize("state", ["pending", "delayed", "processing", "completed"])
async def test_an_error_names_the_state_of_the_message_that_has_the_id(
    mq: MessageQueue, state: str, delay: float | None
) -> None:
    await place(mq, state)
    with pytest.raises(DuplicateMessage, match=f"id 'own' is taken: its message is {state}") as no:
        await mq.produce("t", 2, id="own", on_duplicate="error", delay=delay)
    assert (no.value.id, no.value.state) == ("own", state)
    assert no.value.duplicates == {"own": state}
    assert await mq.produce("t", 2, id="other", on_duplicate="error") == "other"
    assert await mq.produce("t", 2, on_duplicate="error")


@pytest.mark.parametrize("state", ["dead", "quarantined"])
async def test_an_error_names_an_archive(mq: MessageQueue, state: str) -> None:
    @mq.handler("t", max_attempts=1)
    async def handle(payload: dict[str, int]) -> None:
        raise ValueError

    async with Worker(mq):
        await mq.produce("t", {} if state == "dead" else "junk", id="own")
        await until_so(lambda: _is_in(mq, State(state)))
    with pytest.raises(DuplicateMessage) as no:
        await mq.produce("t", {}, id="own", on_duplicate="error")
    assert no.value.state == state


async def test_a_call_repeated_after_its_own_lost_reply_is_no_duplicate(
    mq: MessageQueue, raw: Redis
) -> None:
    await mq.produce("t", 1)  # registers the topic
    resend_next(mq.store, raw)
    assert await mq.produce("t", 1, id="own", on_duplicate="error") == "own"


async def test_concurrent_calls_that_share_a_script_call_get_their_own_errors(
    mq: MessageQueue,
) -> None:
    await mq.produce("t", 0, id="a")
    calls = [
        mq.produce("t", number, id=id, on_duplicate="error")
        for number, id in enumerate(["a", "b", "c", "b", "d"])
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(one, DuplicateMessage) for one in answers] == [
        *(True, False, False),
        *(True, False),
    ]


async def test_produce_many_stores_what_is_new_and_then_says_what_was_taken(
    mq: MessageQueue,
) -> None:
    await mq.produce("t", 0, id="a")
    await mq.produce("t", 0, id="b", delay=3600)
    with pytest.raises(PartlyProduced) as partly:
        await mq.produce_many("t", range(4), ids=["a", "x", "b", "y"], on_duplicate="error")
    assert (partly.value.ids, partly.value.places) == (("x", "y"), (1, 3))
    cause = partly.value.__cause__
    assert isinstance(cause, DuplicateMessage)
    assert cause.duplicates == {"a": "pending", "b": "delayed"}
    with pytest.raises(DuplicateMessage, match="is pending; so is 1 of the others"):
        await mq.produce_many("t", range(2), ids=["a", "x"], on_duplicate="error")


# produce_many, options


async def test_produce_many_replaces_each_and_the_last_of_an_id_wins(mq: MessageQueue) -> None:
    await mq.produce("t", "old", id="a")
    ids = ["a", "b", "a", *(f"c{number}" for number in range(120)), "a"]
    produced = await mq.produce_many("t", range(len(ids)), ids=ids, on_duplicate="replace")
    assert produced == ids
    found = await mq.admin.get("t", "a")
    assert found is not None
    assert found.payload == len(ids) - 1
    assert (await mq.admin.stats("t")).pending == 122


async def test_produce_many_says_what_it_has_replaced_when_the_queue_is_full(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, max_pending=2) as mq:
        await mq.produce("t", "old", id="a")
        ids = ["a", "b", "c"]
        with pytest.raises(PartlyProduced) as partly:
            await mq.produce_many("t", range(3), ids=ids, on_duplicate="replace")
        assert isinstance(partly.value.__cause__, QueueFull)
        assert "a" in partly.value.ids
        assert len(partly.value.ids) == 2


async def test_middleware_sees_and_changes_what_happens_to_duplicates(
    raw: Redis, server: Server
) -> None:
    class Latest(Middleware):
        async def produce(self, messages: Sequence[Outgoing], call_next: Any) -> list[str]:
            assert {(one.on_duplicate, one.dedup) for one in messages} == {("ignore", None)}
            latest = [replace(one, on_duplicate="replace", dedup=0) for one in messages]
            return list(await call_next(latest))

    async with queue(server.url) as mq:
        mq.middleware = [Latest()]
        for number in range(3):
            await mq.produce("t", number, id="own")
            await mq.produce_many("t", [number, number], ids=["own", "two"])
        for id in ("own", "two"):
            found = await mq.admin.get("t", id)
            assert found is not None
            assert found.payload == 2


async def test_a_window_of_its_own_frees_an_id_sooner_or_later(mq: MessageQueue) -> None:
    began: list[str] = []

    @mq.handler("t")
    async def handle(payload: str) -> None:
        began.append(payload)

    async with Worker(mq):
        for dedup in (0, 3600, None):
            for payload in (f"{dedup} first", f"{dedup} second"):
                await mq.produce("t", payload, id=f"id-{dedup}", dedup=dedup)
                await until_so(partial(is_gone, mq, f"id-{dedup}"))
    assert began == ["0 first", "0 second", "3600 first", "None first"]
    until_ms = await mq.store.caller.command("ZSCORE", mq.store.keys.of("t").recent, "id-3600")
    now = await mq.store.time("t")
    assert 3_500_000 < float(until_ms) - now <= 3_600_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_duplicate": "replace"}, 'on_duplicate="replace" needs an id'),
        ({"on_duplicate": "overwrite", "id": "a"}, "'overwrite' is not one of ignore, replace"),
        ({"on_duplicate": None, "id": "a"}, "None is not one of ignore, replace, error"),
        ({"dedup": 5}, "dedup needs an id"),
        ({"dedup": -1, "id": "a"}, "dedup=-1 is not a number of seconds"),
        ({"dedup": "5", "id": "a"}, "dedup='5' is not a number of seconds"),
    ],
)
async def test_an_option_that_makes_no_sense_is_refused(
    mq: MessageQueue, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        await mq.produce("t", 1, **options)
    ids = [options.pop("id")] * 2 if "id" in options else None
    with pytest.raises(InvalidInput, match=words):
        await mq.produce_many("t", [1, 2], ids=ids, **options)
    assert await mq.admin.topics() == []


async def test_code_without_an_event_loop_has_the_same_options(raw: Redis, server: Server) -> None:
    def work() -> None:
        sync = MessageQueue(server.url).sync
        try:
            sync.produce("t", 1, id="own")
            with pytest.raises(DuplicateMessage):
                sync.produce("t", 2, id="own", on_duplicate="error")
            sync.produce("t", 3, id="own", on_duplicate="replace")
            found = sync.call(lambda mq: mq.admin.get("t", "own"))
            assert found is not None
            assert found.payload == 3
            sync.produce_many("t", [4], ids=["own"], on_duplicate="replace", dedup=0)
        finally:
            sync.close()

    await asyncio.to_thread(work)


async def test_a_duplicate_that_is_refused_is_not_told_as_stored_but_unconfirmed(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, confirm="replicated", confirm_within=0.05) as mq:
        with pytest.raises(NotConfirmed):
            await mq.produce("t", 0, id="own")
        error = partial(mq.produce, "t", on_duplicate="error")
        told = await asyncio.gather(  # the first is sent alone, the others share a call
            error(1, id="own"), error(2, id="own"), error(3, id="new"), return_exceptions=True
        )
        assert [type(one) for one in told] == [DuplicateMessage, DuplicateMessage, NotConfirmed]
        many = partial(mq.produce_many, "t", on_duplicate="error")
        with pytest.raises(DuplicateMessage):
            await many([4], ids=["own"])
        with pytest.raises(PartlyProduced) as partly:
            await many([5, 6], ids=["own", "newer"])
        assert (partly.value.ids, partly.value.unconfirmed) == (("newer",), ("newer",))
        assert isinstance(partly.value.__cause__, DuplicateMessage)
        with pytest.raises(NotConfirmed) as late:
            await many([7], ids=["newest"])
        assert late.value.ids == ("newest",)
