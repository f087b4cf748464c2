"""The settings of the project that servers serve: the suite's Redis, long and short leases, and the middleware."""

import os

SECRET_KEY = "not a secret"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "tests.servers.project"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_rlock"]
MIDDLEWARE = ["django_rlock.middleware.LockMiddleware"]
CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["RLOCK_TEST_URL"]}}
RLOCK = {
    # No test waits for the end of a lease: what is free was given back.
    "default": {"WATCHDOG_TIMEOUT": 600.0},
    "short": {"CACHE": "default", "WATCHDOG_TIMEOUT": 6.0},
}
