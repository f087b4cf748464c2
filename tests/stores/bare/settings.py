"""A project that sets no CACHES, as a new one: its cache is Django's LocMemCache. BARE_LOCKS names other places."""

import os

SECRET_KEY = "not a secret"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("BARE_DATABASE", ":memory:")}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_rlock", "tests.stores.bare"]
match os.environ.get("BARE_LOCKS"):
    case "dummy":
        CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    case "memory":
        RLOCK: dict[str, object] = {"default": {"STORE": "memory"}}
    case "embedded":
        RLOCK = {"default": {"STORE": "embedded", "FOLDER": os.environ["BARE_FOLDER"], "IDLE_TIME": 0.5}}
    case "redis":  # that is not there
        CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}
