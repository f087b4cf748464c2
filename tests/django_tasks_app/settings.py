"""The settings of tests.settings, with a database and a server that the environment names."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["RLOCK_TEST_DATABASE"],
        "OPTIONS": {"timeout": 60},  # type: ignore[dict-item] # seconds: each worker locks the file
    }
}
INSTALLED_APPS = [*_APPS, "django_tasks_db"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
