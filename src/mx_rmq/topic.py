"""Topic: a topic with the type of its payload and its result, for producers and handlers alike.

A type checker compares both sides. At run time, a payload is checked by the decoder of the handler
before it is sent.
"""

from __future__ import annotations

import sys
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from mx_rmq.core.codec import encode_payload
from mx_rmq.core.errors import InvalidInput, PayloadTooLarge
from mx_rmq.core.names import check_topic
from mx_rmq.core.outgoing import check_each, payload_list
from mx_rmq.core.payload import decoder, type_name, unreadable
from mx_rmq.core.sse import HEARTBEAT
from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence

    from mx_rmq.core.batch import Batch
    from mx_rmq.core.delivery import Delivery
    from mx_rmq.core.durations import Seconds
    from mx_rmq.core.handler import HandlerOptions, MessageOptions
    from mx_rmq.core.outgoing import ProduceOptions
    from mx_rmq.core.status import Status
    from mx_rmq.router import Router
    from mx_rmq.sync import SyncQueue

logger = get_logger(__name__)

P = TypeVar("P")  # the payload
R = TypeVar("R")  # the result
Q = ParamSpec("Q")  # what a handler takes besides the payload


class Topic(Generic[P, R]):
    """A topic whose payload and result have types. Made by `mq.topic` or `router.topic`."""

    def __init__(self, router: Router, name: str, payload_type: Any, result_type: Any) -> None:
        self.name = check_topic(name)
        self.payload_type = payload_type
        self.result_type = result_type
        self._router = router
        self._decode = decoder(payload_type, f"topic {name!r}")
        decoder(result_type, f"the result of topic {name!r}")  # raises if it cannot be decoded

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    @overload
    def handler(
        self, function: None = None, /, **options: Unpack[MessageOptions]
    ) -> HandlerDecorator[P, R]: ...

    @overload
    def handler(
        self,
        function: None = None,
        /,
        *,
        batch: int,
        linger: Seconds | None = None,
        **options: Unpack[MessageOptions],
    ) -> BatchHandlerDecorator[P, R]: ...

    def handler(self, function: None = None, /, **options: Unpack[HandlerOptions]) -> Any:
        """Declare a function as the handler. Same options as `mq.handler`.

        Its payload comes first, or second after the Delivery. With `batch`, a list of payloads
        comes first, or second after the Batch.
        """
        if function is not None:
            raise InvalidInput("the handler of a topic needs parentheses: @orders.handler()")
        if self.result_type is not Any and options.get("result_ttl") is None:
            logger.warning(
                "topic %s has a result type, but its handler keeps no results: give it result_ttl",
                self.name,
            )
        return self._router._decorator(
            self.name,
            options,
            sys._getframe(1).f_locals,
            payload_type=self.payload_type,
            result_type=self.result_type,
        )

    async def produce(
        self,
        payload: P,
        *,
        id: str | None = None,
        key: str | None = None,
        **options: Unpack[ProduceOptions],
    ) -> str:
        """Produce a message and return its id. Same options as `mq.produce`."""
        self.check(payload)
        return await self._router._queue.produce(self.name, payload, id=id, key=key, **options)

    async def produce_many(
        self,
        payloads: Iterable[P],
        *,
        ids: Sequence[str] | None = None,
        keys: Sequence[str | None] | None = None,
        **options: Unpack[ProduceOptions],
    ) -> list[str]:
        """Produce many messages and return their ids. Same options as `mq.produce_many`."""
        payloads = payload_list(payloads)
        check_each(map(self.check, payloads))
        return await self._router._queue.produce_many(
            self.name, payloads, ids=ids, keys=keys, **options
        )

    async def result(
        self,
        id: str,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - it raises ResultTimeout
    ) -> R:
        """Wait until a message has completed; return its result. See `mq.result`."""
        found: R = await self._router._queue.result(
            self.name, id, timeout=timeout, type=self.result_type
        )
        return found

    async def status(self, id: str) -> Status | None:
        """Return where a message is; None: nothing is known of it."""
        return await self._router._queue.status(self.name, id)

    def watch(self, id: str) -> AsyncGenerator[Status, None]:
        """Yield where a message is, now and after every change, until it has ended."""
        return self._router._queue.watch(self.name, id)

    def sse(self, id: str, *, heartbeat: Seconds = HEARTBEAT) -> AsyncGenerator[bytes, None]:
        """Yield what `watch` yields as server-sent events. See `mq.sse`."""
        return self._router._queue.sse(self.name, id, heartbeat=heartbeat)

    def check(self, payload: P) -> None:
        """Raise InvalidInput if a handler could not decode this payload."""
        try:
            data = encode_payload(payload, self._router._queue.settings.max_payload)
        except PayloadTooLarge:
            raise
        except InvalidInput as error:
            shown = type_name(self.payload_type)
            raise InvalidInput(
                f"topic {self.name!r}: payload does not fit {shown}: {error}"
            ) from error
        try:
            self._decode(data)
        except Exception as error:  # the type's own code may raise anything
            reason = unreadable(error, self.payload_type, data).reason
            raise InvalidInput(f"topic {self.name!r}: {reason}") from error

    @property
    def sync(self) -> SyncTopic[P, R]:
        """The same topic for code without an event loop."""
        return SyncTopic(self)


class SyncTopic(Generic[P, R]):
    """Calls a Topic from synchronous code, by `mq.sync`."""

    def __init__(self, topic: Topic[P, R]) -> None:
        self._topic = topic
        self._name = topic.name

    @property
    def _queue(self) -> SyncQueue:
        return self._topic._router._queue.sync

    def produce(
        self,
        payload: P,
        *,
        id: str | None = None,
        key: str | None = None,
        **options: Unpack[ProduceOptions],
    ) -> str:
        """Produce a message and return its id. Same options as `mq.produce`."""
        self._topic.check(payload)
        return self._queue.produce(self._name, payload, id=id, key=key, **options)

    def produce_many(
        self,
        payloads: Iterable[P],
        *,
        ids: Sequence[str] | None = None,
        keys: Sequence[str | None] | None = None,
        **options: Unpack[ProduceOptions],
    ) -> list[str]:
        """Produce many messages and return their ids. Same options as `mq.produce_many`."""
        payloads = payload_list(payloads)
        check_each(map(self._topic.check, payloads))
        return self._queue.produce_many(self._name, payloads, ids=ids, keys=keys, **options)

    def result(self, id: str, *, timeout: Seconds | None = None) -> R:
        """Wait until a message has completed; return its result. See `mq.result`."""
        kind = self._topic.result_type
        found: R = self._queue.result(self._name, id, timeout=timeout, type=kind)
        return found

    def status(self, id: str) -> Status | None:
        """Return where a message is; None: nothing is known of it."""
        return self._queue.status(self._name, id)

    def watch(self, id: str) -> Iterator[Status]:
        """Yield where a message is, now and after every change, until it has ended."""
        return self._queue.watch(self._name, id)

    def sse(self, id: str, *, heartbeat: Seconds = HEARTBEAT) -> Iterator[bytes]:
        """Yield what `watch` yields as server-sent events. See `mq.sse`."""
        return self._queue.sse(self._name, id, heartbeat=heartbeat)


class HandlerDecorator(Protocol[P, R]):
    """Takes a handler of a topic, and returns it unchanged.

    A handler is async or plain. It takes the payload first, or second after the Delivery, and
    returns the result.
    """

    @overload
    def __call__(
        self, function: Callable[Concatenate[P, Q], Coroutine[Any, Any, R]], /
    ) -> Callable[Concatenate[P, Q], Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # only if a result is a coroutine
        self, function: Callable[Concatenate[Delivery, P, Q], Coroutine[Any, Any, R]], /
    ) -> Callable[Concatenate[Delivery, P, Q], Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[P, Q], R], /
    ) -> Callable[Concatenate[P, Q], R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Delivery, P, Q], R], /
    ) -> Callable[Concatenate[Delivery, P, Q], R]: ...


class BatchHandlerDecorator(Protocol[P, R]):
    """Takes a batch handler of a topic, and returns it unchanged.

    It takes a list of payloads, and returns None or a list of results.
    """

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[list[P], Q], Coroutine[Any, Any, Sequence[R] | None]],
        /,
    ) -> Callable[Concatenate[list[P], Q], Coroutine[Any, Any, Sequence[R] | None]]: ...

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[Batch, list[P], Q], Coroutine[Any, Any, Sequence[R] | None]],
        /,
    ) -> Callable[Concatenate[Batch, list[P], Q], Coroutine[Any, Any, Sequence[R] | None]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[P], Q], Sequence[R] | None], /
    ) -> Callable[Concatenate[list[P], Q], Sequence[R] | None]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Batch, list[P], Q], Sequence[R] | None], /
    ) -> Callable[Concatenate[Batch, list[P], Q], Sequence[R] | None]: ...
