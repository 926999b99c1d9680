"""Traces: one context from the produce to the handler, by the conventions for messaging."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mx_rmq import (
    Batch,
    Delivery,
    HandlerTimeout,
    InvalidInput,
    MessageQueue,
    QueueFull,
    Reject,
    Retry,
    Worker,
)
from mx_rmq.core.events import CronFired
from mx_rmq.core.text import how_to_install
from mx_rmq.traces import Traces
from tests.lab.servers import Kind
from tests.runtime.stage import Seen, queue, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from opentelemetry.sdk.trace import ReadableSpan
    from redis.asyncio import Redis

    from tests.lab.servers import Server

SECRET = "4111-1111"
"""Stands in every payload, and must stand in no span."""


class Spans:
    """What a provider of its own has exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.all(name)
        return span

    def text(self) -> str:
        return "".join(span.to_json() for span in self._exporter.get_finished_spans())


@pytest.fixture
def kind() -> Kind:
    """One is enough: Python alone decides about traces."""
    return Kind.VALKEY_9_1


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
async def mq(raw: Redis, server: Server, spans: Spans) -> AsyncIterator[MessageQueue]:
    async with queue(server.url, middleware=[Traces(spans.provider)]) as mq:
        yield mq
    assert SECRET not in spans.text()


def identity(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_trace_goes_from_the_caller_to_the_handler_and_on(
    mq: MessageQueue, spans: Spans
) -> None:
    seen: dict[str, str] = {}

    @mq.handler("orders")
    async def orders(payload: dict[str, str], delivery: Delivery) -> None:
        seen.update(delivery.headers)
        with spans.tracer.start_as_current_span("work"):
            await asyncio.create_task(mq.produce("mails", payload, delay=0.01))

    @mq.handler("mails")
    async def mails(payload: dict[str, str]) -> None: ...

    with spans.tracer.start_as_current_span("request"):
        id = await mq.produce("orders", {"card": SECRET}, headers={"tenant": "7"})
    worker = Worker(mq)
    await worker.drain(delayed=True)
    send, process = spans.one("send orders"), spans.one("process orders")
    assert send.kind is SpanKind.PRODUCER
    assert parent(send) == identity(spans.one("request"))
    assert attributes(send) == {
        "messaging.system": "mx_rmq",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.id": id,
    }
    assert process.kind is SpanKind.CONSUMER
    assert parent(process) == identity(send)
    assert links(process) == [identity(send)]
    assert process.status.status_code is StatusCode.UNSET
    assert attributes(process) == {
        "messaging.system": "mx_rmq",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": id,
        "messaging.mx_rmq.attempt": 1,
        "messaging.client.id": worker.name,
    }
    trace_id, span_id = identity(send)
    assert seen.pop("traceparent").startswith(f"00-{trace_id:032x}-{span_id:016x}-")
    assert seen == {"tenant": "7"}
    assert parent(spans.one("work")) == identity(process)
    assert parent(spans.one("send mails")) == identity(spans.one("work"))
    assert links(spans.one("process mails")) == [identity(spans.one("send mails"))]


async def test_follow_ups_and_flows_go_on_with_the_trace(mq: MessageQueue, spans: Spans) -> None:
    @mq.handler("page")
    def page(payload: dict[str, str], delivery: Delivery) -> None:
        delivery.produce("mail", {"card": SECRET})

    @mq.handler("mail")
    async def mail(payload: dict[str, str]) -> None: ...

    with spans.tracer.start_as_current_span("request"):
        async with mq.flow() as flow:
            flow.produce("page", {"card": SECRET})
    await Worker(mq).drain()
    for earlier, later in (
        ("request", "send page"),
        ("send page", "process page"),
        ("process page", "send mail"),
        ("send mail", "process mail"),
    ):
        assert parent(spans.one(later)) == identity(spans.one(earlier))


async def test_many_messages_share_the_span_of_their_call(mq: MessageQueue, spans: Spans) -> None:
    @mq.handler("orders")
    async def orders(payload: str) -> None: ...

    ids = await mq.produce_many("orders", [SECRET] * 3)
    await Worker(mq).drain()
    send, handled = spans.one("send orders"), spans.all("process orders")
    assert attributes(send)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(send)
    assert {attributes(one)["messaging.message.id"] for one in handled} == set(ids)
    assert {(parent(one), *links(one)) for one in handled} == {(identity(send), identity(send))}


async def test_a_batch_is_one_span_that_is_linked_to_every_produce(
    mq: MessageQueue, spans: Spans
) -> None:
    @mq.handler("t", batch=10, max_attempts=1)
    async def handle(payloads: list[str], batch: Batch) -> None:
        batch.fail(1, "no")

    for _ in range(3):
        await mq.produce("t", SECRET)
    await mq.produce_many("t", [SECRET] * 4)
    await Worker(mq).drain()
    span = spans.one("process t")
    assert span.kind is SpanKind.CONSUMER
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 7
    assert span.attributes["messaging.mx_rmq.failed_count"] == 1
    made = {one.context.span_id for one in spans.all("send t") if one.context is not None}
    assert {link.context.span_id for link in span.links} == made
    assert len(made) == 4
    (event,) = span.events
    assert event.attributes is not None
    assert event.attributes["exception.type"] == "mx_rmq.core.batch.ItemFailed"


async def test_a_batch_that_raises_is_an_error(mq: MessageQueue, spans: Spans) -> None:
    @mq.handler("t", batch=10, max_attempts=1)
    async def handle(payloads: list[str]) -> None:
        raise ValueError("no")

    await mq.produce_many("t", [SECRET] * 2)
    await Worker(mq).drain()
    assert spans.one("process t").status.status_code is StatusCode.ERROR


async def test_a_context_that_the_caller_brings_stays(mq: MessageQueue, spans: Spans) -> None:
    made = (0xA0, 0xB0)
    brought = {"traceparent": f"00-{made[0]:032x}-{made[1]:016x}-01"}

    @mq.handler("orders")
    async def orders(payload: str) -> None: ...

    await mq.produce("orders", SECRET, headers=brought)
    await Worker(mq).drain()
    send = spans.one("send orders")
    assert send.kind is SpanKind.CLIENT  # as the conventions have it: another one created it
    assert links(send) == [made]
    assert parent(spans.one("process orders")) == made
    assert links(spans.one("process orders")) == [made]
    assert brought == {"traceparent": brought["traceparent"]}


@pytest.mark.parametrize("own", ["", "nonsense", f"00-{0:032x}-{0:016x}-01"])
async def test_a_context_that_cannot_be_read_is_replaced(
    mq: MessageQueue, spans: Spans, own: str
) -> None:
    seen: list[dict[str, str]] = []

    @mq.handler("orders")
    async def orders(payload: str, delivery: Delivery) -> None:
        seen.append({**delivery.headers})

    brought = {"traceparent": own, "baggage": "shop=north", "x": "y"}
    token = attach(baggage.set_baggage("shop", "south"))
    try:
        await mq.produce("orders", SECRET, headers=brought)
    finally:
        detach(token)
    await Worker(mq).drain()
    send, process = spans.one("send orders"), spans.one("process orders")
    assert send.kind is SpanKind.PRODUCER
    assert (parent(process), links(process)) == (identity(send), [identity(send)])
    assert (seen[0]["baggage"], seen[0]["x"]) == ("shop=north", "y")
    assert brought["traceparent"] == own


async def test_each_attempt_is_a_span_and_a_failure_is_an_error(
    mq: MessageQueue, spans: Spans
) -> None:
    @mq.handler("orders", retry=0)
    async def orders(payload: str, delivery: Delivery) -> None:
        match delivery.attempt:
            case 1:
                raise LookupError("no \ud800 such")
            case 2:
                raise Retry(0)
            case 3:
                raise Reject("never")

    await mq.produce("orders", SECRET)
    await Worker(mq).drain(delayed=True)
    failed, again, refused = spans.all("process orders")
    assert {parent(one) for one in (failed, again, refused)} == {identity(spans.one("send orders"))}
    assert [attributes(one)["messaging.mx_rmq.attempt"] for one in (failed, again, refused)] == [
        1,
        2,
        3,
    ]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == r"LookupError: no \ud800 such"
    assert attributes(failed)["error.type"] == "LookupError"
    (event,) = failed.events
    about = dict(event.attributes or {})
    assert event.name == "exception"
    assert (about["exception.type"], about["exception.message"]) == (
        "LookupError",
        r"no \ud800 such",
    )
    assert 'raise LookupError("no' in str(about["exception.stacktrace"])
    assert again.status.status_code is StatusCode.UNSET
    assert again.events == ()
    assert attributes(again)["messaging.mx_rmq.result"] == "retry"
    assert refused.status.status_code is StatusCode.ERROR
    assert attributes(refused)["error.type"] == "mx_rmq.core.outcome.Reject"


async def test_a_sleeping_or_waiting_handler_is_no_error(mq: MessageQueue, spans: Spans) -> None:
    @mq.handler("orders")
    async def orders(payload: str, delivery: Delivery) -> None:
        await delivery.sleep("nap", 0.01)
        await delivery.wait("approval")

    id = await mq.produce("orders", SECRET)
    await mq.signal("orders", id, "approval")
    await Worker(mq).drain(delayed=True)
    slept, done = spans.all("process orders")
    assert attributes(slept)["messaging.mx_rmq.result"] == "suspended"
    assert "messaging.mx_rmq.result" not in attributes(done)
    assert {one.status.status_code for one in (slept, done)} == {StatusCode.UNSET}


async def test_a_timeout_is_an_error_and_the_end_of_the_worker_is_none(
    mq: MessageQueue, spans: Spans
) -> None:
    running = asyncio.Event()

    @mq.handler("slow", timeout=0.05, max_attempts=1)
    def slow(payload: str) -> None:
        waiting = threading.Event()
        while not waiting.wait(0.005):
            pass

    @mq.handler("endless")
    async def endless(payload: str) -> None:
        running.set()
        await asyncio.Event().wait()

    await mq.produce("slow", SECRET)
    await mq.produce("endless", SECRET)
    worker = Worker(mq, grace=0)
    async with worker:
        await running.wait()
        await until(lambda: spans.all("process slow"))
    late, ended = spans.one("process slow"), spans.one("process endless")
    assert late.status.status_code is StatusCode.ERROR
    assert attributes(late)["error.type"].endswith(HandlerTimeout.__name__)
    assert ended.status.status_code is StatusCode.UNSET
    assert attributes(ended)["messaging.mx_rmq.result"] == "shutdown"


async def test_a_produce_that_is_refused_is_an_error(mq: MessageQueue, spans: Spans) -> None:
    with pytest.raises(InvalidInput):
        await mq.produce("orders", SECRET, headers=["no"])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await mq.produce("orders", SECRET, headers={"traceparent": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidInput):
        await mq.produce("no topic", SECRET)
    for span in spans.all("send orders"):
        assert span.status.status_code is StatusCode.ERROR
    assert attributes(spans.one("send no topic"))["error.type"] == "mx_rmq.core.errors.InvalidInput"


async def test_texts_of_errors_can_be_kept_out(raw: Redis, server: Server, spans: Spans) -> None:
    middleware = [Traces(spans.provider, error_texts=False)]
    async with queue(server.url, middleware=middleware, max_pending=1) as mq:

        @mq.handler("orders", max_attempts=1)
        async def orders(payload: str) -> None:
            raise ValueError(payload)

        await mq.produce("orders", SECRET)
        with pytest.raises(QueueFull):
            await mq.produce("orders", SECRET)
        await Worker(mq).drain()
    assert SECRET not in spans.text()
    assert spans.one("process orders").status.description == "ValueError"


async def test_without_join_each_message_has_a_trace_of_its_own(
    raw: Redis, server: Server, spans: Spans
) -> None:
    tenants: list[object] = []
    async with queue(server.url, middleware=[Traces(spans.provider, join=False)]) as mq:

        @mq.handler("orders")
        async def orders(payload: str) -> None:
            tenants.append(baggage.get_baggage("tenant"))

        token = attach(baggage.set_baggage("tenant", "7"))
        await mq.produce("orders", SECRET)
        detach(token)
        await Worker(mq).drain()
    process = spans.one("process orders")
    assert parent(process) is None
    assert links(process) == [identity(spans.one("send orders"))]
    assert tenants == ["7"]


async def test_a_worker_that_runs_inside_a_span_links_to_it(mq: MessageQueue, spans: Spans) -> None:
    @mq.handler("orders")
    async def orders(payload: str) -> None: ...

    await mq.produce("orders", SECRET)
    with spans.tracer.start_as_current_span("deploy"):
        await Worker(mq).drain()
    send = identity(spans.one("send orders"))
    assert parent(spans.one("process orders")) == send
    assert links(spans.one("process orders")) == [send, identity(spans.one("deploy"))]


async def test_plain_functions_in_threads_and_mq_sync_are_in_the_trace(
    mq: MessageQueue, spans: Spans
) -> None:
    @mq.handler("orders")
    def orders(payload: str) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)
        mq.sync.produce("mails", payload)

    @mq.handler("mails")
    def mails(payload: str) -> None: ...

    def call() -> None:
        with spans.tracer.start_as_current_span("script"):
            mq.sync.produce("orders", SECRET)

    seen: list[int] = []
    try:
        await asyncio.to_thread(call)
        await Worker(mq).drain()
    finally:
        await asyncio.to_thread(mq.sync.close)
    process = spans.one("process orders")
    assert parent(spans.one("send orders")) == identity(spans.one("script"))
    assert parent(process) == identity(spans.one("send orders"))
    assert seen == [identity(process)[1]]
    assert parent(spans.one("send mails")) == identity(process)
    assert parent(spans.one("process mails")) == identity(spans.one("send mails"))


async def test_a_cron_begins_a_trace(mq: MessageQueue, spans: Spans) -> None:
    @mq.cron("* * * * * *", topic="report")
    async def report() -> None: ...

    seen = Seen(mq.events)
    async with Worker(mq):
        fired = await seen.one(CronFired)
        await until(lambda: spans.all("process report"))
    process = spans.all("process report")[0]
    assert (parent(process), links(process)) == (None, [])
    assert attributes(process)["messaging.message.id"] == fired.id


async def test_messages_of_producers_without_traces_are_handled(
    mq: MessageQueue, server: Server, spans: Spans
) -> None:
    @mq.handler("orders")
    async def orders(payload: str) -> None: ...

    async with MessageQueue(server.url) as plain:
        await plain.produce("orders", SECRET, headers={"traceparent": "nonsense"})
        await plain.produce("orders", SECRET)
    await Worker(mq).drain()
    assert [(parent(one), links(one)) for one in spans.all("process orders")] == [(None, [])] * 2


def test_without_opentelemetry_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
import mx_rmq, mx_rmq.logs
try:
    import mx_rmq.traces
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (f"mx_rmq.traces needs OpenTelemetry: {how_to_install('traces')}\n")
