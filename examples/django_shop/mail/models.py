"""The mail that was sent, which stands for a mail server here."""

from django.db import models


class Mail(models.Model):
    to = models.EmailField()
    text = models.TextField()
