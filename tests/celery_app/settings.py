"""The settings of tests.settings, with the locks on the servers that the environment names."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import CACHES as _CACHES

_DEFAULT = _CACHES["default"]

CACHES = {
    "default": {**_DEFAULT, "LOCATION": os.environ["RLOCK_TEST_LOCKS"]},
    "fragile": {**_DEFAULT, "LOCATION": os.environ["RLOCK_TEST_FRAGILE"]},
}
RLOCK = {
    "default": {"CACHE": "default"},
    "short": {"CACHE": "default", "WATCHDOG_TIMEOUT": 3},  # how long a killed process holds its locks
    "fragile": {"CACHE": "fragile"},
}
