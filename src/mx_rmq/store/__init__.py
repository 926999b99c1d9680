"""Everything that speaks to the server. Nothing else imports redis or knows a key."""

from mx_rmq.store.store import Store

__all__ = ["Store"]
