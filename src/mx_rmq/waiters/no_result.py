"""Why `mq.result` has no result, as far as it can be known: for its callers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.core.errors import ResultUnknown
from mx_rmq.core.partition import partitions, subscription_of

if TYPE_CHECKING:
    from mx_rmq.store import Store


async def why_unknown(store: Store, topic: str, id: str, *, seen: bool) -> ResultUnknown:
    """Return the error of a message that is not there. `seen`: it was live just now."""
    if not seen and not await store.views.partitions(topic):
        return ResultUnknown(
            f"topic {topic!r} is not known: nothing was produced to it, and no worker serves it"
        )
    if names := await store.subscriptions(topic) if subscription_of(topic) is None else ():
        return ResultUnknown(
            f"topic {topic!r} has subscriptions, and each of their copies has its own result: ask "
            f"for that of {f'{topic}@{min(names)}'!r}"
        )
    ttl = await store.views.result_ttl(topic)
    gone = "" if ttl is None else f"its result is gone: they are kept for {ttl / 1000:g} s"
    if seen:
        why = "it was cancelled, discarded, or completed by a handler without `result_ttl`"
        why += gone and f"; or {gone}"
        return ResultUnknown(
            f"message {id!r:.80} of topic {topic!r} has ended without a result: {why}"
        )
    why = (
        f"it was never produced, or ended without a result, or {gone}"
        if gone
        else "it was never produced, or it has ended: the topic keeps no results (see `result_ttl`)"
    )
    return ResultUnknown(f"nothing is known of message {id!r:.80} of topic {topic!r}: {why}")


def was_away(store: Store, topic: str, since: float) -> bool:
    """Return whether a server that has the topic did not answer for a while."""
    parts = partitions(topic, store.partitions.get(topic) or 1)
    sites = {store.caller.servers.site_of(store.keys.topics), *map(store.site_of, parts)}
    links = map(store.link_of, sites)
    return any(link.is_failing or link.back_at >= since for link in links)
