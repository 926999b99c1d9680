"""What the shop keeps in its database."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100)
    state = models.CharField(max_length=20, default="new")
