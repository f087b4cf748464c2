"""The tests' project under a theme of the admin, which the environment names."""

import os

from tests.settings import *  # noqa: F403

THEME = os.environ["ADMIN_THEME"]
INSTALLED_APPS = [THEME, *(["colorfield"] if THEME == "admin_interface" else []), *INSTALLED_APPS]  # noqa: F405
ROOT_URLCONF = "tests.browser.theme_urls"
ALLOWED_HOSTS = ["127.0.0.1"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["ADMIN_THEME_DATABASE"]}}
X_FRAME_OPTIONS = "SAMEORIGIN"  # admin_interface wants it
SILENCED_SYSTEM_CHECKS = ["security.W019"]
