"""schedule, schedules and what can be done with one, as a user runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.calls import run, run_json
from tests.runtime.stage import on_a_server, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from tests.lab.servers import Server

pytestmark = on_a_server


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


async def test_a_schedule_from_its_beginning_to_its_end(mq: MessageQueue, server: Server) -> None:
    made = await run(
        server,
        *("schedule", "nightly", "reports", "0 3 * * *", "--payload", '{"day": "\\u202e"}'),
        *("--tz", "Europe/Berlin", "--missed", "once", "--header", "a=b", "--priority", "low"),
    )
    assert made.exit_code == 0
    assert made.stdout.startswith("nightly: next run 2")
    view = await mq.admin.get_schedule("nightly")
    assert (view.tz, view.missed, view.headers, view.priority) == (
        *("Europe/Berlin", "once"),
        *({"a": "b"}, "low"),
    )
    table = (await run(server, "schedules")).stdout
    assert "nightly" in table
    assert "0 3 * * *" in table
    shown = (await run(server, "schedules", "nightly")).stdout.splitlines()
    assert shown[0] == "nightly: 0 3 * * * (Europe/Berlin), to reports"
    assert len(shown) == 15
    found = await run_json(server, "schedules", "nightly")
    assert found["next_runs"] == view.next_runs()
    (one,) = (await run_json(server, "schedules"))["schedules"]
    assert one["payload"] == {"day": "\u202e"}
    paused = await run(server, "pause-schedule", "nightly", "--reason", "holiday")
    assert paused.stdout == "nightly: paused: holiday\n"
    assert "paused (holiday)" in (await run(server, "schedules")).stdout
    assert (await run(server, "pause-schedule", "nightly")).stdout == "nightly: already paused\n"
    ran = await run_json(server, "run-schedule", "nightly")
    assert (await mq.admin.get("reports", ran["id"])) is not None
    assert (await run(server, "resume-schedule", "nightly")).stdout == "nightly: resumed\n"
    asked = await run(server, "unschedule", "nightly")
    assert asked.exit_code == 2
    assert "pass --yes" in asked.stderr
    assert (await run(server, "unschedule", "nightly", "--yes")).stdout == "nightly: removed\n"
    again = await run(server, "unschedule", "nightly", "--yes")
    assert (again.exit_code, again.stdout) == (1, "nightly: not found\n")
    assert (await run(server, "schedules")).stdout == "no schedules\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["s", "t", "* *"], "cron expression"),
        (["s", "t", "* * * * *", "--tz", "Nowhere"], "tz='Nowhere' is not a time zone"),
        (["s", "t", "* * * * *", "--payload", "text"], "is not JSON"),
        (["a b", "t", "* * * * *"], "schedule 'a b' must consist of"),
        (["s", "t", "* * * * *", "--header", "x"], "must have the form NAME=VALUE"),
    ],
)
async def test_what_is_wrong_is_said_and_nothing_is_stored(
    mq: MessageQueue, server: Server, words: list[str], said: str
) -> None:
    refused = await run(server, "schedule", *words)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert await mq.admin.schedules() == []
