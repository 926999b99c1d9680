"""The app of the outbox."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxApp(AppConfig):
    """Has the tables of outbox and inbox, and their migrations."""

    name = "mx_rmq.outbox.django"
    label = "mx_rmq_outbox"
    verbose_name = "mx-rmq outbox"
    default_auto_field = "django.db.models.BigAutoField"
