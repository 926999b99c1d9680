"""`delivery.once` for SQLAlchemy: a transaction that also records the message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from mx_rmq.core.errors import InvalidInput
from mx_rmq.outbox.connections import is_async, session_of
from mx_rmq.outbox.inbox import already_done, record_of

if TYPE_CHECKING:
    from mx_rmq.core.delivery import Delivery
    from mx_rmq.outbox.outbox import Outbox


class Once:
    """The block of `delivery.once`. It commits at its end, or rolls back."""

    def __init__(self, delivery: Delivery, session: Any, outbox: Outbox) -> None:
        self._delivery = delivery
        self._session = session_of(session)
        self._outbox = outbox
        self._is_async = is_async(self._session)

    def __enter__(self) -> Self:
        self._check(is_async=False)
        try:
            self._record(self._session)
        except BaseException:
            self._session.rollback()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._session.rollback()
            return
        self._session.commit()
        self._delivery._once = True

    async def __aenter__(self) -> Self:
        self._check(is_async=True)
        try:
            await self._session.run_sync(self._record)
        except BaseException:
            await self._session.rollback()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            await self._session.rollback()
            return
        await self._session.commit()
        self._delivery._once = True

    def _record(self, session: Any) -> None:
        record = record_of(self._delivery)
        if not self._outbox.run(session, "record", record):
            del record["fence"]
            raise already_done(self._delivery, self._outbox.run(session, "fence", record))

    def _check(self, *, is_async: bool) -> None:
        if self._is_async is not is_async:
            word, kind = ("async with", "async") if self._is_async else ("with", "sync")
            raise InvalidInput(f"this session is {kind}: write `{word} delivery.once(session):`")
