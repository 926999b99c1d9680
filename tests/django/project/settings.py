"""Settings of the project. The environment names the database file and the server."""

import os

import django

SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
USE_TZ = True
ROOT_URLCONF = "tests.django.project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "mx_rmq.django",
    "tests.django.project.shop",
]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
NAME = os.environ.get("SHOP_DATABASE", ":memory:")
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": NAME},
    "archive": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{NAME}-archive"},
}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
LOGIN_URL = "/sign-in/"
MX_RMQ = {"url": os.environ.get("SHOP_REDIS", "redis://127.0.0.1:1/0")}
TASKS = {
    "default": {
        "BACKEND": "mx_rmq.django.TaskBackend",
        "QUEUES": ["default", "slow"],
        "OPTIONS": {"retry": [0.1], "max_attempts": 3},
    },
    "once": {"BACKEND": "mx_rmq.django.TaskBackend", "OPTIONS": {"max_attempts": 1}},
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {"django_tasks": {"level": "CRITICAL"}, "django.tasks": {"level": "CRITICAL"}},
}
