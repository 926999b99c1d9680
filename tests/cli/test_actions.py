"""requeue, discard, cancel, abort and reschedule, as a user runs them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from mx_rmq.admin import Admin
from mx_rmq.core.message import Failure, State
from mx_rmq.core.partition import partitions
from mx_rmq.store.store import Store
from tests.cli.calls import HOSTILE, MX_RMQ, at_a_terminal, harmless, run, run_json
from tests.lab.archives import ARCHIVES, archived, corpse, fill
from tests.lab.crew import until
from tests.lab.messages import TOPIC, bring, delayed, draft, leased, pending
from tests.lab.nodes import until_true
from tests.lab.servers import Kind, Server
from tests.lab.snapshot import snapshot

if TYPE_CHECKING:
    from tests.lab.clock import Clock

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)


# requeue and discard


@pytest.mark.parametrize("state", ARCHIVES)
async def test_messages_are_requeued_and_missing_ones_told_of(
    store: Store, server: Server, state: State
) -> None:
    ids = await archived(store, state, 3)
    told = await run(server, "requeue", TOPIC, ids[0], "nope", ids[1], ids[0])
    assert told.exit_code == 1
    assert told.stdout == f"{ids[0]}: requeued\nnope: not found\n{ids[1]}: requeued\n"
    counts = await store.views.counts(TOPIC)
    assert (counts.pending, counts.total) == (2, 3)
    assert await run_json(server, "requeue", TOPIC, ids[2], "--state", state) == {
        "topic": TOPIC,
        "requeued": [ids[2]],
        "absent": [],
        "refused": {},
    }


@pytest.mark.parametrize("state", ARCHIVES)
async def test_messages_are_discarded_and_missing_ones_told_of(
    store: Store, server: Server, state: State
) -> None:
    ids = await archived(store, state, 2)
    told = await run(server, "discard", TOPIC, ids[0], "nope", "--yes")
    assert (told.exit_code, told.stdout) == (1, f"{ids[0]}: discarded\nnope: not found\n")
    found = await run_json(server, "discard", TOPIC, ids[1], "--yes")
    assert found["discarded"] == [ids[1]]
    assert (await store.views.counts(TOPIC)).total == 0


@pytest.mark.corrupts
async def test_what_cannot_be_requeued_is_refused_and_the_rest_done(
    store: Store, server: Server, raw: Redis
) -> None:
    bad, good = await archived(store, State.DEAD, 2)
    await raw.hset(store.keys.of(TOPIC).dlq_payload, bad, HOSTILE)
    told = await run(server, "requeue", TOPIC, bad, good)
    assert (told.exit_code, told.stdout) == (2, f"{good}: requeued\n")
    assert told.stderr.startswith(f"Error: message '{bad}' cannot be requeued")
    assert "then discard it\n" in told.stderr
    assert harmless(told.stderr)
    found = await run_json(server, "requeue", TOPIC, bad, code=2)
    assert list(found["refused"]) == [bad]


@pytest.mark.parametrize("state", ARCHIVES)
async def test_all_of_a_state_are_requeued_or_discarded(
    store: Store, server: Server, clock: Clock, state: State
) -> None:
    await archived(store, state, 7, clock=clock)
    told = await run(server, "requeue", TOPIC, "--all", "--state", state, "--limit", "2", "--yes")
    assert (told.exit_code, told.stdout) == (0, f"2 {state} messages of orders requeued\n")
    found = await run_json(server, "discard", TOPIC, "--all", "--state", state, "--yes")
    assert found == {"topic": TOPIC, "state": state, "discarded": 5}
    told = await run(server, "discard", TOPIC, "--all", "--state", state, "--yes")
    assert (told.exit_code, told.stdout) == (0, f"0 {state} messages of orders discarded\n")
    assert (await store.views.counts(TOPIC)).total == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("requeue", TOPIC), "Pass message IDs, or --all with --state."),
        (("requeue", TOPIC, "--error", "X"), "or --all with --state. Filters need --all."),
        (("discard", TOPIC, "id", "--all"), "Pass either IDs or --all, not both."),
        (("discard", TOPIC, "--all"), "--all needs --state dead or --state quarantined"),
        (("discard", TOPIC, "id", "--limit", "1"), "--limit needs --all."),
        (("discard", TOPIC, "id", "--state", "pending"), "'pending' is not one of 'dead'"),
        (("cancel", TOPIC), "Pass message IDs, or --all with --state."),
        (("cancel", TOPIC, "--all"), "--all needs --state pending or --state delayed"),
        (("cancel", TOPIC, "id", "--state", "pending"), "--state needs --all."),
        (("cancel", TOPIC, "id", "--all", "--state", "pending"), "either IDs or --all, not both."),
        (("abort", TOPIC), "Pass message IDs, or --all with --state."),
        (("abort", TOPIC, "id", "--state", "pending"), "--state needs --all."),
        (("requeue", TOPIC, "id", "--text", "x"), "--text needs --all."),
        (("requeue", TOPIC, "id", "--text", ""), "--text needs --all."),
        (("discard", TOPIC, "--all", "--state", "dead", "--error", ""), "error='' is empty"),
        (("requeue", TOPIC, "id", "--dry-run"), "--dry-run needs --all."),
        (("requeue", TOPIC, "--all", "--state", "dead", "--rate", "0"), "0.0 is not in the range"),
        (
            ("requeue", TOPIC, "--all", "--state", "dead", "--since", "yesterday"),
            "--since 'yesterday' is neither a time span like 90s, 15m, 2h, 7d nor a time like 2030",
        ),
        (
            ("requeue", TOPIC, "--all", "--state", "dead", "--since", "1h", "--until", "2h"),
            "is after until=",
        ),
    ],
)
async def test_a_call_that_makes_no_sense_is_refused(
    store: Store, server: Server, words: tuple[str, ...], expected: str
) -> None:
    await pending(store)
    failed = await run(server, *words, "--yes")
    assert failed.exit_code == 2
    assert expected in failed.stderr


# many by a filter


async def test_those_of_a_filter_are_counted_and_acted_on(
    store: Store, server: Server, raw: Redis, clock: Clock
) -> None:
    errors = [Failure(type="Refused", text="no", at=1)]
    every = [corpse(number, errors=errors if number % 4 == 0 else []) for number in range(2000)]
    await fill(store, raw, every, at=clock.now)
    words = (TOPIC, "--all", "--state", "dead", "--error", "refused")
    told = await run(server, "requeue", *words, "--dry-run")
    assert (told.exit_code, told.stdout) == (0, "would requeue 500 dead messages of orders\n")
    assert told.stderr == ""  # nobody watches: no bar
    found = await run_json(server, "discard", *words, "--dry-run", "--limit", "7")
    assert found == {"topic": TOPIC, "state": "dead", "would": 7}
    assert (await store.views.counts(TOPIC)).dead == 2000
    told = await run(server, "discard", *words, "--text", "d-0000", "--yes")
    assert told.stdout == "25 dead messages of orders discarded\n"
    found = await run_json(server, "requeue", *words, "--yes")
    assert found == {"topic": TOPIC, "state": "dead", "requeued": 475}
    counts = await store.views.counts(TOPIC)
    assert (counts.pending, counts.dead) == (475, 1500)


async def test_a_time_is_a_span_before_the_servers_now_or_a_date(
    store: Store, server: Server, raw: Redis
) -> None:
    seconds, _ = await raw.time()
    await fill(store, raw, [corpse(number) for number in range(48)], at=seconds * 1000, apart=0)
    for hour in range(48):
        at = (seconds - hour * 3600 - 60) * 1000
        await raw.zadd(store.keys.of(TOPIC).dlq, {f"d-{hour:06}": at})
    words = ("requeue", TOPIC, "--all", "--state", "dead", "--dry-run")
    for more, number in (
        (("--since", "2h"), 2),
        (("--since", "1d"), 24),
        (("--until", "1d"), 24),
        (("--since", "90m", "--until", "0s"), 2),
        (("--since", "1970-01-01"), 48),
        (("--until", "1970-01-01T12:00+02:00"), 0),
        (("--until", "+1h"), 48),
    ):
        found = await run_json(server, *words, *more)
        assert found["would"] == number, more


@pytest.mark.parametrize(("state", "word"), [(State.PENDING, "odd"), (State.DELAYED, "odd")])
async def test_waiting_messages_are_cancelled_by_a_filter(
    store: Store, server: Server, clock: Clock, state: State, word: str
) -> None:
    clock.now = int(time.time() * 1000)  # what is produced after the command began is left alone
    for number in range(20):
        payload = "odd" if number % 2 else "even"
        if state is State.PENDING:
            await store.produce_normal_message(TOPIC, [draft(payload)])
        else:
            await store.produce_delay_message(TOPIC, [draft(payload, delay=1000)])
    words = ("cancel", TOPIC, "--all", "--state", state)
    told = await run(server, *words, "--text", word, "--yes")
    assert (told.exit_code, told.stdout) == (0, f"10 {state} messages of orders cancelled\n")
    refused = await run(server, *words, "--text", "even")
    assert refused.exit_code == 2
    assert f"to cancel 10 {state} messages of orders: pass --yes" in refused.stderr
    assert (await run_json(server, *words, "--rate", "1000", "--yes"))["cancelled"] == 10


async def test_somebody_at_a_terminal_sees_a_bar_and_may_interrupt(
    store: Store, server: Server, raw: Redis, clock: Clock
) -> None:
    await fill(store, raw, [corpse(number) for number in range(2000)], at=clock.now)
    master, slave = os.openpty()
    words = ("requeue", TOPIC, "--all", "--state", "dead", "--rate", "200", "--yes")
    process = subprocess.Popen(
        [MX_RMQ, *words, "--url", server.url],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
    )
    seen = b""
    while b"/2000" not in seen or not (await store.views.counts(TOPIC)).pending:
        seen += await asyncio.to_thread(os.read, master, 4096)
    process.send_signal(signal.SIGINT)
    output, _ = await asyncio.to_thread(process.communicate, timeout=60)
    os.close(slave)
    os.close(master)
    assert process.returncode == 130
    counts = await store.views.counts(TOPIC)
    assert b"requeued" in seen
    assert output in {
        f"interrupted: {number} dead messages of orders requeued, possibly one more\n"
        for number in (counts.pending, counts.pending - 1)
    }
    assert counts.pending + counts.dead == 2000


async def test_a_server_that_goes_away_in_the_middle_does_not_hide_what_was_done(
    kind: Kind, short_path: Path
) -> None:
    with Server(kind, short_path) as server:
        more = ["--all", "--state", "dead", "--rate", "100", "--yes"]
        more += ["--url", server.url, "--patience", "0.5"]
        async with await Store.open(server.url) as store, Redis.from_url(server.url) as raw:
            await fill(store, raw, [corpse(number) for number in range(9000)], at=1)

            async def both_have_begun() -> bool:
                totals = (await Admin(store).stats(TOPIC)).totals
                return min(totals.requeued, totals.discarded) >= 5

            with (
                at_a_terminal("requeue", TOPIC, *more) as plain,
                at_a_terminal("discard", TOPIC, *more, "--json") as as_json,
            ):
                await until_true(both_have_begun, "both commands to be at work")
                server.kill()
                output, why = await asyncio.to_thread(plain.communicate, timeout=60)
                document, _ = await asyncio.to_thread(as_json.communicate, timeout=60)
    assert (plain.returncode, as_json.returncode) == (2, 2)
    line = r"stopped: (\d+) dead messages of orders requeued, possibly one more\n"
    told = re.fullmatch(line, output.decode())
    assert told
    assert int(told[1]) >= 4
    assert why.startswith(b"Error: ")
    found = json.loads(document)
    assert found["discarded"] >= 4
    assert found["error"]


# asking


@pytest.mark.parametrize(
    ("words", "deed"),
    [
        (("discard", TOPIC, "a", "b"), "discard 2 messages of orders"),
        (("cancel", TOPIC, "a"), "cancel 1 message of orders"),
        (("requeue", TOPIC, "--all", "--state", "dead"), "requeue 3 dead messages of orders"),
        (
            ("discard", TOPIC, "--all", "--state", "dead", "--limit", "2"),
            "discard 2 dead messages of orders",
        ),
    ],
)
async def test_nothing_is_destroyed_unasked_where_nobody_can_be_asked(
    store: Store, server: Server, raw: Redis, words: tuple[str, ...], deed: str
) -> None:
    await archived(store, State.DEAD, 3)
    before = await snapshot(raw, TOPIC)
    refused = await run(server, *words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"Error: not a terminal, cannot ask for confirmation to {deed}: pass --yes\n"
    )
    assert await snapshot(raw, TOPIC) == before


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 0), (b"n\n", 2, 1)])
async def test_somebody_at_a_terminal_is_asked(
    store: Store, server: Server, answer: bytes, code: int, left: int
) -> None:
    one = await bring(store, State.DEAD)
    master, slave = os.openpty()
    os.write(master, answer)
    told = subprocess.run(
        [MX_RMQ, "discard", TOPIC, one.id, "--url", server.url],
        stdin=slave,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(master)
    os.close(slave)
    assert told.returncode == code
    assert "Discard 1 message of orders? [y/N]" in told.stderr
    assert (await store.views.counts(TOPIC)).dead == left


async def test_ctrl_c_at_the_question_ends_it_at_once(store: Store, server: Server) -> None:
    one = await bring(store, State.DEAD)
    with at_a_terminal("discard", TOPIC, one.id, "--url", server.url) as process:
        assert process.stderr is not None
        output = b""
        while not output.endswith(b"[y/N]: "):
            output += await asyncio.to_thread(os.read, process.stderr.fileno(), 100)
        state = Path(f"/proc/{process.pid}/stat")
        await until(lambda: state.read_text().rpartition(")")[2].split()[0] == "S")  # it reads
        process.send_signal(signal.SIGINT)
        _, output = await asyncio.to_thread(process.communicate, timeout=10)
    assert (process.returncode, output) == (130, b"\nError: interrupted, nothing was changed\n")
    assert (await store.views.counts(TOPIC)).dead == 1


# cancel


async def test_only_what_nobody_has_begun_is_cancelled(store: Store, server: Server) -> None:
    (held,) = await leased(store)
    (waits,) = await pending(store)
    (later,) = await delayed(store, 1000)
    told = await run(server, "cancel", TOPIC, waits, "nope", later, "--yes")
    assert told.exit_code == 1
    assert told.stdout == f"{waits}: cancelled\nnope: not found\n{later}: cancelled\n"
    refused = await run(server, "cancel", TOPIC, held.id, "--yes")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"Error: message '{held.id}' is in processing: a worker has started it\n"
    )
    assert (await store.views.counts(TOPIC)).total == 1


@pytest.mark.parametrize("command", ["requeue", "discard", "cancel", "pause", "resume"])
async def test_an_unknown_topic_is_refused_before_anything_is_asked(
    store: Store, server: Server, command: str
) -> None:
    await pending(store)
    ids = () if command in ("pause", "resume") else ("a", "b")
    failed = await run(server, command, "orderz", *ids)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert failed.stderr.startswith("Error: no topic 'orderz' under the prefix")
    assert failed.stderr.count("\n") == 1


# partitions


async def test_messages_are_acted_on_in_whatever_partition_they_are(
    store: Store, server: Server
) -> None:
    await store.register_topics({TOPIC: 3})
    for part in partitions(TOPIC, 3):
        await store.produce_normal_message(part, [draft(), draft(id=part.replace("/", "."))])
    listed = (await run_json(server, "list", TOPIC, "--state", "pending"))["messages"]
    ids = [one["id"] for one in listed]
    assert len(ids) == 6
    told = await run(server, "cancel", TOPIC, *ids[1:], "--yes")
    assert told.exit_code == 0
    assert told.stdout == "".join(f"{id}: cancelled\n" for id in ids[1:])
    assert (await run(server, "pause", TOPIC)).stdout == "orders: paused\n"
    for part in partitions(TOPIC, 3):
        assert (await store.views.counts(part)).paused
    assert (await run(server, "resume", TOPIC)).stdout == "orders: resumed\n"


async def test_a_message_in_another_state_is_told_of(store: Store, server: Server) -> None:
    (waits,) = await pending(store)
    told = await run(server, "discard", TOPIC, waits, "--yes")
    assert (told.exit_code, told.stdout) == (1, f"{waits}: not changed, it is pending\n")


# abort and reschedule


async def test_messages_are_aborted_wherever_they_are_and_missing_ones_told_of(
    store: Store, server: Server
) -> None:
    (held,) = await leased(store)
    ids = [*await pending(store), *await delayed(store, 60_000), held.id]
    refused = await run(server, "abort", TOPIC, *ids)
    assert refused.exit_code == 2
    assert "to abort 3 messages of orders: pass --yes" in refused.stderr
    told = await run(server, "abort", TOPIC, *ids, "nope", "--reason", "wrong price", "--yes")
    assert told.exit_code == 1
    assert told.stdout == "".join(f"{id}: aborted\n" for id in ids) + "nope: not found\n"
    again = await run(server, "abort", TOPIC, ids[0], "--yes")
    assert (again.exit_code, again.stdout) == (1, f"{ids[0]}: not changed, it is dead\n")
    reasons = {id: (found := await Admin(store).get(TOPIC, id)) and found.reason for id in ids}
    assert reasons == dict.fromkeys(ids, "aborted: wrong price")


@pytest.mark.parametrize("state", ["pending", "delayed", "processing"])
async def test_messages_are_aborted_by_a_filter(
    store: Store, server: Server, clock: Clock, state: str
) -> None:
    clock.now = int(time.time() * 1000)
    for payload in ("odd", "even") * 5:
        new = [draft(payload, delay=60_000 if state == "delayed" else 0)]
        late = state == "delayed"
        produce = store.produce_delay_message if late else store.produce_normal_message
        await produce(TOPIC, new)
    if state == "processing":
        await store.dispatch_message(TOPIC, "w1", count=10, lease=600_000)
    words = ("abort", TOPIC, "--all", "--state", state, "--yes")
    assert (await run_json(server, *words, "--dry-run"))["would"] == 10
    told = await run(server, *words, "--text", "odd", "--reason", "odd")
    assert (told.exit_code, told.stdout) == (0, f"5 {state} messages of orders aborted\n")
    assert (await run_json(server, *words))["aborted"] == 5


async def test_a_message_is_rescheduled(store: Store, server: Server, clock: Clock) -> None:
    clock.now = int(time.time() * 1000)
    (id,) = await pending(store)
    words = ("reschedule", TOPIC, id)
    told = await run(server, *words, "--delay", "3600")
    assert (told.exit_code, told.stdout) == (0, f"{id}: rescheduled\n")
    assert (await run_json(server, *words, "--at", "2100-01-01T00:00:00+00:00"))["rescheduled"]
    found = await Admin(store).get(TOPIC, id)
    assert found is not None
    assert found.due == 4102444800.0
    for wrong in ((), ("--delay", "1", "--at", "2100-01-01T00:00:00+00:00")):
        assert (await run(server, *words, *wrong)).exit_code == 2
    (held,) = await leased(store)
    told = await run(server, "reschedule", TOPIC, held.id, "--delay", "1")
    assert (told.exit_code, told.stdout) == (1, f"{held.id}: not changed, it is processing\n")
