"""A framework that runs these commands as its own, with its own settings: `manage.py mx_rmq …`."""

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
    """Makes a queue from url, prefix and patience; None: what the framework's settings say."""
    command: Sequence[str]
    """Starts one of these commands in another process."""
    modules: Sequence[str]
    """Whose code `worker --reload` watches."""
    hint: str
    """Where it looks for handlers, for the error that there are none."""


def host() -> Host | None:
    """Return the framework that runs the current command; None: it is `mx-rmq`."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.find_root().obj
    return found if isinstance(found, Host) else None


def queue_of(**given: Any) -> MessageQueue:
    """Return a queue from url, prefix and patience (None: not given) and the settings."""
    from mx_rmq.queue import MessageQueue

    one = host()
    return MessageQueue(**given) if one is None else one.queue(**given)


def settings_of(**given: Any) -> QueueSettings:
    """Return the settings of that queue."""
    one = host()
    return QueueSettings.load(**given) if one is None else one.queue(**given).settings
