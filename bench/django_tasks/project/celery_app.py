"""The application that Celery's worker and its Django settings need."""

import os

from celery import Celery  # type: ignore[import-not-found]  # in its own environment

os.environ["DJANGO_SETTINGS_MODULE"] = "bench.django_tasks.project.settings"
app = Celery("bench")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["bench.django_tasks.project.work"])
