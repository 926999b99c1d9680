"""Waiters: the callers of `mq.result`, `mq.status` and `mq.watch`.

All waiters of a queue share one subscription. A waiter first subscribes to its partition's channel,
then reads once; concurrent reads share a call. From then on the server tells it what ends: a short
result comes with that notice, anything else is read. If one is lost, the topic's counts show within
two seconds that something has ended, and all its waiters read again. They also do so every half
minute, in case something has broken the counts.
"""

from mx_rmq.waiters.server_sent_events import server_sent_events
from mx_rmq.waiters.waiters import Waiters

__all__ = ["Waiters", "server_sent_events"]
