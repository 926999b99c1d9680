"""The tables of outbox and inbox. docs/outbox.md shows them in SQL.

Django reserves the name `id` for primary keys, so the column `id` is the field `message_id`.
"""

from __future__ import annotations

from django.db import models


class OutboxMessage(models.Model):
    """A message that waits to be sent. `produce` writes it, a relay sends and deletes it."""

    seq: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    message_id: models.CharField[str, str] = models.CharField(max_length=128, db_column="id")
    topic: models.CharField[str, str] = models.CharField(max_length=128)
    payload: models.TextField[str, str] = models.TextField()
    options: models.TextField[str, str] = models.TextField()
    created_at: models.FloatField[float, float] = models.FloatField()
    error: models.TextField[str | None, str | None] = models.TextField(null=True)
    """Why it cannot be sent. Set it to None to let the relay try again."""

    class Meta:
        db_table = "mx_rmq_outbox"
        indexes = (
            models.Index(
                "seq", name="mx_rmq_outbox_parked", condition=models.Q(error__isnull=False)
            ),
        )

    def __str__(self) -> str:
        return f"{self.topic} {self.message_id}"


class InboxMessage(models.Model):
    """A message whose work is committed. `delivery.once` writes it, a relay cleans up."""

    pk = models.CompositePrimaryKey("topic", "message_id")
    topic: models.CharField[str, str] = models.CharField(max_length=200)
    message_id: models.CharField[str, str] = models.CharField(max_length=128, db_column="id")
    fence: models.BigIntegerField[int, int] = models.BigIntegerField()
    done_at: models.FloatField[float, float] = models.FloatField(db_index=True)

    class Meta:
        db_table = "mx_rmq_inbox"

    def __str__(self) -> str:
        return f"{self.topic} {self.message_id}"
