"""Keys, scripts and the calls that run them. No other package knows a key."""

from mx_rmq.store.store import Store

__all__ = ["Store"]
