"""Schedules in the dashboard, over HTTP: what is shown, and what can be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.dashboard import Dashboard
from tests.dashboard.visitor import HOSTILE, Visitor
from tests.lab.messages import TOPIC

if TYPE_CHECKING:
    from mx_rmq import MessageQueue


async def test_schedules_are_shown_with_their_next_ten_runs(
    mq: MessageQueue, visitor: Visitor
) -> None:
    assert "No schedules" in await visitor.page("/schedules")
    await mq.admin.schedule("nightly", TOPIC, "0 3 * * *", {"text": HOSTILE}, headers={"a": "<b>"})
    page = await visitor.page("/schedules")
    assert "nightly" in page
    assert "0 3 * * *" in page
    assert "<script>alert" not in page
    assert "no live worker serves the topic" in page
    one = await visitor.page("/schedules/nightly")
    assert one.count("03:00:00") >= 10
    assert "<script>alert" not in one
    assert "<b>" not in one
    await visitor.page("/schedules/nothing", 404)


async def test_what_an_operator_does_is_done_and_noted(
    mq: MessageQueue, board: Dashboard, visitor: Visitor
) -> None:
    await mq.produce(TOPIC, 1)
    fields = {"topic": TOPIC, "expression": "0 3 * * *", "tz": "", "missed": "once"}
    answer = await visitor.submit("/schedules", "Add", name="s", payload='{"a": 1}', **fields)
    assert "Stored." in answer.text
    view = await mq.admin.get_schedule("s")
    assert (view.payload, view.missed, view.tz) == ({"a": 1}, "once", "UTC")
    assert "Produced one message" in (await visitor.submit("/schedules/s", "Run now")).text
    assert (await mq.admin.stats(TOPIC)).pending == 2
    assert "Paused." in (await visitor.submit("/schedules/s", "Pause", reason="why")).text
    assert (await mq.admin.get_schedule("s")).pause_reason == "why"
    assert "Resumed." in (await visitor.submit("/schedules/s", "Resume")).text
    asked = await visitor.page("/schedules/s/unschedule")
    assert "Remove this schedule?" in asked
    assert await mq.admin.schedules() == [await mq.admin.get_schedule("s")]
    assert "Removed." in (await visitor.submit("/schedules/s/unschedule", "Remove")).text
    assert await mq.admin.schedules() == []
    noted = [(one.did, one.outcome) for one in reversed(board.parts.audit_log.latest())]
    assert [did for did, _ in noted] == [
        *("schedule", "run_schedule", "pause_schedule", "resume_schedule", "unschedule"),
    ]
    assert "Schedules" in await visitor.page("/log")


async def test_a_wrong_form_stores_nothing_and_is_noted(
    mq: MessageQueue, board: Dashboard, visitor: Visitor
) -> None:
    await mq.produce(TOPIC, 1)
    good = {"name": "s", "topic": TOPIC, "expression": "0 3 * * *", "payload": "1"}
    for change, said in (
        ({"payload": "{"}, "not JSON"),
        ({"expression": "x"}, "cron expression"),
        ({"tz": "Nowhere"}, "time zone"),
    ):
        answer = await visitor.post("/schedules", 400, **{**good, **change})
        assert said in answer.text
    await visitor.post("/schedules", 403, token="forged", **good)
    assert await mq.admin.schedules() == []
    assert all("refused" in one.outcome for one in board.parts.audit_log.latest())


async def test_a_read_only_dashboard_only_shows_them(mq: MessageQueue) -> None:
    await mq.produce(TOPIC, 1)
    await mq.admin.schedule("s", TOPIC, "0 3 * * *")
    board = Dashboard(mq, allow_all=True, read_only=True)
    async with Visitor(board) as visitor:
        for path in ("/schedules", "/schedules/s", "/schedules/s/unschedule"):
            assert 'method="post"' not in await visitor.page(path)
    await board.close()


async def test_a_cron_in_code_cannot_be_deleted(mq: MessageQueue, visitor: Visitor) -> None:
    from mx_rmq.core.schedule import Schedule

    cron = Schedule(name="", topic="report", expression="0 3 * * *")
    await mq.store.declare_crons({"report": cron}, forget=0)
    page = await visitor.page("/schedules/report")
    assert "in code" in page
    assert "Remove" not in page
    assert "declared in code" in await visitor.page("/schedules/report/unschedule", 409)
