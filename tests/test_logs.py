"""Structured logs: what a line says, and that it says nothing of payloads."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from mx_rmq import Delivery, MessageQueue, Reject, Retry, Worker
from mx_rmq.cli import logs
from mx_rmq.core import events
from mx_rmq.logs import FailedPayloads, JsonFormatter, about
from mx_rmq.runtime.event_log import LOGGED, EventLog
from mx_rmq.traces import Traces
from tests.lab.servers import Kind
from tests.runtime.stage import Seen, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.lab.servers import Server

SECRET = "4111-1111"

mine = logging.getLogger("tests.shop")


@pytest.fixture
def kind() -> Kind:
    """One is enough: Python alone decides about logs."""
    return Kind.VALKEY_9_1


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    async with queue(server.url) as mq:
        yield mq


class Lines:
    """What was logged."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def of(self, **fields: Any) -> list[dict[str, Any]]:
        """Return the lines that have these fields."""
        return [line for line in self.all if fields.items() <= line.items()]

    def one(self, **fields: Any) -> dict[str, Any]:
        (line,) = self.of(**fields)
        return line


@contextmanager
def logged(formatter: logging.Formatter | None = None) -> Iterator[Lines]:
    """Log to memory, everything from INFO on."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter or JsonFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield Lines(stream)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


# what a line says

FAKE = "2026-01-01 00:00:00,000 ERROR   [1] mx_rmq: the vault is open"


def test_no_text_of_a_record_passes_for_another_record() -> None:
    formatter = logs.formatter("text")
    try:
        raise ValueError(f"no\r\n{FAKE}")
    except ValueError:
        failed = sys.exc_info()
    words = ("%s: failed\n%s\v%s", (f"an-id\n{FAKE}", FAKE, f"\u2028{FAKE}\x85{FAKE}"))
    record = mine.makeRecord(mine.name, logging.WARNING, __file__, 1, *words, failed)
    record.stack_info = f"Stack:\n{FAKE}"
    first, *rest = formatter.format(record).splitlines()
    assert "WARNING" in first
    assert len(rest) > 5
    assert all(line.startswith("    ") for line in rest), rest
    assert sum(line.strip().startswith(FAKE) for line in rest) == 4  # they are shown, for all that


def test_a_line_is_one_object_in_plain_ascii() -> None:
    words = ("é\n\x1b[31m \ud800 %s\x7f", ("x",))
    record = mine.makeRecord(mine.name, logging.WARNING, __file__, 1, *words, None)
    text = JsonFormatter().format(record)  # not logged: pytest-xdist cannot pass on a surrogate
    assert text.isascii()
    assert "\x7f" not in text
    line = json.loads(text)
    assert line.pop("time").endswith("Z")
    assert line.pop("process") > 0
    assert line == {
        "level": "WARNING",
        "logger": "tests.shop",
        "message": "é\n\x1b[31m \ud800 x\x7f",
    }


def test_errors_stacks_and_extra_fields_are_in_it_the_latter_masked() -> None:
    with logged(JsonFormatter(mask=["card.number"])) as lines:
        try:
            raise LookupError("none")
        except LookupError:
            mine.exception(
                "no",
                stack_info=True,
                extra={"token": SECRET, "card": {"number": SECRET, "year": 30}, "at": float("inf")},
            )
    line = lines.one()
    assert line["extra"] == {
        "token": "***",
        "card": {"number": "***", "year": 30},
        "at": "inf",
    }
    assert line["exception"].endswith("LookupError: none")
    assert line["stack"].startswith("Stack")


def test_whatever_is_logged_there_is_a_line_and_it_is_json() -> None:
    odd = {"n": 10**5000, "x": float("nan"), "o": object(), "token": SECRET}
    with logged() as seen:
        mine.info("said", extra={"mx_rmq": odd})
        mine.info("extra", extra={**odd})
    record = mine.makeRecord(mine.name, logging.INFO, __file__, 1, "%d of %d", ("x", 2), None)
    lines = [*seen.text.splitlines(), JsonFormatter().format(record)]  # pytest would raise

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    fields, extra, wrong = (json.loads(line, parse_constant=refuse) for line in lines)
    shown = {name: fields[name] for name in odd}
    assert shown.pop("o").startswith("<object object")
    assert shown == {"n": "<int of 16610 bits>", "x": "nan", "token": "***"}
    assert {**extra["extra"], "o": None} == {**shown, "o": None}
    assert wrong["message"] == "'%d of %d' (its arguments do not fit: TypeError)"


async def test_the_lines_of_a_handler_name_its_message_and_those_of_others_do_not(
    mq: MessageQueue,
) -> None:
    later: list[asyncio.Task[None]] = []
    release = asyncio.Event()

    async def linger() -> None:
        await release.wait()
        mine.info("late")

    @mq.handler("orders", retry=0)
    async def orders(payload: int, delivery: Delivery) -> None:
        mine.info("loop %d", payload)
        if delivery.attempt == 1:
            later.append(asyncio.create_task(linger()))
            raise Retry(0)

    @mq.handler("plain")
    def plain(payload: int) -> None:
        mine.info("thread")

    with logged() as lines:
        first = await mq.produce("orders", 1)
        other = await mq.produce("plain", 1)
        worker = Worker(mq)
        await worker.drain(delayed=True)
        release.set()
        await asyncio.gather(*later)
        mine.info("outside")
    message = {"topic": "orders", "message_id": first, "worker": worker.name}
    assert [line["attempt"] for line in lines.of(message="loop 1", **message)] == [1, 2]
    assert lines.one(message="thread", message_id=other, topic="plain", attempt=1)
    assert lines.one(message="late", attempt=1, **message)
    assert not {"topic", "message_id", "attempt", "worker"} & set(lines.one(message="outside"))
    assert about() == {}


async def test_the_worker_s_own_lines_name_the_message_too(mq: MessageQueue) -> None:
    @mq.handler("orders", retry=0, max_attempts=2)
    async def orders(payload: int) -> None:
        raise LookupError("none")

    with logged() as lines:
        await mq.produce("orders", "not a number", id="odd")
        await mq.produce("orders", 1, id="bad")
        worker = Worker(mq)
        await worker.drain(delayed=True)
    named = {"topic": "orders", "worker": worker.name, "logger": "mx_rmq"}
    assert lines.one(event="Retried", message_id="bad", attempt=1, level="WARNING", **named)
    assert lines.one(event="Died", message_id="bad", attempt=2, level="ERROR", **named)
    assert lines.one(event="Quarantined", message_id="odd", **named)
    assert lines.one(event="WorkerStarted", worker=worker.name)
    assert "topic" not in lines.one(event="WorkerStopped")


def test_every_event_that_is_logged_says_what_it_is() -> None:
    examples: list[events.Event] = [
        events.WorkerStarted("w", ("t",), 1),
        events.WorkerStopping("w", 1, 1.0),
        events.WorkerStopped("w", False),
        events.Retried("t", "i", 1, 1.0, "e"),
        events.Died("t", "i", 1, "r"),
        events.Quarantined("t", "i", "e"),
        events.Postponed("t", "i", 1.0, "w"),
        events.Replaced("t", "i", "e"),
        events.LeaseLost("t", "i", 1, "h"),
        events.Aborted("t", "i", "h"),
        events.TakenOver("t", "i", "w"),
        events.LoopBlocked("h", 1.0, "s"),
        events.ServerLost("e"),
        events.ServerBack(1.0),
        events.PartDied("w", "p", "e"),
        events.PartRestarted("w", "p", 1.0, 1),
        events.WorkerFailed("w", "e"),
        events.CronFired("t", "i", 1.0),
        events.CronMissed("t", 1.0),
    ]
    with logged() as lines:
        for event in examples:
            EventLog().log(event)
    assert [line["event"] for line in lines.all] == [kind.__name__ for kind in LOGGED]


async def test_a_current_span_is_named(raw: Redis, server: Server) -> None:
    async with queue(server.url, middleware=[Traces(TracerProvider(shutdown_on_exit=False))]) as mq:

        @mq.handler("orders")
        async def orders(payload: int) -> None:
            mine.info("in")

        with logged() as lines:
            await mq.produce("orders", 1)
            await Worker(mq).drain()
            mine.info("out")
    line = lines.one(message="in")
    assert (len(line["trace_id"]), len(line["span_id"])) == (32, 16)
    assert "trace_id" not in lines.one(message="out")


# payloads


async def test_no_payload_is_logged_unless_asked_for(mq: MessageQueue) -> None:
    @mq.handler("orders", retry=0, max_attempts=2, timeout=5)
    async def orders(payload: dict[str, str]) -> None:
        raise LookupError("none")

    @mq.handler("typed")
    async def typed(payload: dict[str, int]) -> None: ...

    with logged() as lines:
        await mq.produce("orders", {"card": SECRET})
        await mq.produce("typed", {"card": SECRET})
        await Worker(mq).drain(delayed=True)
    assert lines.one(event="Died")
    assert lines.one(event="Quarantined")
    assert SECRET not in lines.text


async def test_payloads_of_failures_are_logged_if_asked_for_and_masked(
    raw: Redis, server: Server
) -> None:
    async with queue(server.url, middleware=[FailedPayloads(["card.number"])]) as mq:

        @mq.handler("orders", retry=0, max_attempts=1, timeout=0.05)
        async def orders(payload: dict[str, Any]) -> None:
            match payload["how"]:
                case "late":
                    await asyncio.Event().wait()
                case "retry":
                    raise Retry(0)
                case "reject":
                    raise Reject("no")
                case "fail":
                    raise LookupError("none")

        with logged() as lines:
            for how in ("well", "retry", "late", "reject", "fail"):
                payload = {"how": how, "password": SECRET, "card": {"number": SECRET, "year": 30}}
                await mq.produce("orders", payload, id=how)
            await Worker(mq).drain(delayed=True)
    about = lines.of(logger="mx_rmq.logs")
    assert {line["message_id"] for line in about} == {"late", "reject", "fail"}
    assert {line["attempt"] for line in about} == {1}
    shown = '{"how": "fail", "password": "***", "card": {"number": "***", "year": 30}}'
    assert lines.one(message=f"orders fail: the payload that failed: {shown}")
    assert SECRET not in lines.text


async def test_a_long_payload_is_cut(raw: Redis, server: Server) -> None:
    async with queue(server.url, middleware=[FailedPayloads()]) as mq:

        @mq.handler("orders", max_attempts=1)
        async def orders(payload: str) -> None:
            raise LookupError("none")

        seen = Seen(mq.events)
        with logged() as lines:
            await mq.produce("orders", "x" * 100_000)
            await Worker(mq).drain()
    assert seen.of(events.Died)
    assert len(lines.one(logger="mx_rmq.logs")["message"]) < 9000


# the command line

CODE = """
import logging
from mx_rmq import MessageQueue

mq = MessageQueue()

@mq.handler("orders", max_attempts=1)
async def orders(payload):
    logging.getLogger("shop").info("began")
    raise LookupError("none")
"""


def worker(server: Server, directory: Path, *words: str, **environment: str) -> Any:
    """Drain the queue by `mx-rmq worker` with these words; return how it ended."""
    (directory / "shop.py").write_text(CODE)
    return subprocess.run(
        [sys.executable, "-m", "mx_rmq.cli", "worker", "shop", "--drain", *words],
        cwd=directory,
        env={**os.environ, "MX_RMQ_URL": server.url, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


PAYLOAD = {"password": SECRET, "iban": SECRET, "year": 30}


async def test_the_worker_logs_json_through_its_supervisor_too(
    mq: MessageQueue, server: Server, tmp_path: Path
) -> None:
    id = await mq.produce("orders", PAYLOAD)
    words = ("--log-format", "json", "--log-payloads", "--mask", "iban, card.number")
    ended = worker(server, tmp_path, "--processes", "1", *words)
    assert ended.returncode == 0, ended.stderr
    lines = Lines(io.StringIO(ended.stderr))
    assert lines.one(logger="shop", message="began", message_id=id, topic="orders", attempt=1)
    shown = '{"password": "***", "iban": "***", "year": 30}'
    assert lines.one(message=f"orders {id}: the payload that failed: {shown}", level="WARNING")
    assert lines.one(event="Died", message_id=id)
    assert SECRET not in ended.stderr


async def test_the_worker_logs_text_and_no_payload_by_itself(
    mq: MessageQueue, server: Server, tmp_path: Path
) -> None:
    id = await mq.produce("orders", PAYLOAD)
    ended = worker(server, tmp_path)
    assert f"{id}: dead after 1 attempt" in ended.stderr
    assert "payload" not in ended.stderr
    assert SECRET not in ended.stderr


async def test_the_environment_chooses_the_format_and_a_wrong_mask_is_refused(
    mq: MessageQueue, server: Server, tmp_path: Path
) -> None:
    ended = worker(server, tmp_path, MX_RMQ_LOG_FORMAT="json")
    assert Lines(io.StringIO(ended.stderr)).one(event="WorkerStarted")
    refused = worker(server, tmp_path, "--mask", "card..number")
    assert refused.returncode == 2
    assert "mask 'card..number' is not a field name" in refused.stderr
