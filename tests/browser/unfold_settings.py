"""The tests' project with django-unfold's admin in the place of Django's."""

import os

from tests.settings import *  # noqa: F403

INSTALLED_APPS = ["unfold", *INSTALLED_APPS]  # noqa: F405
ALLOWED_HOSTS = ["127.0.0.1"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["UNFOLD_DATABASE"]}}
