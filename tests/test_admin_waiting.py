"""What operators see of messages that wait, sleep and work in steps, and what they do to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Delivery, MessageQueue, Reject, State, Worker
from mx_rmq import flow as flows
from mx_rmq.admin import Cancelled, Filter, What, stuck_waits
from mx_rmq.core import codec
from mx_rmq.doctor import waiting
from mx_rmq.doctor.queue import check_queue
from mx_rmq.runtime.follow_ups import FollowUps
from mx_rmq.runtime.waiting_check import look_for_sources
from tests.cli.calls import run, run_json
from tests.lab.servers import Kind, chosen
from tests.runtime.stage import until_so
from tests.test_steps import state_of, until_state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq.admin import MessageView
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1))


@pytest.fixture
async def mq(server: Server, raw: Redis) -> AsyncIterator[MessageQueue]:
    async with MessageQueue(server.url) as mq:
        serve(mq)
        yield mq


def serve(mq: MessageQueue) -> None:
    @mq.handler("deploy", result_ttl=60)
    async def deploy(seconds: float | None, delivery: Delivery) -> Any:
        await delivery.step("plan", lambda: {"<files>": 3})
        delivery.produce("mail", "deployed")
        return await delivery.wait("approval", timeout=seconds)

    @mq.handler("page", max_attempts=1)
    async def page(number: int) -> int:
        if number < 0:
            raise Reject("a negative page")
        return number

    @mq.handler("book", result_ttl=60)
    async def book(_: Any, delivery: Delivery) -> list[Any]:
        return delivery.results


async def parked(mq: MessageQueue, seconds: float | None = None, **options: Any) -> str:
    """Produce a message, and let it wait for the signal `approval`."""
    id = await mq.produce("deploy", seconds, **options)
    async with Worker(mq):
        await until_state(mq, "deploy", id, State.WAITING)
    return id


async def got(mq: MessageQueue, topic: str, id: str) -> MessageView:
    found = await mq.admin.get(topic, id)
    assert found is not None
    return found


async def test_a_message_tells_what_it_waits_for_and_what_is_done(mq: MessageQueue) -> None:
    id = await parked(mq, 3600.0)
    await mq.signal("deploy", id, "early", 1)
    found = await got(mq, "deploy", id)
    assert found.state is State.WAITING
    assert found.due is None
    assert found.wait is not None
    assert found.wait.signals == ("approval",)
    assert found.wait.count == 1
    assert found.wait.since is not None
    assert found.wait.until is not None
    assert 3599 <= found.wait.until - found.wait.since <= 3600
    assert found.signals == ("early",)
    assert found.steps is not None
    assert [(one.name, one.value) for one in found.steps.done] == [("plan", {"<files>": 3})]
    assert list(found.steps.ends) == ["approval"]
    assert found.steps.follow_ups is None


async def test_a_wait_without_timeout_has_no_end(mq: MessageQueue) -> None:
    id = await parked(mq)
    found = await got(mq, "deploy", id)
    assert found.wait is not None
    assert found.wait.until is None
    (listed,) = (await mq.admin.list("deploy", "waiting")).messages
    assert listed.wait is not None
    assert listed.wait.since == found.wait.since
    assert listed.wait.until is None


async def test_waiting_messages_are_listed_counted_and_filtered_apart(mq: MessageQueue) -> None:
    limited, forever = await parked(mq, 60.0), await parked(mq, priority="high")
    delayed = await mq.produce("deploy", None, delay=30)
    stats = await mq.admin.stats("deploy")
    assert (stats.waiting, stats.delayed, stats.total) == (2, 1, 3)
    waiting = await mq.admin.list("deploy", "waiting")
    assert [one.id for one in waiting.messages] == [limited, forever]
    page = await mq.admin.list("deploy", "delayed", limit=1)
    assert [one.id for one in page.messages] == [delayed]
    now = await mq.admin.now()
    assert await mq.admin.count("deploy", "waiting") == 2
    assert await mq.admin.count("deploy", "delayed") == 1
    assert await mq.admin.count("deploy", "delayed", since=now, until=now + 90) == 1
    early = Filter(until=now - 3600)
    assert (await mq.admin.list("deploy", "waiting", filter=early)).messages == []
    recent = Filter(since=now - 3600, text=forever)
    assert [one.id for one in (await mq.admin.list("deploy", "waiting", filter=recent)).messages]


async def test_waiting_messages_are_cancelled_and_aborted(mq: MessageQueue) -> None:
    ids = [await parked(mq, seconds) for seconds in (None, 60.0, None, None)]
    delayed = await mq.produce("deploy", None, delay=300)
    assert await mq.admin.cancel("deploy", ids[0]) is Cancelled.DONE
    assert await mq.admin.abort("deploy", ids[1], "not today")
    assert await mq.admin.cancel_all("deploy", "delayed") == 1
    assert await mq.admin.get("deploy", delayed) is None
    assert await mq.admin.cancel_all("deploy", "waiting", limit=1) == 1
    assert await mq.admin.abort_all("deploy", "waiting", "no more") == 1
    assert (await mq.admin.stats("deploy")).waiting == 0
    assert await mq.admin.audit("deploy") == []
    assert await mq.admin.requeue("deploy", ids[1])
    async with Worker(mq):
        await until_state(mq, "deploy", ids[1], State.WAITING)
        assert await mq.signal("deploy", ids[1], "approval", "after all")
        assert await mq.result("deploy", ids[1], timeout=20) == "after all"


async def test_the_history_tells_of_steps_waits_and_signals(mq: MessageQueue) -> None:
    id = await parked(mq, 60.0)
    await mq.admin.as_operator("kim").signal("deploy", id, "approval", None)
    async with Worker(mq):
        await mq.result("deploy", id, timeout=20)
    told = [(one.what, one.about) for one in await mq.admin.history("deploy", id)]
    assert (What.NOTED, "step plan") in told
    (wait,) = [about for what, about in told if what is What.PARKED]
    assert wait.startswith("for signal approval, at most ")
    assert (What.SIGNALLED, "approval") in told
    assert (What.NOTED, "finished") in told
    (sent,) = [one for one in await mq.admin.history("deploy", id) if one.what is What.SIGNALLED]
    assert sent.by == "kim"


async def test_the_messages_of_a_flow_tell_of_each_other(mq: MessageQueue) -> None:
    async with mq.flow() as flow:
        good, bad = flow.produce("page", 1), flow.produce("page", -1)
        id = flow.produce("book", None, after=[good, bad])
    child = await got(mq, "page", good)
    assert child.steps is not None
    assert [(one.topic, one.id) for one in child.steps.awaited_by] == [("book", id)]
    async with Worker(mq):
        await until_state(mq, "page", bad, State.DEAD)

        async def one_is_left() -> bool:
            found = await mq.admin.get("book", id)
            return found is not None and found.wait is not None and found.wait.count == 1

        await until_so(one_is_left)
    found = await got(mq, "book", id)
    assert found.steps is not None
    assert [one.id for one in found.steps.after] == [good, bad]
    assert found.wait is not None
    ((topic, waits_for, state),) = [(m.topic, m.id, m.state) for m in found.wait.messages]
    assert (topic, waits_for, state) == ("page", bad, State.DEAD)
    about = [one.about for one in await mq.admin.history("book", id)]
    assert f"message {good} of page" in about
    assert any(text.startswith("for ") and "of 2 messages" in text for text in about)


async def test_a_message_waits_for_others_in_the_order_of_its_flow(mq: MessageQueue) -> None:
    async with mq.flow() as flow:
        pages = [flow.produce("page", number, delay=60) for number in range(11)]  # …+10 after …+9
        id = flow.produce("book", None, after=pages)
    async with Worker(mq):
        await until_state(mq, "book", id, State.WAITING)
    found = await got(mq, "book", id)
    assert found.wait is not None
    assert [one.id for one in found.wait.messages] == pages


# the command line


async def test_the_commands_show_what_a_message_waits_for(mq: MessageQueue, server: Server) -> None:
    id = await parked(mq)
    told = await run(server, "show", "deploy", id)
    assert told.exit_code == 0
    assert "state:       waiting" in told.stdout
    assert "waits for:   signal approval" in told.stdout
    assert "until:       as long as it takes" in told.stdout
    assert 'step done:   plan: {"<files>":3}' in told.stdout
    document = await run_json(server, "show", "deploy", id)
    assert document["wait"]["signals"] == ["approval"]
    assert document["steps"]["done"] == {"plan": {"<files>": 3}}
    listed = await run(server, "list", "deploy", "--state", "waiting")
    assert id in listed.stdout
    assert "signal approval" in listed.stdout
    (stats,) = (await run_json(server, "stats", "deploy"))["topics"]
    assert stats["waiting"] == 1
    assert "waiting" in (await run(server, "stats")).stdout


async def test_signal_sends_a_value(mq: MessageQueue, server: Server) -> None:
    id = await parked(mq)
    typo = await run(server, "signal", "deploy", id, "aproval")
    assert typo.stdout == f"{id}: signal aproval sent; it waits for approval\n"
    told = await run(server, "signal", "deploy", id, "approval", '{"by": "kim"}')
    assert (told.exit_code, told.stdout) == (0, f"{id}: signal approval sent\n")
    again = await run(server, "signal", "deploy", id, "approval", '{"by": "ann"}')
    assert again.stdout == f"{id}: not changed, a signal approval had arrived before\n"
    async with Worker(mq):
        assert await mq.result("deploy", id, timeout=20) == {"by": "kim"}
    assert await run_json(server, "signal", "deploy", "unknown", "approval", code=1) == {
        "topic": "deploy",
        "id": "unknown",
        "signal": "approval",
        "sent": False,
        "first": False,
    }
    for words, said in (
        (("deploy", id, "approval", "{"), "the value is not JSON"),
        (("deploy", id, "a\nb"), "is not a name"),
        (("nowhere", id, "approval"), "no topic 'nowhere'"),
    ):
        refused = await run(server, "signal", *words)
        assert refused.exit_code == 2
        assert said in refused.stderr
        assert refused.stderr.count("\n") <= 2


async def test_show_explains_the_head_of_a_flow(
    mq: MessageQueue, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mx_rmq.flow import Flow

    async def dies(*_: Any) -> None:
        """The producer dies before it releases the head."""

    monkeypatch.setattr(Flow, "_release", dies)
    async with mq.flow() as flow:
        first = flow.produce("page", 1)
        last = flow.produce("book", None, after=[first])
    for topic, id in (("page", first), ("book", last)):
        if await state_of(mq, topic, id) is State.DELAYED:
            told = await run(server, "show", topic, id)
            assert "carries:     1 more message of its flow: its producer is sending" in told.stdout
            return
    pytest.fail("no message is the head")


# messages that never complete


async def test_a_wait_for_what_is_gone_is_reported(
    mq: MessageQueue, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck_waits, "SETTLED", 0)
    async with mq.flow() as flow:
        bad = flow.produce("page", -1)
        id = flow.produce("book", None, after=[bad])
    async with Worker(mq):
        await until_state(mq, "page", bad, State.DEAD)
        await until_state(mq, "book", id, State.WAITING)
    assert await mq.admin.audit("book") == []
    (held_up,) = await mq.admin.stuck_waits("book")
    assert str(held_up) == f"waits for message {bad} of page, which is dead"
    findings = [str(one) for one in await check_queue(mq.admin, audit=True)]
    assert any(f"requeue page {bad}" in one for one in findings)
    assert (await run(server, "audit", "book")).exit_code == 0
    shown = await run(server, "show", "book", id)
    assert f"to go on:    mx-rmq requeue page {bad}\n" in shown.stdout

    assert await mq.admin.discard("page", bad)
    (violation,) = await mq.admin.audit("book")
    assert str(violation) == (
        f"book: {id}: it waits for message {bad} of page, which is gone; cancel or abort it"
    )
    note = "waits for lost messages"
    (finding,) = [one for one in await check_queue(mq.admin, audit=False) if one.note == note]
    assert finding.bad
    assert f"mx-rmq cancel book {id}" in finding.cure
    told = await run(server, "audit", "book")
    assert told.exit_code == 1
    repaired = await run(server, "audit", "book", "--repair", "--yes")
    assert repaired.exit_code == 1
    assert "not repaired" in repaired.stdout
    assert await mq.admin.cancel("book", id) is Cancelled.DONE
    assert await mq.admin.audit("book") == []


async def test_a_wait_for_what_is_not_sent_yet_is_not_reported(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer has stored the head, and the message that waits, but not its child."""
    monkeypatch.setattr(stuck_waits, "SETTLED", 0)
    produce = FollowUps.produce

    async def dies(self: FollowUps, planned: Any, **options: Any) -> int:
        return await produce(self, list(planned)[:2], **options)

    monkeypatch.setattr(FollowUps, "produce", dies)
    monkeypatch.setattr(flows, "HEAD_START", 3_600_000)

    async def stays(*_: Any) -> None:
        """The head is not released."""

    monkeypatch.setattr(flows.Flow, "_release", stays)
    async with mq.flow() as flow:
        head = flow.produce("page", 1)
        child = flow.produce("page", 2)
        id = flow.produce("book", None, after=[head, child])
        runs = flow.produce("book", None, after=[head, child], on_dead="run")
    monkeypatch.setattr(FollowUps, "produce", produce)
    async with Worker(mq):
        await until_state(mq, "book", runs, State.WAITING)
        await until_state(mq, "book", id, State.WAITING)
    assert await state_of(mq, "page", child) is None
    assert await mq.admin.stuck_waits("book") == []
    for parent in (id, runs):  # a worker that checks now must not take the child for dead
        record = await mq.store.views.record("book", parent)
        assert record is not None
        found = await look_for_sources(mq.store, "book", codec.decode(record))
        assert found.sent == 0
    await mq.admin.abort("page", head)
    (held_up,) = await mq.admin.stuck_waits("book")
    assert (held_up.source.id, held_up.source.state) == (head, State.DEAD)
    assert await mq.admin.discard("page", head)
    (lost,) = await mq.admin.stuck_waits("book")
    assert lost.is_lost


async def test_a_long_wait_for_a_signal_is_reported(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await parked(mq)
    assert not [one for one in await check_queue(mq.admin, audit=True) if one.note == "waits long"]
    monkeypatch.setattr(waiting, "LONG", 0.0)
    (finding,) = [
        one for one in await check_queue(mq.admin, audit=True) if one.note == "waits long"
    ]
    assert f"message {id} for 'approval'" in finding.what
    assert f"mx-rmq signal deploy {id}" in finding.cure
