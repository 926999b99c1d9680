"""A copy of a call that arrives after the call was answered changes nothing.

Two copies are on their way when a reply was late and the call was sent again. What the caller was
told then must stay true, above all a "no": it acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core import codec
from mx_rmq.core.errors import QueueFull
from mx_rmq.core.message import State
from mx_rmq.core.schedule import Schedule
from mx_rmq.settings import Limits
from mx_rmq.store.lanes import Lanes
from mx_rmq.store.results import HandedBack, RetryRequest, Settled, Signal, Signalled
from mx_rmq.store.script import load, names
from tests.lab.calls import double_next
from tests.lab.cases import CASES, WORKER, Case, Stage, die, set_aside
from tests.lab.lua_lint import WRITES
from tests.lab.messages import LEASE, RESULT_TTL, TOPIC, draft, kept
from tests.lab.snapshot import snapshot, told
from tests.store.contracts import ONE_SERVER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from mx_rmq.store.results import Leased
    from mx_rmq.store.store import Store
    from tests.lab.archives import Archived
    from tests.lab.clock import Clock
    from tests.lab.servers import Kind

pytestmark = ONE_SERVER

HARMLESS = {
    "beat_worker": "lists a worker that was alive a moment ago",
    "declare_crons": "lists crons that a worker declared a moment ago",
    "expire_message": "takes what has expired; the recovery deadline brings it back",
    "fan_out": "moves what is pending to the subscriptions that there are by then",
    "extend_lease": "moves the deadline of a lease that the worker still has",
    "give_up_turn": "frees the turn of a worker that is stopping",
    "handle_timeout_message": "takes over what ran out; the recovery deadline brings it back",
    "list_schedule": "leads to no definition, or changes nothing: every entry is another one",
    "note_progress": "says how far a handler was a moment ago, if it still has the lease",
    "preflight": "works on a key of its own",
    "process_delay_message": "moves what is due",
    "produce_cron_message": "fires a tick that is due, and each tick once",
    "register_topics": "lists topics, and never takes partitions away",
    "repair_lines": "looks again, and repairs what is still wrong",
    "repair_message": "looks again, and repairs what is still wrong",
    "repair_waits": "looks again, and repairs what is still wrong",
    "repair_topic": "looks again; at most the bytes of archives are counted once more",
    "ring_doorbell": "rings; somebody looks and finds nothing",
    "set_expiry": "lets a message expire that waits and has no expiry time",
    "tend_topics": "gives a worker the turn; two that have it do no harm",
    "trim_archive": "drops what is over the limits",
}
"""Scripts without a receipt, and why a late copy of them does no harm."""


@dataclass(frozen=True)
class Refusal:
    """A call that is refused, and what would let it through a moment later."""

    name: str
    seed: Callable[[Stage], Awaitable[Any]]
    act: Callable[[Stage, Any], Awaitable[Any]]
    refused: object
    then: Callable[[Stage, Any], Awaitable[Any]]

    @property
    def script(self) -> str:
        return self.name.partition(",")[0]

    def __str__(self) -> str:
        return self.name


async def nothing(stage: Stage) -> None:
    pass


async def dispatch(stage: Stage, *_: Any) -> list[Leased]:
    taken = await stage.store.dispatch_message(TOPIC, WORKER, count=9, lease=LEASE)
    return taken.messages


async def dispatch_in_turn(stage: Stage, *_: Any) -> list[Leased]:
    taken = await stage.store.dispatch_in_turn(
        TOPIC, WORKER, count=9, lease=LEASE, limits="1 - - - - - 0"
    )
    return taken.messages


async def dispatch_alone(stage: Stage, *_: Any) -> list[Leased]:
    taken = await stage.store.dispatch_message(TOPIC, WORKER, count=9, lease=LEASE, alone=True)
    return taken.messages


async def pending(stage: Stage, *_: Any) -> None:
    await stage.pending()


async def paused(stage: Stage, *_: Any) -> None:
    await stage.pending()
    await stage.store.pause_topic(TOPIC)


async def pause(stage: Stage, *_: Any) -> bool:
    return await stage.store.pause_topic(TOPIC)


async def resume(stage: Stage, *_: Any) -> bool:
    return await stage.store.resume_topic(TOPIC)


async def scheduled(stage: Stage, *_: Any) -> None:
    await stage.pending()
    stored = Schedule(name="s", topic=TOPIC, expression="* * * * *")
    await stage.store.store_schedule(stored, "g")


async def schedule_paused(stage: Stage, *_: Any) -> None:
    await scheduled(stage)
    await pause_schedule(stage)


async def remove_schedule(stage: Stage, *_: Any) -> bool:
    return await stage.store.remove_schedule(TOPIC, "s")


async def pause_schedule(stage: Stage, *_: Any) -> bool:
    return await stage.store.pause_schedule(TOPIC, "s")


async def resume_schedule(stage: Stage, *_: Any) -> bool:
    return await stage.store.resume_schedule(TOPIC, "s")


async def one_is_held(stage: Stage) -> list[Leased]:
    await stage.pending()
    return (await stage.store.dispatch_message(TOPIC, "w2", count=1, lease=LEASE)).messages


async def it_is_done(stage: Stage, taken: list[Leased]) -> None:
    assert await stage.store.complete_message(TOPIC, "w2", taken) == [Settled.DONE]


async def lost(stage: Stage) -> list[Leased]:
    """Messages were leased, and their leases ran out."""
    taken = await stage.leased()
    stage.clock.advance(LEASE + 1)
    late = await stage.store.handle_timeout_message(TOPIC, "m", count=9, recovery=9)
    claims = [HandedBack(one) for one in late.messages]
    await stage.store.release_message(TOPIC, "m", claims)
    return taken


async def complete(stage: Stage, taken: list[Leased]) -> list[Settled]:
    return await stage.store.complete_message(TOPIC, WORKER, taken)


async def keep(stage: Stage, taken: list[Leased]) -> list[Settled]:
    results = [(one, kept()) for one in taken]
    return await stage.store.complete_with_result(TOPIC, WORKER, results, ttl=RESULT_TTL)


async def release(stage: Stage, taken: list[Leased]) -> list[Settled]:
    claims = [HandedBack(one) for one in taken]
    return await stage.store.release_message(TOPIC, WORKER, claims)


async def retry(stage: Stage, taken: list[Leased]) -> list[Settled]:
    retries = [RetryRequest(one, codec.decode(one.record), 5) for one in taken]
    return await stage.store.retry_message(TOPIC, WORKER, retries)


async def note(stage: Stage, taken: list[Leased]) -> list[Settled]:
    notes = [(one, codec.decode(one.record), "step") for one in taken]
    return await stage.store.note_record(TOPIC, WORKER, notes)


async def signal(stage: Stage, *_: Any) -> list[Signalled]:
    return await stage.store.signal_message(TOPIC, [Signal("a", "approval", b"1")])


async def signal_again(stage: Stage, *_: Any) -> list[Signalled]:
    return await stage.store.signal_message(TOPIC, [Signal("a", "approval", b"2")])


async def signalled(stage: Stage) -> None:
    await stage.pending()
    await signal(stage)


async def it_is_made_again(stage: Stage, *_: Any) -> None:
    assert await cancel(stage)
    await stage.store.produce_normal_message(TOPIC, [draft("new", id="a")])


async def bury(stage: Stage, taken: list[Leased]) -> Settled:
    return await die(stage.store, TOPIC, taken)


async def quarantine(stage: Stage, taken: list[Leased]) -> Settled:
    return await set_aside(stage.store, TOPIC, taken)


async def requeue(stage: Stage, found: Archived, later: int = 1000) -> Settled:
    message = codec.decode(found.data).revived()
    return await stage.store.requeue_message(
        TOPIC, State.DEAD, found.id, archived=found.at + later, message=message
    )


async def discard(stage: Stage, found: Archived) -> Settled:
    return await stage.store.discard_message(TOPIC, State.DEAD, found.id, archived=found.at + 1000)


async def it_dies_again(stage: Stage, found: Archived) -> None:
    """It is archived again at the very time at which the caller thought it was."""
    assert await requeue(stage, found, later=0) is Settled.DONE
    taken = [one for one in await dispatch(stage) if one.id == found.id]
    stage.clock.advance(found.at + 1000 - stage.clock.now)
    assert await die(stage.store, TOPIC, taken) is Settled.DONE


async def cancel(stage: Stage, *_: Any) -> Settled:
    return await stage.store.cancel_message(TOPIC, "a")


async def abort_another(stage: Stage, taken: list[Leased]) -> Settled:
    """Abort a message whose record is not the one that was seen."""
    seen = taken[0].record
    return await stage.store.abort_message(TOPIC, message=codec.decode(seen), seen=seen + b" ")


async def reschedule(stage: Stage, taken: list[Leased]) -> Settled:
    seen = taken[0].record
    return await stage.store.reschedule_message(TOPIC, message=codec.decode(seen), seen=seen)


async def handed_back(stage: Stage, taken: list[Leased]) -> None:
    assert await release(stage, taken) == [Settled.DONE] * 3


async def full(stage: Stage) -> None:
    stage.store.limits = Limits(max_pending=3)
    await stage.pending()


def produce(script: str) -> Callable[..., Awaitable[Any]]:
    async def act(stage: Stage, *_: Any) -> str:
        try:
            await getattr(stage.store, script)(TOPIC, [draft("d", id="d")])
        except QueueFull:
            return "full"
        return ""

    return act


async def replace(stage: Stage, *_: Any) -> str:
    try:
        await stage.store.replace_message(TOPIC, draft("d", id="d"))
    except QueueFull:
        return "full"
    return ""


async def replaced(stage: Stage) -> list[Leased]:
    """One is in processing, and was replaced."""
    taken = [one for one in await stage.leased() if one.id == "a"]
    await stage.store.replace_message(TOPIC, draft("new", id="a"))
    return taken


async def release_replaced(stage: Stage, taken: list[Leased]) -> Settled:
    return await stage.store.release_replaced(TOPIC, WORKER, taken[0])


async def it_runs_again(stage: Stage, taken: list[Leased]) -> None:
    assert await release_replaced(stage, taken)
    assert await dispatch(stage)


async def room(stage: Stage, *_: Any) -> None:
    await dispatch(stage)


LOST = [Settled.LOST] * 3
REPLACED = [Settled.REPLACED]


async def subscribed(stage: Stage, *_: Any) -> None:
    await stage.store.declare_subscription(TOPIC, "s")


async def declare(stage: Stage, *_: Any) -> bytes:
    named: dict[str, Any] = {"name": "s", "again": 0, "by": ""}
    answer: bytes = await stage.store.run("declare_subscription", TOPIC, named)
    return answer


async def unsubscribe(stage: Stage, *_: Any) -> Settled:
    return await stage.store.remove_subscription(TOPIC, "s")


REFUSALS = (
    Refusal("declare_subscription, there", subscribed, declare, b"0", unsubscribe),
    Refusal("remove_subscription", nothing, unsubscribe, Settled.LOST, subscribed),
    Refusal("produce_normal_message", full, produce("produce_normal_message"), "full", room),
    Refusal("produce_delay_message", full, produce("produce_delay_message"), "full", room),
    Refusal("dispatch_message, empty", nothing, dispatch, [], pending),
    Refusal("dispatch_message, paused", paused, dispatch, [], resume),
    Refusal("dispatch_message, not alone", one_is_held, dispatch_alone, [], it_is_done),
    Refusal("dispatch_in_turn, empty", nothing, dispatch_in_turn, [], pending),
    Refusal("dispatch_in_turn, paused", paused, dispatch_in_turn, [], resume),
    Refusal("dispatch_in_turn, limited", one_is_held, dispatch_in_turn, [], it_is_done),
    Refusal("complete_message", lost, complete, LOST, dispatch),
    Refusal("complete_with_result", lost, keep, LOST, dispatch),
    Refusal("complete_message, replaced", replaced, complete, REPLACED, it_runs_again),
    Refusal("release_message, replaced", replaced, release, REPLACED, it_runs_again),
    Refusal("retry_message, replaced", replaced, retry, REPLACED, it_runs_again),
    Refusal("move_to_dlq, replaced", replaced, bury, Settled.REPLACED, it_runs_again),
    Refusal("replace_message", full, replace, "full", room),
    Refusal("release_replaced", lost, release_replaced, Settled.LOST, dispatch),
    Refusal("release_message", lost, release, LOST, dispatch),
    Refusal("retry_message", lost, retry, LOST, dispatch),
    Refusal("note_record", lost, note, LOST, dispatch),
    Refusal("note_record, replaced", replaced, note, REPLACED, it_runs_again),
    Refusal("signal_message, not there", nothing, signal, [Signalled.UNKNOWN], pending),
    Refusal("signal_message, there", signalled, signal_again, [Signalled.THERE], it_is_made_again),
    Refusal("move_to_dlq", lost, bury, Settled.LOST, dispatch),
    Refusal("handle_parse_error", lost, quarantine, Settled.LOST, dispatch),
    Refusal("requeue_message", Stage.dead, requeue, Settled.LOST, it_dies_again),
    Refusal("discard_message", Stage.dead, discard, Settled.LOST, it_dies_again),
    Refusal("cancel_message, not there", nothing, cancel, Settled.LOST, pending),
    Refusal("cancel_message, running", Stage.leased, cancel, Settled.PROCESSING, handed_back),
    Refusal("abort_message", Stage.leased, abort_another, Settled.CHANGED, handed_back),
    Refusal("reschedule_message", Stage.leased, reschedule, Settled.PROCESSING, handed_back),
    Refusal("pause_topic", paused, pause, False, resume),
    Refusal("resume_topic", pending, resume, False, pause),
    Refusal("remove_schedule", pending, remove_schedule, False, scheduled),
    Refusal("pause_schedule", schedule_paused, pause_schedule, False, resume_schedule),
    Refusal("resume_schedule", scheduled, resume_schedule, False, pause_schedule),
)


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
async def test_a_late_copy_of_a_refused_call_changes_nothing(
    store: Store, raw: Redis, clock: Clock, refusal: Refusal
) -> None:
    stage = Stage(store, clock, TOPIC)
    await store.register(TOPIC)
    seeded = await refusal.seed(stage)
    copy = double_next(store)
    assert await refusal.act(stage, seeded) == refusal.refused
    store.lanes = Lanes(store.keys)  # what follows is another client's doing
    await refusal.then(stage, seeded)
    before = await snapshot(raw, TOPIC), await told(raw, TOPIC)
    await copy.arrive(clock.now)
    assert (await snapshot(raw, TOPIC), await told(raw, TOPIC)) == before


@pytest.mark.parametrize(
    "refusal",
    [one for one in REFUSALS if not one.script.startswith(("produce", "replace"))],
    ids=str,
)
async def test_a_refusal_is_an_answer_also_at_maxmemory(
    store: Store, raw: Redis, clock: Clock, refusal: Refusal
) -> None:
    stage = Stage(store, clock, TOPIC)
    seeded = await refusal.seed(stage)
    await raw.config_set("maxmemory", 1)
    try:
        assert await refusal.act(stage, seeded) == refusal.refused
    finally:
        await raw.config_set("maxmemory", 0)


NOTED = [case for case in CASES if "receipt" in load(case.script).place]


@pytest.mark.parametrize("case", NOTED, ids=str)
async def test_a_late_copy_of_a_call_that_was_done_changes_nothing(
    store: Store, raw: Redis, clock: Clock, case: Case
) -> None:
    seeded = await case.seed(Stage(store, clock, TOPIC))
    await store.register(TOPIC)
    copy = double_next(store)
    assert await case.act(store, TOPIC, seeded) == case.done
    store.lanes = Lanes(store.keys)  # what follows is another client's doing
    clock.advance(LEASE + 1)
    await store.produce_normal_message(TOPIC, [draft(id=id) for id in "xyz"])
    await store.dispatch_message(TOPIC, WORKER, count=9, lease=LEASE)
    before = await snapshot(raw, TOPIC), await told(raw, TOPIC)
    await copy.arrive(clock.now)
    assert (await snapshot(raw, TOPIC), await told(raw, TOPIC)) == before


def test_every_script_that_writes_is_looked_at(kind: Kind) -> None:
    writing = {name for name in names() if load(name).commands & WRITES.keys()}
    noted = {name for name in writing if "receipt" in load(name).place}
    # These two refuse nothing.
    assert {refusal.script for refusal in REFUSALS} == noted - {"limit_key", "store_schedule"}
    assert {case.script for case in NOTED} == noted
    assert writing - noted == HARMLESS.keys()
