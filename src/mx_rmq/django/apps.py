"""What happens when Django starts: the handlers of all apps are declared."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules

from mx_rmq.django.task_topics import declare_configured


class MxRmqConfig(AppConfig):
    """Imports `handlers.py` of every installed app, and declares the topics of TASKS."""

    name = "mx_rmq.django"
    label = "mx_rmq"
    verbose_name = "mx-rmq"

    def ready(self) -> None:
        declare_configured()
        autodiscover_modules("handlers")
