import os

SECRET_KEY = "not a secret"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("BARE_DATABASE", ":memory:")}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_rlock", "tests.stores.bare"]
if backend := os.environ.get("BARE_BACKEND"):
    CACHES = {"default": {"BACKEND": backend}}
