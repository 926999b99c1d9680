"""mx_rmq.outbox: messages that are produced if, and only if, a database transaction commits.

    from mx_rmq import outbox

    outbox.produce(session, "order.created", order)     # in your transaction
    outbox.relay(mq, engine)                            # in a worker: sends what is committed

For SQLAlchemy. `mx_rmq.outbox.django` is the same for Django, and needs no SQLAlchemy.
"""

import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from mx_rmq.outbox.outbox import Outbox, metadata, once, produce, relay
    from mx_rmq.outbox.outbox_relay import OutboxRelay
    from mx_rmq.outbox.parked import OutboxCounts, ParkedRow

__all__ = [
    "Outbox",
    "OutboxCounts",
    "OutboxRelay",
    "ParkedRow",
    "metadata",
    "once",
    "produce",
    "relay",
]

if not _typing.TYPE_CHECKING:  # a type checker would then accept any name
    _MODULES = {"OutboxCounts": "parked", "OutboxRelay": "outbox_relay", "ParkedRow": "parked"}

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: what Django needs works without SQLAlchemy."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(_import_module(f"{__name__}.{_MODULES.get(name, 'outbox')}"), name)
        globals()[name] = found
        return found
