"""The settings of tests.settings, with the locks on the server that the environment names."""

from tests.campaign.plan import PLAN, WATCHDOG_TIMEOUT
from tests.settings import *  # noqa: F403
from tests.settings import CACHES as _CACHES

CACHES = {"default": {**_CACHES["default"], "LOCATION": PLAN["locks"]}}
RLOCK = {"default": {"CACHE": "default", "WATCHDOG_TIMEOUT": WATCHDOG_TIMEOUT}}
