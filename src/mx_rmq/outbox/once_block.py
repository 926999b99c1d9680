"""`delivery.once` for SQLAlchemy: a transaction that also records the message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from mx_rmq.core.errors import InvalidInput
from mx_rmq.outbox.connections import begin, is_async, session_of
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
        self._transaction: object = None

    def __enter__(self) -> Self:
        self._check(is_async=False)
        record = record_of(self._delivery)
        try:
            self._record(self._session, record)
        except BaseException:
            self._delivery._once = False
            self._session.rollback()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._delivery._once = False
        if kind is not None or self._has_ended(self._session):
            self._session.rollback()
            self._refuse_if_ended(kind)
            return
        self._session.commit()
        self._delivery._once = True

    async def __aenter__(self) -> Self:
        self._check(is_async=True)
        record = record_of(self._delivery)
        try:
            await self._session.run_sync(self._record, record)
        except BaseException:
            self._delivery._once = False
            await self._session.rollback()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._delivery._once = False
        if kind is not None or await self._session.run_sync(self._has_ended):
            await self._session.rollback()
            self._refuse_if_ended(kind)
            return
        await self._session.commit()
        self._delivery._once = True

    def _record(self, session: Any, record: dict[str, Any]) -> None:
        self._transaction = begin(session)
        if not self._outbox.run(session, "record", record):
            del record["fence"]
            raise already_done(self._delivery, self._outbox.run(session, "fence", record))

    def _has_ended(self, session: Any) -> bool:
        return session.get_transaction() is not self._transaction

    def _refuse_if_ended(self, kind: type[BaseException] | None) -> None:
        if kind is None:
            raise InvalidInput(
                f"message {self._delivery.id}: the transaction ended inside the block of `once`, "
                "which commits at its end: call neither commit nor rollback in it"
            )

    def _check(self, *, is_async: bool) -> None:
        if self._is_async is not is_async:
            word, kind = ("async with", "async") if self._is_async else ("with", "sync")
            raise InvalidInput(f"this session is {kind}: write `{word} delivery.once(session):`")
