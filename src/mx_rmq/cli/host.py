"""A framework that runs our commands as its own, with its own settings: `manage.py mx_rmq …`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from mx_rmq.settings import QueueSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mx_rmq.queue import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the framework decides. Passed to `main` as `obj`."""

    queue: Callable[..., MessageQueue]
    """Makes a queue from the framework's settings; url, prefix and patience override them."""
    command: Sequence[str]
    """How another process starts one of our commands."""
    modules: Sequence[str]
    """The modules whose code `worker --reload` watches."""
    hint: str
    """Where handlers belong; shown if there are none."""


def host() -> Host | None:
    """Return the framework that runs the current command; None: it is `mx-rmq` itself."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.find_root().obj
    return found if isinstance(found, Host) else None


def queue_of(**given: Any) -> MessageQueue:
    """Return a queue from the settings; url, prefix and patience override them unless None."""
    from mx_rmq.queue import MessageQueue

    one = host()
    return MessageQueue(**given) if one is None else one.queue(**given)


def settings_of(**given: Any) -> QueueSettings:
    """Return the settings of the queue that `queue_of` would return."""
    one = host()
    return QueueSettings.load(**given) if one is None else one.queue(**given).settings
