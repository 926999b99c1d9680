"""What the shop sells."""

from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100)
    email = models.EmailField()
    state = models.CharField(max_length=20, default="placed")

    def __str__(self) -> str:
        return f"order {self.pk}: {self.item}"
