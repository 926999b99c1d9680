"""Messages that wait, in the dashboard: what for, what is done, and the form for a signal."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from mx_rmq import Delivery, Worker
from mx_rmq.core.message import State
from mx_rmq.dashboard import Dashboard
from tests.dashboard.visitor import Visitor
from tests.lab.messages import TOPIC
from tests.test_steps import until_state

if TYPE_CHECKING:
    import pytest

    from mx_rmq import MessageQueue

HOSTILE = "<script>alert(1)</script>"


async def parked(mq: MessageQueue, name: str = "approval") -> str:
    """Return a message that waits for a signal."""

    @mq.handler("deploy", result_ttl=60)
    async def deploy(_: None, delivery: Delivery) -> Any:
        await delivery.step(f"plan {HOSTILE}", lambda: HOSTILE)
        return await delivery.wait(name)

    id = await mq.produce("deploy", None)
    async with Worker(mq):
        await until_state(mq, "deploy", id, State.WAITING)
    return id


async def test_the_pages_show_what_a_message_waits_for(mq: MessageQueue, visitor: Visitor) -> None:
    id = await parked(mq, f"approval {HOSTILE}")
    assert "Waiting" in await visitor.page("/")
    rows = await visitor.page("/topics/deploy?state=waiting")
    assert id in rows
    assert "for signal approval &lt;script&gt;" in rows
    page = await visitor.page(f"/topics/deploy/message?id={id}")
    assert "the signal" in page
    assert "Waits since" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert HOSTILE not in page + rows
    for act in ("Cancel…", "Abort…"):
        assert act in page


async def test_a_signal_is_sent_by_a_form(
    mq: MessageQueue, visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    id = await parked(mq)
    path = f"/topics/deploy/message?id={id}"
    await mq.produce(TOPIC, 1)  # whose page has the token
    refused = await visitor.post(f"/topics/deploy/signal?id={id}", 400, name="approval", value="{")
    assert "the value is not JSON" in refused.text
    with caplog.at_level(logging.INFO):
        answer = await visitor.submit(path, "Send signal", name="approval", value='{"by": "kim"}')
    assert "Signal sent." in answer.text
    assert any("signal" in record.getMessage() for record in caplog.records)
    async with Worker(mq):
        assert await mq.result("deploy", id, timeout=20) == {"by": "kim"}
    gone = await visitor.post(f"/topics/deploy/signal?id={id}", name="approval", value="1")
    assert "notice=gone" in gone.headers["location"]
    assert json.dumps({"by": "kim"}) not in await visitor.page("/log")


async def test_a_read_only_dashboard_sends_no_signal(mq: MessageQueue) -> None:
    id = await parked(mq)
    async with Visitor(Dashboard(mq, allow_all=True, read_only=True)) as visitor:
        assert "Send signal" not in await visitor.page(f"/topics/deploy/message?id={id}")
        await visitor.post(f"/topics/deploy/signal?id={id}", 403, name="approval", token="")


async def test_a_form_without_its_token_sends_no_signal(mq: MessageQueue, visitor: Visitor) -> None:
    id = await parked(mq)
    await visitor.post(f"/topics/deploy/signal?id={id}", 403, name="approval", token="wrong")
    found = await mq.admin.get("deploy", id)
    assert found is not None
    assert found.state is State.WAITING


async def test_the_messages_of_a_flow_link_to_each_other(
    mq: MessageQueue, visitor: Visitor
) -> None:
    @mq.handler("book")
    async def book(_: None) -> None: ...

    async with mq.flow() as flow:
        first = flow.produce("page", 1)
        last = flow.produce("book", None, after=[first])
    async with Worker(mq):
        await until_state(mq, "book", last, State.WAITING)
    page = await visitor.page(f"/topics/book/message?id={last.replace('+', '%2B')}")
    assert "Waits for" in page
    assert f"/topics/page/message?id={first.replace('+', '%2B')}" in page
    assert '<span class="badge pending">' in page
    child = await visitor.page(f"/topics/page/message?id={first.replace('+', '%2B')}")
    assert "Awaited by" in child
    assert f"/topics/book/message?id={last.replace('+', '%2B')}" in child
