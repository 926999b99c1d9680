"""Traces: OpenTelemetry's context travels in the headers of messages.

    mq = MessageQueue(url, middleware=[Traces()])

Each produce is a span. Each attempt to handle a message is a span too, linked to that of its
produce. A batch is one span, linked to the produces of its messages. Names and attributes follow
the semantic conventions for messaging.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from mx_rmq.core.errors import ProduceUnknown
from mx_rmq.core.message import Failure
from mx_rmq.core.middleware import Middleware
from mx_rmq.core.outcome import HandlerTimeout, Retry, Snooze, suspension
from mx_rmq.core.payload import type_name
from mx_rmq.core.text import how_to_install, storable
from mx_rmq.runtime import current
from mx_rmq.runtime.held import Stopped

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context, attach, detach, get_current
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ImportError as missing:
    raise ImportError(f"mx_rmq.traces needs OpenTelemetry: {how_to_install('traces')}") from missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.trace import Span, SpanContext, TracerProvider

    from mx_rmq.core.batch import Batch
    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.middleware import Handle, HandleBatch, Produce
    from mx_rmq.core.outgoing import Outgoing

MAX_NAME: Final = 200  # maximum characters of a topic or an id that is not validated yet
MAX_LINKS: Final = 128  # of one span, which is also the SDK's default
MAX_FAILED: Final = 32  # events of one span for messages that the handler failed itself


class Traces(Middleware):
    """Creates one span per produce, and one per attempt to handle a message.

    `tracer_provider`: None uses the global one. `join`: handling belongs to the trace of the
    produce; False starts a new, linked trace for each attempt. `error_texts`: False keeps the texts
    of errors out of the spans, because a handler's errors may quote payloads.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        join: bool = True,
        error_texts: bool = True,
    ) -> None:
        self._tracer = trace.get_tracer("mx_rmq", tracer_provider=tracer_provider)
        self._join = join
        self._error_texts = error_texts

    async def produce(self, messages: Sequence[Outgoing], call_next: Produce) -> list[str]:
        """Produce in a span whose context goes into the headers of each message.

        If a message already has a context, it stays and the span is linked to it. A context that
        cannot be read is replaced.
        """
        headers = {id(one.headers): one.headers for one in messages}  # a batch shares them
        own = {key: made for key, one in headers.items() if (made := _creation(one)) is not None}
        attributes: dict[str, str | int] = {}
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        elif messages and isinstance(messages[0].id, str):
            attributes["messaging.message.id"] = storable(messages[0].id, MAX_NAME)
        span = self._tracer.start_span(
            **_named("send", {one.topic for one in messages}, attributes),
            kind=SpanKind.CLIENT if len(own) == len(headers) else SpanKind.PRODUCER,
            links=[Link(made) for made in own.values()],
        )
        token = attach(trace.set_span_in_context(span))
        try:
            sent = {
                key: one if key in own or not _are_texts(one) else _marked(one, span)
                for key, one in headers.items()
            }
            ids = await call_next([replace(one, headers=sent[id(one.headers)]) for one in messages])
        except BaseException as error:
            if isinstance(error, ProduceUnknown):
                _identify(span, error.ids)
            self._fail(span, error)
            raise
        else:
            _identify(span, ids)
            return ids
        finally:
            detach(token)
            span.end()

    async def handle_batch(self, batch: Batch, call_next: HandleBatch) -> Any:
        """Run a batch handler in one span that is linked to the produce of each message."""
        creations = {
            made.span_id: made for one in batch if (made := _creation(one.headers)) is not None
        }
        attributes: dict[str, str | int] = {"messaging.batch.message_count": len(batch)}
        if (worker := current.worker.get()) is not None:
            attributes["messaging.client.id"] = worker
        span = self._tracer.start_span(
            **_named("process", {batch.topic}, attributes),
            kind=SpanKind.CONSUMER,
            links=[Link(made) for made in islice(creations.values(), MAX_LINKS)],
        )
        token = attach(trace.set_span_in_context(span))
        try:
            return await call_next(batch)
        except BaseException as error:
            self._judge(span, error)
            raise
        finally:
            self._note_failed(span, batch)
            detach(token)
            span.end()

    def _note_failed(self, span: Span, batch: Batch) -> None:
        """Record the messages that a batch handler failed itself."""
        if not batch.failed:
            return
        span.set_attribute("messaging.mx_rmq.failed_count", len(batch.failed))
        for index, error in islice(batch.failed.items(), MAX_FAILED):
            about = {
                "messaging.message.id": batch.deliveries[index].id,
                "exception.type": storable(type_name(type(error))),
            }
            if self._error_texts:
                about["exception.message"] = Failure.of(error, at=0).text
            span.add_event("message failed", about)

    async def handle(self, delivery: Delivery, call_next: Handle) -> Any:
        """Run the handler in a span that is linked to the produce."""
        around = trace.get_current_span()
        context = propagate.extract(delivery.headers, get_current())
        creation = trace.get_current_span(context)
        links = []
        if creation is not around:  # it came from the headers
            links.append(Link(creation.get_span_context()))
            if not self._join:
                context = trace.set_span_in_context(around, context)
            elif around.get_span_context().is_valid:
                links.append(Link(around.get_span_context()))
        span = self._tracer.start_span(
            **_named("process", {delivery.topic}, _about(delivery)),
            context=context,
            kind=SpanKind.CONSUMER,
            links=links,
        )
        token = attach(trace.set_span_in_context(span, context))
        try:
            return await call_next(delivery)
        except BaseException as error:
            self._judge(span, error)
            raise
        finally:
            detach(token)
            span.end()

    def _judge(self, span: Span, error: BaseException) -> None:
        """Record how a handler ended that raised: not every exception is a failure."""
        why = current.stopped(error)
        if isinstance(error, Retry | Snooze):
            result = "retry" if isinstance(error, Retry) else "snooze"
            span.set_attribute("messaging.mx_rmq.result", result)
        elif suspension(error) is not None:
            span.set_attribute("messaging.mx_rmq.result", "suspended")
        elif why is Stopped.TIMEOUT:
            self._fail(
                span, HandlerTimeout(Stopped.TIMEOUT.value).with_traceback(error.__traceback__)
            )
        elif why is not None:
            span.set_attribute("messaging.mx_rmq.result", why.name.lower())
        else:
            self._fail(span, error)

    def _fail(self, span: Span, error: BaseException) -> None:
        """Record an error. The SDK's own way would store the text unchecked."""
        failure = Failure.of(error, at=0)
        kind = storable(type_name(type(error)))
        text = f"{kind}: {failure.text}" if self._error_texts else kind
        stack = f"Traceback (most recent call last):\n{failure.traceback}{text}"
        about = {"exception.type": kind, "exception.stacktrace": stack}
        if self._error_texts:
            about["exception.message"] = failure.text
        span.add_event("exception", about)
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, text))


def _are_texts(headers: object) -> TypeGuard[dict[str, str]]:
    """Return whether headers are valid; invalid ones are refused a moment later."""
    return isinstance(headers, dict) and all(isinstance(one, str) for one in headers.values())


def _marked(headers: dict[str, str], span: Span) -> dict[str, str]:
    """Return headers with the current context in place of any context they had."""
    context: dict[str, str] = {}
    propagate.inject(context)
    if headers.keys().isdisjoint(context):
        return {**context, **headers}
    of_span: dict[str, str] = {}
    propagate.inject(of_span, trace.set_span_in_context(span, Context()))
    return {**context, **headers, **of_span}


def _creation(headers: object) -> SpanContext | None:
    """Return the context that a message's headers already contain."""
    if not _are_texts(headers):
        return None
    context = trace.get_current_span(propagate.extract(headers, Context())).get_span_context()
    return context if headers and context.is_valid else None


def _named(operation: str, topics: set[str], attributes: dict[str, str | int]) -> dict[str, Any]:
    """Return a span's name and attributes. The topic is named if all messages share it."""
    attributes |= {
        "messaging.system": "mx_rmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if len(topics) > 1:
        return {"name": operation, "attributes": attributes}
    topic = storable(str(*topics), MAX_NAME)
    attributes["messaging.destination.name"] = topic
    return {"name": f"{operation} {topic}", "attributes": attributes}


def _about(delivery: Delivery) -> dict[str, str | int]:
    about: dict[str, str | int] = {
        "messaging.message.id": delivery.id,
        "messaging.mx_rmq.attempt": delivery.attempt,
    }
    if delivery.subscription is not None:
        about["messaging.destination.subscription.name"] = delivery.subscription
    worker = current.worker.get()
    if worker is not None:
        about["messaging.client.id"] = worker
    return about


def _identify(span: Span, ids: Sequence[str]) -> None:
    """Set the message's id, if there is only one."""
    if len(ids) == 1:
        span.set_attribute("messaging.message.id", ids[0])
