"""Settings. The database is where libpq's variables point to: PGHOST, PGPORT, PGUSER, and so on."""

import os

import django

SECRET_KEY = os.environ.get("SECRET_KEY", "only for trying out")
DEBUG = os.environ.get("DEBUG", "1") == "1"  # off in production
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "mx_rmq.django",
    "orders",
    "mail",
]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("PGDATABASE", "shop"),
        "CONN_MAX_AGE": 60,
    }
}

MX_RMQ = {"url": os.environ.get("MX_RMQ_URL", "embedded://./mx-rmq-data")}

TASKS = {
    "default": {
        "BACKEND": "mx_rmq.django.TaskBackend",
        "OPTIONS": {"max_attempts": 5, "retry": [1, 10, 60]},
    }
}
