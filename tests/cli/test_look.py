"""stats, list, show, workers and audit, as a user runs them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest

from mx_rmq.admin import Admin
from mx_rmq.core.errors import ServerUnavailable
from mx_rmq.core.message import State
from mx_rmq.core.partition import partitions
from mx_rmq.core.status import ProgressNote
from mx_rmq.store.store import Store
from tests.cli.calls import HOSTILE, MX_RMQ, at_a_terminal, harmless, run, run_json
from tests.lab.archives import archived, corpse, fill
from tests.lab.messages import (
    FAILURE,
    TOPIC,
    Priority,
    bring,
    delayed,
    draft,
    leased,
    message,
    pending,
    settle,
    take,
)
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.audit import Violation
    from tests.lab.clock import Clock
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)


CLEAN: dict[str, object] = {"violations": [], "away": []}
"""What an audit finds where nothing is wrong."""


# stats


async def test_stats_count_every_topic_or_the_ones_that_are_named(
    store: Store, server: Server
) -> None:
    assert (await run(server, "stats")).stdout == "no topics yet\n"
    await pending(store, 1234 - 1000)
    await pending(store, 1000)
    await store.produce_normal_message("other", [draft()])
    await store.pause_topic("other")
    told = await run(server, "stats")
    assert told.exit_code == 0
    header, first, second = told.stdout.splitlines()
    assert header.split()[:3] == ["topic", "pending", "processing"]
    assert first.split()[:2] == [TOPIC, "1,234"]
    assert second.split()[:2] == ["other", "1"]
    assert first.rstrip().endswith("  no worker")
    assert second.rstrip().endswith("  no worker, paused")
    assert "other" not in (await run(server, "stats", TOPIC)).stdout


@pytest.mark.corrupts
async def test_a_topic_that_cannot_be_counted_hides_no_other(
    store: Store, server: Server, raw: Redis
) -> None:
    await pending(store)
    await store.produce_normal_message("other", [draft()])
    await raw.set(store.keys.of("other").dlq, "not ours")
    told = await run(server, "stats")
    assert told.exit_code == 2
    assert [line.split()[0] for line in told.stdout.splitlines()] == ["topic", TOPIC]
    assert told.stderr.startswith("not counted: other: ")
    assert (await run(server, "stats", "other")).exit_code == 2
    found = await run_json(server, "stats", code=2)
    assert ([one["topic"] for one in found["topics"]], len(found["away"])) == ([TOPIC], 1)


async def test_stats_as_json_are_one_document(store: Store, server: Server) -> None:
    assert await run_json(server, "stats") == {"topics": [], "away": []}
    await bring(store, State.DEAD)
    await delayed(store, 1000)
    (stats,) = (await run_json(server, "stats", TOPIC))["topics"]
    totals = stats.pop("totals")
    assert (totals["produced"], totals["died"], totals["completed"]) == (2, 1, 0)
    assert stats == {
        "topic": TOPIC,
        "pending": 0,
        "processing": 0,
        "delayed": 1,
        "waiting": 0,
        "dead": 1,
        "quarantined": 0,
        "oldest_pending": None,
        "delayed_overdue": None,
        "lease_overdue": None,
        "paused": False,
        "dropped": 0,
        "dead_bytes": (await store.views.counts(TOPIC)).dead_bytes,
        "quarantined_bytes": 0,
        "completed_bytes": 0,
        "dead_budget": 268_435_456,
        "quarantined_budget": 67_108_864,
        "completed_budget": 67_108_864,
        "completed": 0,
        "overflowed_at": None,
        "keys_waiting": 0,
        "keys_blocked": 0,
        "running_limit": None,
        "held_back": False,
        "pause_reason": "",
        "subscriptions": [],
    }


@pytest.mark.parametrize(
    "words",
    [("stats", "orderz"), ("list", "orderz", "--state", "dead"), ("show", "orderz", "id")],
)
async def test_an_unknown_topic_is_one_clear_line(
    store: Store, server: Server, words: tuple[str, ...]
) -> None:
    await pending(store)
    failed = await run(server, *words)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert failed.stderr == (
        "Error: no topic 'orderz' under the prefix 'mx-rmq'; known topics (1): orders\n"
    )


@pytest.mark.corrupts
async def test_hostile_names_stay_harmless(store: Store, server: Server, raw: Redis) -> None:
    await raw.hset(store.keys.topics, HOSTILE, 1)
    await pending(store)
    for words in (("stats",), ("stats", "\x1b[2J"), ("stats", "orderz"), ("audit",)):
        told = await run(server, *words)
        assert harmless(told.stdout)
        assert harmless(told.stderr)


# list


@pytest.mark.parametrize("state", State)
async def test_every_state_can_be_listed_in_words_and_as_json(
    store: Store, server: Server, state: State
) -> None:
    one = await bring(store, state)
    told = await run(server, "list", TOPIC, "--state", state)
    assert told.exit_code == 0
    assert one.id in told.stdout.splitlines()[1]
    page = await run_json(server, "list", TOPIC, "--state", state)
    assert page["cursor"] is None
    (shown,) = page["messages"]
    assert (shown["id"], shown["state"], shown["payload"]) == (one.id, state, 0)
    assert "raw" not in shown


async def test_a_list_goes_on_where_its_cursor_says(store: Store, server: Server) -> None:
    ids = await pending(store, 3, priority=Priority.HIGH) + await pending(store, 2)
    told = await run(server, "list", TOPIC, "--state", "pending", "--limit", "2")
    assert "more: --cursor 2.0.0\n" in told.stdout
    found: list[str] = []
    words: list[str] = []
    while True:
        page = await run_json(server, "list", TOPIC, "--state", "pending", "--limit", "2", *words)
        found += [one["id"] for one in page["messages"]]
        if page["cursor"] is None:
            break
        words = ["--cursor", page["cursor"]]
    assert found == ids


async def test_a_cursor_that_is_none_is_one_clear_line(store: Store, server: Server) -> None:
    await pending(store)
    failed = await run(server, "list", TOPIC, "--state", "pending", "--cursor", "\x1b[2J")
    assert failed.exit_code == 2
    assert failed.stderr == "Error: cursor='\\x1b[2J' is not the cursor of an earlier page\n"


async def test_an_empty_list_is_no_failure(store: Store, server: Server) -> None:
    await pending(store)
    assert (await run(server, "list", TOPIC, "--state", "dead")).exit_code == 0
    page = await run_json(server, "list", TOPIC, "--state", "dead")
    assert page == {"messages": [], "cursor": None, "looked": 0}


async def test_a_list_shows_only_what_its_filter_means(
    store: Store, server: Server, raw: Redis, clock: Clock
) -> None:
    every = [corpse(number, payload={"n": number, "odd": number % 2}) for number in range(12_000)]
    every[3] = corpse(3, payload="the needle", reason="rejected: rust")
    await fill(store, raw, every, at=clock.now)
    words = ("list", TOPIC, "--state", "dead")
    page = await run_json(server, *words, "--text", "NEEDLE")  # far behind the first 5,000
    assert [one["id"] for one in page["messages"]] == ["d-000003"]
    assert (page["cursor"], page["looked"]) == (None, 12_000)
    assert (await run(server, *words, "--text", "no such")).stdout == "no dead messages match\n"
    told = await run(server, *words, "--error", "Rust")
    assert "rejected: rust" in told.stdout.splitlines()[1]
    assert told.stderr == ""
    page = await run_json(server, *words, "--text", '"odd":1', "--limit", "3")
    assert [one["id"] for one in page["messages"]] == ["d-011999", "d-011997", "d-011995"]
    assert (page["cursor"], page["looked"]) == ("5", 5)
    until = datetime.fromtimestamp(clock.now / 1000 + 0.001, UTC).isoformat()
    page = await run_json(server, *words, "--until", until)
    assert [one["id"] for one in page["messages"]] == ["d-000001", "d-000000"]


# stats --watch


async def test_a_topic_after_watch_is_told_to_come_before_it(server: Server) -> None:
    refused = await run(server, "stats", "--watch", "mail")
    assert (refused.exit_code, "'mail' is not a number" in refused.stderr) == (2, True)
    assert "before --watch" in refused.stderr


async def test_stats_are_watched_until_somebody_interrupts(store: Store, server: Server) -> None:
    await pending(store)
    words = (MX_RMQ, "stats", "--url", server.url, "--watch", "0.1")
    table, json_lines = [
        await asyncio.create_subprocess_exec(*words, *more, stdout=subprocess.PIPE)
        for more in ((), ("--json",))
    ]
    assert table.stdout is not None
    assert json_lines.stdout is not None
    lines = [await table.stdout.readline() for _ in range(2)]
    assert lines[1].split()[:2] == [TOPIC.encode(), b"1"]
    await pending(store, 2)
    while lines[-1].split()[:2] != [TOPIC.encode(), b"3"]:
        lines.append(await table.stdout.readline())
    *_, produced, _, _, no, worker = lines[-1].split()
    assert (float(produced) > 0, no, worker) == (True, b"no", b"worker")  # per second
    first, second = [json.loads(await json_lines.stdout.readline()) for _ in range(2)]
    assert (first["topics"][0]["topic"], first["away"]) == (TOPIC, [])
    assert "rates" not in first["topics"][0]
    assert set(second["topics"][0]["rates"]) == {"produced", "completed", "failed"}
    for process in (table, json_lines):
        process.send_signal(signal.SIGINT)
        await process.communicate()
        assert process.returncode == 130


async def test_a_wide_payload_is_cut_in_a_list_and_whole_in_show(
    store: Store, server: Server
) -> None:
    await store.produce_normal_message(TOPIC, [draft("x" * 500, id="wide")])
    listed = (await run(server, "list", TOPIC, "--state", "pending")).stdout
    assert '"' + "x" * 58 + "…" in listed
    assert "x" * 59 not in listed
    assert '  "' + "x" * 500 + '"\n' in (await run(server, "show", TOPIC, "wide")).stdout


async def test_a_row_is_one_line_on_a_terminal_of_80_columns(
    store: Store, server: Server, clock: Clock
) -> None:
    clock.now = int(time.time() * 1000)
    one = await bring(store, State.DEAD)
    (two,) = await store.produce_normal_message(TOPIC, [draft("x" * 500)])
    for number in range(3):
        name = f"a-host-like-many-{10_000 + number}-{number}{'a' * 31}"
        topics = [TOPIC, "mail.welcome", "mail.invoice", "cron.tick", "reports.daily"]
        about = {"name": name, "host": "a-host-like-many", "pid": 10_000 + number, "running": 2}
        info = json.dumps(about | {"topics": topics, "started_at": clock.now}).encode()
        await store.beat_worker(name, info)
    listed = await asyncio.to_thread(at_80_columns, server, "list", TOPIC, "--state", "dead")
    assert [line.split()[0] for line in listed] == ["id", one.id]
    assert FAILURE.type in listed[1]
    listed = await asyncio.to_thread(at_80_columns, server, "list", TOPIC, "--state", "pending")
    assert [line.split()[0] for line in listed] == ["id", two.id]
    assert "xxx…" in listed[1]
    workers = await asyncio.to_thread(at_80_columns, server, "workers")
    names = [f"a-host-like-many-{10_000 + number}-{number}{'a' * 7}" for number in range(3)]
    assert [line.split()[0] for line in workers] == ["worker", *names]
    assert workers[0].split() == ["worker", "topics", "running", "held", "as", "of"]
    stats = await asyncio.to_thread(at_80_columns, server, "stats")
    assert len(stats) == 2


def at_80_columns(server: Server, *words: str) -> list[str]:
    """Run a command at a terminal; return the lines that it shows."""
    master, slave = os.openpty()
    try:
        subprocess.run(
            [MX_RMQ, *words, "--url", server.url],
            env={**os.environ, "COLUMNS": "80", "TERM": "dumb"},
            stdout=slave,
            timeout=60,
            check=True,
        )
        return os.read(master, 65_536).decode().splitlines()
    finally:
        os.close(master)
        os.close(slave)


# show


@pytest.mark.parametrize("state", [one for one in State if one is not State.COMPLETED])
async def test_everything_about_a_message_can_be_shown(
    store: Store, server: Server, state: State
) -> None:
    one = await bring(store, state, headers={"trace": "t-1"})
    told = await run(server, "show", TOPIC, one.id)
    assert told.exit_code == 0
    assert f"state:       {state}\n" in told.stdout
    assert "header:      trace: t-1\n" in told.stdout
    assert told.stdout.endswith("payload:\n  0\n")
    shown = await run_json(server, "show", TOPIC, one.id)
    assert (shown["id"], shown["headers"]) == (one.id, {"trace": "t-1"})
    assert msgspec.json.decode(base64.b64decode(shown["raw"]))["id"] == one.id


async def test_the_result_of_a_completed_message_is_shown(store: Store, server: Server) -> None:
    one = await bring(store, State.COMPLETED)
    told = (await run(server, "show", TOPIC, one.id)).stdout
    assert "state:       completed\n" in told
    assert told.endswith("result:\n  0\n")


async def test_a_result_is_printed_or_the_reason_why_there_is_none(
    store: Store, server: Server
) -> None:
    async with await Store.open(server.url) as real:
        done = await bring(real, State.COMPLETED)
    dead = await bring(store, State.DEAD)
    waiting = (await pending(store))[0]
    told = await run(server, "result", TOPIC, done.id)
    assert (told.exit_code, told.stdout) == (0, "0\n")
    document = await run_json(server, "result", TOPIC, done.id)
    assert document == {"topic": TOPIC, "id": done.id, "result": 0}
    for id, why in (
        (dead.id, "is dead"),
        (waiting, "has no result after 0.1 s"),
        ("never", "nothing is known"),
    ):
        told = await run(server, "result", TOPIC, id, "--wait", "0.1")
        assert told.exit_code == 1
        assert why in told.stderr


async def test_failures_from_before_a_requeue_are_told_from_those_since(
    store: Store, server: Server
) -> None:
    one = await bring(store, State.DEAD)
    told = (await run(server, "show", TOPIC, one.id)).stdout
    assert "attempts:    1 failed\n" in told
    assert await Admin(store).requeue(TOPIC, one.id)
    (again,) = await take(store)
    await settle(store, again, State.DEAD)
    told = (await run(server, "show", TOPIC, one.id)).stdout
    assert "attempts:    1 failed since it was requeued\n" in told
    assert (told.count("\nearlier: "), told.count("\nfailed: ")) == (1, 1)


async def test_a_message_that_is_not_there_gives_exit_code_1(store: Store, server: Server) -> None:
    await pending(store)
    told = await run(server, "show", TOPIC, "unknown")
    assert (told.exit_code, told.stdout) == (1, "")
    error, reach = told.stderr.splitlines()
    assert error == "Error: no message 'unknown' in topic 'orders'"
    assert re.fullmatch(
        r"The history reaches back to .+Z \(.+\); it may have ended before\.", reach
    )
    assert await run_json(server, "show", TOPIC, "unknown", code=1) is None


async def test_a_message_is_found_by_its_id_alone(store: Store, server: Server) -> None:
    await pending(store, id="own")
    for number in range(20):
        await store.produce_normal_message(f"t-{number}", [draft(id=f"id-{number}")])
    await store.produce_normal_message("other", [draft(id="own")])
    assert "topic:       t-7\n" in (await run(server, "show", "id-7")).stdout
    assert (await run_json(server, "show", "id-19"))["topic"] == "t-19"
    told = await run(server, "show", "nope")
    assert (told.exit_code, told.stderr) == (1, "Error: no message 'nope' in any topic\n")
    told = await run(server, "show", "own")
    assert told.exit_code == 2
    assert told.stderr == (
        "Error: message 'own' is in several topics, pass one of them: orders, other\n"
    )
    assert (await run(server, "show", "other", "own")).exit_code == 0
    assert (await run(server, "show", "a", "b", "c")).exit_code == 2


# hostile bytes


async def test_a_hostile_message_stays_harmless_wherever_it_is_shown(
    store: Store, server: Server
) -> None:
    hostile = {HOSTILE: [HOSTILE]}
    (one,) = await leased(store)
    await store.complete_message(TOPIC, "w1", [one])
    await store.produce_normal_message(TOPIC, [draft(hostile, id="h", headers={HOSTILE: HOSTILE})])
    (one,) = (await store.dispatch_message(TOPIC, "w1", count=1, lease=1000)).messages
    failure = msgspec.structs.replace(
        FAILURE, type=HOSTILE, text=HOSTILE, worker=HOSTILE, traceback=HOSTILE
    )
    final = msgspec.structs.replace(message(one).failed(failure), reason=HOSTILE)
    await store.move_to_dlq(TOPIC, "w1", one, final)
    for words in (("list", TOPIC, "--state", "dead"), ("show", TOPIC, "h")):
        told = await run(server, *words)
        assert told.exit_code == 0
        assert harmless(told.stdout)
        assert "[red]boo[/red] :smile:" in told.stdout  # no markup, no emoji: as it is
    assert (await run_json(server, "show", TOPIC, "h"))["payload"] == hostile
    (listed,) = (await run_json(server, "list", TOPIC, "--state", "dead"))["messages"]
    assert (listed["payload"], listed["reason"]) == (hostile, HOSTILE)


@pytest.mark.corrupts
@pytest.mark.parametrize("data", [b"\xff\x1b[2J", b"", HOSTILE.encode()])
async def test_an_unreadable_message_is_shown_as_such(
    store: Store, server: Server, raw: Redis, data: bytes
) -> None:
    (id,) = await pending(store)
    await raw.hset(store.keys.of(TOPIC).payload, id, data)
    told = await run(server, "show", TOPIC, id)
    assert told.exit_code == 0
    assert harmless(told.stdout)
    assert "unreadable:  not a message record" in told.stdout
    assert told.stdout.endswith(f"bytes:\n  {data!r}\n".replace("\u202e", "\\u202e"))
    assert harmless((await run(server, "list", TOPIC, "--state", "pending")).stdout)
    shown = await run_json(server, "show", TOPIC, id)
    assert (shown["payload"], base64.b64decode(shown["raw"])) == (None, data)
    assert shown["unreadable"]


@pytest.mark.corrupts
async def test_a_message_with_an_id_of_any_bytes_is_listed_and_found(
    store: Store, server: Server, raw: Redis
) -> None:
    await pending(store)
    id = b"\xff\x1b[2J"
    await raw.rpush(store.keys.of(TOPIC).pending, id)
    await raw.hset(store.keys.of(TOPIC).payload, id, b"x")
    told = await run(server, "list", TOPIC, "--state", "pending")
    assert harmless(told.stdout)
    assert "\\udcff\\x1b[2J" in told.stdout
    page = await run_json(server, "list", TOPIC, "--state", "pending")
    found = page["messages"][0]["id"]
    assert found.encode("utf-8", "surrogateescape") == id
    assert (await run_json(server, "show", TOPIC, found))["id"] == found


# workers


async def test_workers_are_listed_with_what_they_do(
    store: Store, server: Server, clock: Clock
) -> None:
    clock.now = int(time.time() * 1000)
    assert (await run(server, "workers")).stdout == "no workers\n"
    assert await run_json(server, "workers") == {"workers": []}
    info = {"host": HOSTILE, "pid": 4242, "topics": ["a", "b"], "concurrency": 10, "running": 3}
    await store.beat_worker("w1", msgspec.json.encode(info))
    told = await run(server, "workers")
    assert told.exit_code == 0
    assert harmless(told.stdout)
    assert "4242" in told.stdout
    assert "a, b" in told.stdout
    header, line = told.stdout.splitlines()
    assert header.split()[-2:] == ["as", "of"]
    assert line.rstrip().endswith(" s ago")
    (one,) = (await run_json(server, "workers"))["workers"]
    assert (one["name"], one["host"], one["topics"]) == ("w1", HOSTILE, ["a", "b"])
    assert (one["pid"], one["running"], one["held"], one["alive"]) == (4242, 3, None, True)


async def test_workers_are_listed_with_their_batches(
    store: Store, server: Server, clock: Clock
) -> None:
    clock.now = int(time.time() * 1000)
    doing = {"topic": "a", "id": "o-1", "handler": "shop.add", "attempt": 1, "seconds": 1.5}
    info = {
        "topics": ["a", "b"],
        "batches": {"a": 5000, "b": "junk"},
        "doing": [{**doing, "batch": 1001}],
    }
    await store.beat_worker("w1", msgspec.json.encode(info))
    assert "a (batch 5,000), b " in (await run(server, "workers")).stdout
    assert "o-1 and 1,000 more" in (await run(server, "workers", "--running")).stdout
    (one,) = (await run_json(server, "workers"))["workers"]
    assert one["batches"] == {"a": 5000}
    assert one["doing"][0]["batch"] == 1001


async def test_workers_are_listed_with_what_they_run(
    store: Store, server: Server, clock: Clock
) -> None:
    clock.now = int(time.time() * 1000)
    doing = {"topic": TOPIC, "id": "o-1", "handler": "shop.ship", "attempt": 2, "seconds": 75.5}
    hostile = {**doing, "id": HOSTILE, "handler": HOSTILE}
    info = {"running": 2, "doing": [doing, hostile]}
    await store.beat_worker("w1", msgspec.json.encode(info))
    await store.beat_worker("w2", msgspec.json.encode({"running": 0, "doing": []}))
    told = await run(server, "workers", "--running")
    assert told.exit_code == 0
    assert harmless(told.stdout)
    _, first, _, idle = told.stdout.splitlines()
    assert first.split()[:5] == ["w1", TOPIC, "o-1", "shop.ship", "2"]
    assert "1 min 15 s" in first
    assert idle.split()[0] == "w2"
    one, _ = (await run_json(server, "workers"))["workers"]
    assert one["doing"] == [{**doing, "batch": None}, {**hostile, "batch": None}]


# audit


@pytest.mark.corrupts
async def test_the_audit_as_json_lists_the_violations(
    store: Store, server: Server, raw: Redis
) -> None:
    (id,) = await pending(store)
    assert await run_json(server, "audit") == CLEAN | {"topics": 1, "messages": 1}
    await raw.delete(store.keys.of(TOPIC).pending)
    found = await run_json(server, "audit", code=1)
    assert found["violations"] == [{"topic": TOPIC, "id": id, "what": "a record without a state"}]


async def test_the_audit_tells_which_topics_it_could_not_look_at(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pending(store)
    await store.produce_normal_message("other", [draft()])
    audit = Admin.audit

    async def away(self: Admin, topic: str) -> list[Violation]:
        if topic == "other":
            raise ServerUnavailable("its node is away")
        return await audit(self, topic)

    monkeypatch.setattr(Admin, "audit", away)
    found = await run_json(server, "audit", code=2)
    assert found == CLEAN | {"topics": 2, "messages": 1, "away": ["other: its node is away"]}


@pytest.mark.corrupts
async def test_the_audit_tells_of_a_key_of_a_wrong_type(
    store: Store, server: Server, raw: Redis
) -> None:
    await archived(store, State.DEAD)
    await raw.set(store.keys.of(TOPIC).pending, "x")
    told = await run(server, "audit")
    assert told.exit_code == 1
    assert "holds a string, not a list" in told.stdout


# partitions


async def test_a_topic_of_partitions_is_one_line_that_says_so(store: Store, server: Server) -> None:
    await store.register_topics({TOPIC: 3})
    for part in partitions(TOPIC, 3):
        await store.produce_normal_message(part, [draft()])
    await store.produce_normal_message("plain", [draft()])
    _, first, second = (await run(server, "stats")).stdout.splitlines()
    assert first.split()[:2] == [TOPIC, "3"]
    assert first.endswith("3 partitions, no worker")
    assert "partition" not in second
    several, plain = (await run_json(server, "stats"))["topics"]
    assert (several["pending"], several["partitions"]) == (3, 3)
    assert "partitions" not in plain
    assert await run_json(server, "audit") == CLEAN | {"topics": 2, "messages": 4}
    assert (await run(server, "audit")).stdout == "2 topics, 4 messages, 0 violations\n"


async def test_a_message_says_in_which_partition_it_is_unless_it_is_the_first(
    store: Store, server: Server
) -> None:
    await store.register_topics({TOPIC: 2})
    (first,) = await store.produce_normal_message(TOPIC, [draft()])
    (second,) = await store.produce_normal_message(f"{TOPIC}/1", [draft()])
    assert "partition" not in (await run(server, "show", TOPIC, first.id)).stdout
    told = (await run(server, "show", TOPIC, second.id)).stdout
    assert f"topic:       {TOPIC}\npartition:   1\n" in told
    assert (await run_json(server, "show", TOPIC, second.id))["partition"] == 1


async def test_a_list_goes_on_through_all_partitions(store: Store, server: Server) -> None:
    await store.register_topics({TOPIC: 3})
    ids = set()
    for part in partitions(TOPIC, 3):
        ids |= {id for id, _ in await store.produce_normal_message(part, [draft()] * 3)}
    words: list[str] = []
    found: list[str] = []
    for pages in range(5):
        page = await run_json(server, "list", TOPIC, "--state", "pending", "--limit", "2", *words)
        found += [one["id"] for one in page["messages"]]
        words = ["--cursor", str(page["cursor"])]
        assert (page["cursor"] is None) == (pages == 4)
    assert len(found) == len(ids)
    assert set(found) == ids


@pytest.mark.corrupts
async def test_what_is_wrong_is_told_with_its_partition(
    store: Store, server: Server, raw: Redis
) -> None:
    await store.register_topics({TOPIC: 2})
    (one,) = await store.produce_normal_message(f"{TOPIC}/1", [draft()])
    await raw.delete(store.keys.of(f"{TOPIC}/1").pending)
    told = await run(server, "audit")
    assert told.exit_code == 1
    assert f"{TOPIC}/1: {one.id}: a record without a state\n" in told.stdout
    told = await run(server, "doctor")
    assert told.exit_code == 1
    assert f"the first: partition 1: {one.id}: a record without a state." in told.stdout


async def test_the_doctor_counts_all_partitions(store: Store, server: Server, clock: Clock) -> None:
    await store.register_topics({TOPIC: 2})
    await store.produce_delay_message(f"{TOPIC}/1", [draft(delay=1000)])
    clock.now = int(time.time() * 1000)
    await store.beat_worker("w1", msgspec.json.encode({"topics": [TOPIC]}))
    told = await run(server, "doctor")
    assert f"topic {TOPIC}: 1 message in 2 partitions, each in exactly one state" in told.stdout


# audit --repair


@pytest.mark.corrupts
async def test_a_repair_shows_what_it_would_do_and_does_it_when_told_to(
    store: Store, server: Server, raw: Redis
) -> None:
    (id,) = await pending(store)
    clean = await run(server, "audit", "--repair")
    assert (clean.exit_code, clean.stdout) == (0, "0 repairs would be done\n")

    await raw.delete(store.keys.of(TOPIC).pending)
    line = f"{TOPIC}: {id}: put in front of the pending ones\n"
    told = await run(server, "audit", "--repair")
    assert told.exit_code == 1
    assert told.stdout == (
        line + "1 repair would be done\nNothing was changed. Pass --yes to make these repairs.\n"
    )
    document = await run_json(server, "audit", "--repair", code=1)
    assert document["repaired"] is False
    assert document["repairs"] == [
        {"topic": TOPIC, "id": id, "what": "put in front of the pending ones"}
    ]
    assert await store.audit.topic(TOPIC) != []

    done = await run(server, "audit", TOPIC, "--repair", "--yes")
    assert (done.exit_code, done.stdout) == (0, line + "1 repair done\n")
    assert await store.audit.topic(TOPIC) == []


@pytest.mark.corrupts
@pytest.mark.parametrize(("says", "code"), [("y\n", 0), ("n\n", 2)])
async def test_a_repair_asks_whoever_sits_there(
    store: Store, server: Server, raw: Redis, says: str, code: int
) -> None:
    await pending(store)
    await raw.delete(store.keys.of(TOPIC).pending)
    with at_a_terminal("audit", "--repair", "--url", server.url, says=says) as process:
        _, asked = await asyncio.to_thread(process.communicate, timeout=30)
    assert b"Do 1 repair? [y/N]" in asked
    assert process.returncode == code
    assert bool(await store.audit.topic(TOPIC)) == bool(code)


@pytest.mark.corrupts
async def test_what_cannot_be_repaired_is_still_wrong(
    store: Store, server: Server, raw: Redis
) -> None:
    await pending(store)
    await raw.set(store.keys.of(TOPIC).dlq, "of somebody else")
    told = await run(server, "audit", "--repair", "--yes")
    assert told.exit_code == 1
    assert "not repaired: key mx-rmq:{orders}:dlq holds a string" in told.stdout
    assert "still wrong: orders: (topic): key mx-rmq:{orders}:dlq" in told.stdout
    document = await run_json(server, "audit", "--repair", "--yes", code=1)
    assert len(document["violations"]) == 1


async def test_show_says_how_far_a_running_message_is(store: Store, server: Server) -> None:
    (held,) = await leased(store)
    report = msgspec.json.encode(ProgressNote(0.4, "page 4 of 10"))
    await store.note_progress(TOPIC, "w1", [(held, report)], keep=60_000)
    told = (await run(server, "show", TOPIC, held.id)).stdout
    assert re.search(r"^progress: +40%\nnote: +page 4 of 10$", told, re.MULTILINE)
    document = await run_json(server, "show", TOPIC, held.id)
    assert (document["progress"], document["note"]) == (0.4, "page 4 of 10")
