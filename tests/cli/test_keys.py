"""keys and limit, and what pause, resume, list and show say of keys, as a user runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.limits import Limit, declared
from tests.cli.calls import run, run_json
from tests.runtime.stage import on_a_server, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq import MessageQueue
    from tests.lab.servers import Server

pytestmark = on_a_server

T = "mail"


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


async def fill(mq: MessageQueue, **counts: int) -> None:
    for key, count in counts.items():
        await mq.produce_many(T, list(range(count)), keys=[key] * count)


async def dispatch(mq: MessageQueue, count: int, limits: str = "") -> int:
    found = await mq.store.dispatch_in_turn(T, "w", count=count, lease=60_000, limits=limits)
    return len(found.messages)


async def test_keys_are_listed_with_what_limits_them(mq: MessageQueue, server: Server) -> None:
    await fill(mq, noisy=5, quiet=1)
    await mq.produce(T, 1)
    await mq.produce(T, 1)
    await dispatch(mq, 3, declared(None, Limit(running=1)))
    shown = await run(server, "keys", T)
    assert shown.exit_code == 0
    title, *rows = [line.split() for line in shown.stdout.splitlines()]
    assert title == ["key", "waiting", "oldest", "running", "share", "limited", "by"]
    assert [row[0] for row in rows] == ["noisy", "(no", "quiet"]
    assert rows[0][1] == "4"
    assert " ".join(rows[0][-6:]) == "1 80% running 1 of 1"
    found = await run_json(server, "keys", T)
    assert (found["topic"], found["waiting"], found["blocked"]) == (T, 1, 1)
    assert (found["partial"], found["held_back"]) == (False, None)
    noisy, plain, quiet = found["keys"]
    assert (noisy["key"], noisy["waiting"], noisy["running_limit"]) == ("noisy", 4, 1)
    assert noisy["limited_by"] == {"by": "running", "until": None, "reason": ""}
    assert (plain["key"], plain["waiting"], plain["running"]) == (None, 1, None)
    assert (quiet["waiting"], quiet["running"]) == (0, 1)
    one = await run_json(server, "keys", T, "--key", "nobody")
    assert [key["key"] for key in one["keys"]] == ["nobody"]
    assert (await run(server, "keys", T, "--key", "quiet")).stdout.splitlines()[1].split()[0] == (
        "quiet"
    )


async def test_it_says_what_is_left_out_and_what_holds_back_the_topic(
    mq: MessageQueue, server: Server
) -> None:
    await fill(mq, a=2, b=1, c=1)
    await mq.admin.pause(T, reason="maintenance")
    *_, held, partial = (await run(server, "keys", T, "--limit", "2")).stdout.splitlines()
    assert held == "the topic is held back: paused: maintenance"
    assert partial == "3 keys waiting, 0 of them limited; not all shown"
    found = await run_json(server, "keys", T, "--limit", "1")
    assert (len(found["keys"]), found["partial"]) == (1, True)
    assert found["held_back"] == {"by": "paused", "until": None, "reason": "maintenance"}


async def test_a_topic_without_keys_has_none(mq: MessageQueue, server: Server) -> None:
    await mq.produce(T, 1, delay=60)
    assert (await run(server, "keys", T)).stdout == "no keys\n"


async def test_keys_cannot_write_to_the_terminal(mq: MessageQueue, server: Server) -> None:
    await mq.produce(T, 1, key="\u202etxet")
    await mq.admin.pause(T, "\u202etxet", reason="\x1b[31mred")
    for words in (("keys", T), ("limit", T), ("list", T, "--state", "pending")):
        shown = await run(server, *words)
        assert shown.exit_code == 0
        assert "\\u202etxet" in shown.stdout
        assert not {"\u202e", "\x1b"} & set(shown.stdout)


async def test_limits_are_set_shown_and_restored(mq: MessageQueue, server: Server) -> None:
    await fill(mq, a=1)
    await dispatch(mq, 1, declared(Limit(running=9), Limit(running=2)))
    set_ = await run(server, "limit", T, "--running", "5", "--rate", "100/m")
    assert set_.exit_code == 0
    assert set_.stdout.splitlines() == [
        "mail: 1 running",
        "  declared: running 9",
        "  declared per key: running 2",
        "  set: running 5, rate 100/m, burst 1",
    ]
    own = await run(server, "limit", T, "--key", "a", "--weight", "2.5", "--running", "0")
    assert own.stdout.splitlines()[-1] == "  set for key a: running 0, weight 2.5"
    found = await run_json(server, "limit", T, "--rate", "none")
    assert (found["set"]["running"], found["set"]["rate"]) == (5, None)
    assert (found["declared"]["running"], found["declared"]["burst"]) == (9, None)
    assert (found["per_key"]["running"], found["per_key"]["overtake"]) == (2, False)
    assert list(found["keys"]) == ["a"]
    assert found["keys"]["a"]["weight"] == 2.5
    await run(server, "limit", T, "--key", "a", "--weight", "none", "--running", "none")
    other = await run(server, "limit", T, "--key", "a")
    assert other.stdout.splitlines()[-1] == "  set for key a: nothing"
    assert (await run_json(server, "limit", T))["keys"] == {}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--running", "many"), "'many' is neither a number nor 'none'."),
        (("--running", "-1"), "Error: running=-1 is not a whole number from 0"),
        (("--rate", "fast"), "Error: rate='fast' is not a rate such as 50/s, 100/m or 1000/h"),
        (("--weight", "2"), "Error: --weight needs --key: it says"),
        (("--key", "a", "--weight", "0"), "Error: weight=0.0 is not a number from 0.001"),
        (("--key", "", "--running", "1"), "Error: key='' is not a string"),
    ],
)
async def test_a_limit_that_makes_no_sense_is_refused(
    mq: MessageQueue, server: Server, words: tuple[str, ...], expected: str
) -> None:
    await mq.produce(T, 1)
    failed = await run(server, "limit", T, *words)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert expected in failed.stderr


async def test_a_key_is_paused_for_a_while_and_resumed(mq: MessageQueue, server: Server) -> None:
    await fill(mq, a=1, b=1)
    words = ("pause", T, "--key", "a", "--for", "10m", "--reason", "their API is down")
    said = (await run(server, *words)).stdout
    assert said == "mail, key a: paused for 10 min 0 s: their API is down\n"
    held = (await mq.admin.key(T, "a")).limited_by
    assert held is not None
    assert held.reason == "their API is down"
    assert 590 < (held.until or 0) - await mq.admin.now() <= 600
    limits = (await run(server, "limit", T)).stdout
    assert "key a: paused until 2" in limits
    assert "Z: their API is down" in limits
    assert await dispatch(mq, 5) == 1
    assert await run_json(server, "resume", T, "--key", "a") == {
        "topic": T,
        "key": "a",
        "state": "resumed",
        "changed": True,
    }
    again = await run(server, "resume", T, "--key", "a")
    assert again.stdout == "mail, key a: was not paused\n"
    assert await dispatch(mq, 5) == 1
    await run(server, "pause", T, "--for", "1h")
    assert (await mq.admin.stats(T)).paused
    assert (await run(server, "resume", T)).stdout == "mail: resumed\n"


@pytest.mark.parametrize("text", ["soon", "+10m", "10", "-5s", ""])
async def test_a_time_that_is_no_span_is_refused(
    mq: MessageQueue, server: Server, text: str
) -> None:
    await mq.produce(T, 1)
    failed = await run(server, "pause", T, "--for", text)
    assert failed.exit_code == 2
    assert "is not a time span like 90s, 15m, 2h, 7d" in failed.stderr


async def test_messages_are_listed_and_cancelled_by_key(mq: MessageQueue, server: Server) -> None:
    await fill(mq, a=2, b=1)
    shown = await run(server, "list", T, "--state", "pending")
    assert [line.split()[1] for line in shown.stdout.splitlines()] == ["key", "a", "a", "b"]
    found: Any = await run_json(server, "list", T, "--state", "pending", "--key", "b")
    assert [one["key"] for one in found["messages"]] == ["b"]
    id = found["messages"][0]["id"]
    assert "key:         b\n" in (await run(server, "show", T, id)).stdout
    words = ("cancel", T, "--all", "--state", "pending", "--key", "a", "--yes")
    assert (await run(server, *words)).stdout == "2 pending messages of mail cancelled\n"
    assert (await mq.admin.stats(T)).pending == 1
