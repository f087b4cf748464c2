"""A project whose cache has an invalid URL."""

from tests.settings import *  # noqa: F403
from tests.settings import CACHES

CACHES["default"] = {**CACHES["default"], "LOCATION": "redis://:secret@host:port/0"}
