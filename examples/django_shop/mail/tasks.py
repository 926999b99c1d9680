"""Tasks of Django's own framework. The backend is mx-rmq, so any worker runs them."""

from typing import TYPE_CHECKING

import django

from mail.models import Mail

if TYPE_CHECKING or django.VERSION < (6, 0):
    from django_tasks import TaskContext, task
else:
    from django.tasks import TaskContext, task


class MailServerAway(Exception):
    """The mail server did not answer."""


@task(takes_context=True)
def send_receipt(context: TaskContext, to: str, text: str) -> int:
    """Send a mail; return its number. `flaky@…` fails the first time, to show a retry."""
    if to.startswith("flaky") and context.attempt == 1:
        raise MailServerAway(to)
    return int(Mail.objects.create(to=to, text=text).pk)
