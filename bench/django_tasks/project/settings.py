"""The settings that each backend's own page asks for; all others keep their defaults."""

import os
from typing import Any

NAME = os.environ["TASKS_SYSTEM"]
URL = os.environ["TASKS_URL"]

SECRET_KEY = "only for measuring"  # noqa: S105
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["TASKS_RECORD"] + ".sqlite3",
    }
}
APPS = {
    "ours": ["mx_rmq.django"],
    "vtasks": ["django_vtasks"],
    "redis": ["django_tasks_redis"],
    "huey": ["huey.contrib.djhuey"],
    "rq": ["django_rq", "django_tasks", "django_tasks_rq"],
    "celery": [],
}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    *APPS[NAME],
    "bench.django_tasks.project.work",
]
BACKENDS: dict[str, dict[str, Any]] = {
    "ours": {"BACKEND": "mx_rmq.django.TaskBackend"},
    "vtasks": {
        "BACKEND": "django_vtasks.backends.valkey.ValkeyTaskBackend",
        "OPTIONS": {"BROKER_URL": URL},
    },
    "redis": {
        "BACKEND": "django_tasks_redis.RedisTaskBackend",
        "QUEUES": [],
        "OPTIONS": {"REDIS_URL": URL},
    },
    "huey": {"BACKEND": "huey.contrib.djhuey.tasks_backend.HueyBackend"},
    "rq": {"BACKEND": "django_tasks_rq.RQBackend", "QUEUES": ["default"]},
    "celery": {"BACKEND": "django_tasks_celery.CeleryBackend", "QUEUES": ["default"]},
}
TASKS = {"default": BACKENDS[NAME]}
MX_RMQ = {"url": URL}
HUEY = {"huey_class": "huey.RedisHuey", "url": URL, "immediate": False}
RQ_QUEUES = {"default": {"URL": URL}}
CELERY_BROKER_URL = CELERY_RESULT_BACKEND = URL
CELERY_RESULT_EXTENDED = True
CELERY_TASK_DEFAULT_QUEUE = "default"
