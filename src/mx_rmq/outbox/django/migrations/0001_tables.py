"""Both tables."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Made by makemigrations."""

    initial = True

    dependencies: ClassVar[list[Any]] = []

    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="InboxMessage",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "topic",
                        "message_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("topic", models.CharField(max_length=200)),
                ("message_id", models.CharField(db_column="id", max_length=128)),
                ("fence", models.BigIntegerField()),
                ("done_at", models.FloatField(db_index=True)),
            ],
            options={
                "db_table": "mx_rmq_inbox",
            },
        ),
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("seq", models.BigAutoField(primary_key=True, serialize=False)),
                ("message_id", models.CharField(db_column="id", max_length=128)),
                ("topic", models.CharField(max_length=128)),
                ("payload", models.TextField()),
                ("options", models.TextField()),
                ("created_at", models.FloatField()),
                ("error", models.TextField(null=True)),
            ],
            options={
                "db_table": "mx_rmq_outbox",
                "indexes": [
                    models.Index(
                        models.F("seq"),
                        condition=models.Q(("error__isnull", False)),
                        name="mx_rmq_outbox_parked",
                    )
                ],
            },
        ),
    ]
