"""mx-rmq in a Django project: put "mx_rmq.django" into INSTALLED_APPS. See docs/django.md.

Names are imported when they are first used: Django imports this module before settings and apps
are ready.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from mx_rmq.core.text import how_to_install as _how_to_install

try:
    import django as _django
except ImportError as _missing:
    raise ImportError(f"mx_rmq.django needs Django: {_how_to_install('django')}") from _missing

if TYPE_CHECKING:
    from mx_rmq.django.on_commit import produce_on_commit
    from mx_rmq.django.queue import DjangoQueue
    from mx_rmq.django.task_backend import TaskBackend

    mq: DjangoQueue

__all__ = ["DjangoQueue", "TaskBackend", "mq", "produce_on_commit"]

del _django

if not TYPE_CHECKING:  # a type checker would then accept any name
    _MODULES = {
        "DjangoQueue": "queue",
        "TaskBackend": "task_backend",
        "produce_on_commit": "on_commit",
    }

    def __getattr__(name: str) -> object:
        if name == "mq":
            return _import_module("mx_rmq.django.project_queue").shared_queue()
        if name in _MODULES:
            return getattr(_import_module(f"mx_rmq.django.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
