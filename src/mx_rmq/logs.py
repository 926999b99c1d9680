"""Structured logs: one JSON object per line, with the message it is about.

No line contains a payload unless you use `FailedPayloads`, which masks named fields.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core.mask import Mask
from mx_rmq.core.middleware import Middleware
from mx_rmq.core.outcome import Retry
from mx_rmq.core.text import storable
from mx_rmq.runtime import current
from mx_rmq.runtime.held import HeldBatch, Stopped
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mx_rmq.core.batch import Batch
    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.middleware import Handle, HandleBatch

logger = get_logger(__name__)

MAX_PAYLOAD: Final = 8192  # characters of a payload in a line

_STANDARD: Final = frozenset((*vars(logging.makeLogRecord({})), "asctime", "message", "taskName"))
"""What every record has, and what a formatter adds to it."""


class JsonFormatter(logging.Formatter):
    """Formats records as JSON, one per line, in plain ASCII.

    `mask` names further fields of `extra=` to hide, in addition to those that always are.
    """

    def __init__(self, mask: Iterable[str] = ()) -> None:
        super().__init__()
        self._mask = Mask(mask)

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            "process": record.process,
            **self._about(record),
            **_span(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        extra.pop("mx_rmq", None)
        if extra:
            line["extra"] = self._mask(extra)
        return json.dumps(line).replace("\x7f", "\\u007f")

    def _about(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the message that the record is about. Any code may have set these values."""
        shown = self._mask(about(record))
        return shown if isinstance(shown, dict) else {"about": shown}


def about(record: logging.LogRecord | None = None) -> dict[str, Any]:
    """Return the message that a record, or else the running code, is about.

    `topic`, `message_id`, `attempt` and `worker`, as far as they are known; for a batch, `topic`,
    `batch_size` and `worker`.
    """
    given = getattr(record, "mx_rmq", None)
    known: dict[str, Any] = {"worker": current.worker.get()}
    held = current.message.get()
    if isinstance(given, dict):
        known.update(given)
    elif isinstance(held, HeldBatch):
        known["topic"] = held.topic.topic
        known["batch_size"] = len(held.items)
    elif held is not None:
        known["topic"] = held.topic.topic
        known["message_id"] = held.leased.id
        known["attempt"] = 1 + (held.message.attempts if held.message else 0)
    return {name: value for name, value in known.items() if value is not None}


class FailedPayloads(Middleware):
    """Logs the payload of each message whose handler fails, with named fields masked.

    It is not called for quarantined messages: fields that cannot be decoded cannot be masked.
    """

    def __init__(self, mask: Iterable[str] = ()) -> None:
        self._mask = Mask(mask)

    async def handle(self, delivery: Delivery, call_next: Handle) -> Any:
        try:
            return await call_next(delivery)
        except BaseException as error:
            if _is_failure(error):
                self._log(delivery)
            raise

    async def handle_batch(self, batch: Batch, call_next: HandleBatch) -> Any:
        raised: BaseException | None = None
        try:
            return await call_next(batch)
        except BaseException as error:
            raised = error
            raise
        finally:
            for index, why in batch.errors(raised).items():
                if _is_failure(why):
                    self._log(batch.deliveries[index])

    def _log(self, delivery: Delivery) -> None:
        shown = json.dumps(self._mask(delivery.payload), ensure_ascii=False)
        payload = storable(shown, MAX_PAYLOAD)
        logger.warning("%s %s: the payload that failed: %s", delivery.topic, delivery.id, payload)


def _is_failure(error: BaseException) -> bool:
    """Return whether this error of a handler is a failure, and not a request or an interrupt."""
    own = isinstance(error, Exception) and not isinstance(error, Retry)
    return own or current.stopped(error) is Stopped.TIMEOUT


def _message(record: logging.LogRecord) -> str:
    """Return a record's text; if its arguments do not match the format, the text without them."""
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - the text and its arguments come from any code
        return f"{record.msg!r} (its arguments do not fit: {type(error).__name__})"


def _span() -> dict[str, str]:
    """Return the ids of OpenTelemetry's current span, if there is one."""
    trace = sys.modules.get("opentelemetry.trace")  # not imported: no span can have been started
    if trace is None:
        return {}
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
