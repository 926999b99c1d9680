"""A Django application with an outbox, and what must be true of it.

`python -m tests.outbox.django_shop ENGINE NAME PORT QUEUE`: its own process, because Django is
configured once per process.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import django
from django.conf import settings
from psycopg import IsolationLevel

ENGINE, NAME, PORT, QUEUE = sys.argv[1:]

DATABASE = {
    "ENGINE": f"django.db.backends.{ENGINE}",
    "NAME": NAME,
    "USER": "mx",
    "HOST": "127.0.0.1",
    "PORT": PORT,
}
STRICT = {**DATABASE, "OPTIONS": {"isolation_level": IsolationLevel.SERIALIZABLE}}

settings.configure(
    INSTALLED_APPS=["mx_rmq.outbox.django"],
    DATABASES={"default": DATABASE, "strict": STRICT},
    USE_TZ=True,
)
django.setup()

from django.core.management import call_command  # noqa: E402 - after the setup
from django.db import connection, connections, transaction  # noqa: E402

from mx_rmq import Delivery, InvalidInput, MessageQueue, Worker  # noqa: E402
from mx_rmq.outbox import django as outbox  # noqa: E402
from mx_rmq.outbox import outbox_relay  # noqa: E402
from mx_rmq.outbox.django.database import DjangoConnection  # noqa: E402
from mx_rmq.outbox.django.models import InboxMessage, OutboxMessage  # noqa: E402

handled: list[int] = []
done: list[int] = []


def is_refused(delivery: Delivery) -> bool:
    try:
        with delivery.once(using="default"):
            return False
    except InvalidInput:
        return True


def handle(payload: int, delivery: Delivery) -> None:
    """A plain handler, which fails once after its commit."""
    handled.append(payload)
    connection.set_autocommit(False)
    assert is_refused(delivery)  # nothing would be committed at the end of the block
    connection.set_autocommit(True)
    with delivery.once(using="default"):
        assert is_refused(delivery)  # a block inside its own block
        done.append(payload)
        outbox.produce("mail", payload)
    connection.close()
    if delivery.attempt == 1:
        raise ValueError("after the commit")


def check_tables() -> None:
    call_command("migrate", verbosity=0)
    call_command("makemigrations", check=True, verbosity=0)


def check_produce() -> list[str]:
    try:
        with transaction.atomic():
            outbox.produce("order", 0)
            raise KeyError
    except KeyError:
        assert not OutboxMessage.objects.exists()
    try:
        outbox.produce("no topic", 0)
    except InvalidInput:
        assert not OutboxMessage.objects.exists()
    with transaction.atomic():
        ids = [outbox.produce("order", number, headers={"a": "ü%"}) for number in (1, 2)]
    assert [*OutboxMessage.objects.values_list("message_id", flat=True)] == ids
    return ids


def check_isolation() -> None:
    """A relay has its own, whatever the application has."""
    relay = DjangoConnection("strict")
    assert relay.execute("SHOW transaction_isolation", {}) == [
        {"transaction_isolation": "read committed"}
    ]
    relay.close()
    assert "isolation_level" in connections["strict"].settings_dict["OPTIONS"]


def in_thread(function: Any, *arguments: Any) -> Any:
    """Call what Django does not allow in an event loop."""

    def call() -> Any:
        try:
            return function(*arguments)
        finally:
            connection.close()

    return asyncio.to_thread(call)


async def check_relay(ids: list[str]) -> None:
    if ENGINE == "postgresql":
        outbox_relay.POLL = 3600  # type: ignore[misc]  # it must be woken
    mq = MessageQueue(QUEUE)
    mq.handler("order", retry=0.01)(handle)
    async with mq:
        async with outbox.relay(mq) as relay:
            await mq.produce("mail", 0)
            while await in_thread(OutboxMessage.objects.exists):  # noqa: ASYNC110 - not announced
                await asyncio.sleep(0.01)
            assert (await mq.admin.get("order", ids[0])) is not None
            while ENGINE == "postgresql" and relay._listening is None:  # noqa: ASYNC110 - not announced
                await asyncio.sleep(0.01)
            await Worker(mq).drain(delayed=True)
            await in_thread(outbox.produce, "mail", 3)
            while (await mq.admin.stats("mail")).pending < 4:  # noqa: ASYNC110 - not announced
                await asyncio.sleep(0.01)
        assert sorted(handled) == [1, 1, 2, 2]
        assert sorted(done) == [1, 2]
    assert await in_thread(InboxMessage.objects.count) == 2


check_tables()
if ENGINE == "postgresql":
    check_isolation()
produced = check_produce()
connection.close()
asyncio.run(check_relay(produced))
assert "sqlalchemy" not in sys.modules
