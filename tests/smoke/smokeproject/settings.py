"""Its settings; SMOKE_SERVERS has the URLs of three servers."""

import os

SECRET_KEY = "not a secret"
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "smokeproject.urls"
STATIC_URL = "static/"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

SERVERS = os.environ.get("SMOKE_SERVERS", "redis://127.0.0.1:6379/0").split()
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": SERVERS[0],
        "OPTIONS": {"SOCKET_TIMEOUT": 4, "SOCKET_CONNECT_TIMEOUT": 1},
    }
}
RLOCK = {"default": {"CACHE": "default", "VIEW_WAIT_TIME": 0}, "quorum": {"NODES": SERVERS, "QUARANTINE": 0}}
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3", "ATOMIC_REQUESTS": True}}

CELERY_BROKER_URL = SERVERS[0].replace("/0", "/1")
CELERY_RESULT_BACKEND = SERVERS[0].replace("/0", "/2")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_rlock",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_rlock.middleware.LockMiddleware",
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
