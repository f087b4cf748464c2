"""A project whose holders learn of a lost lock within a third of a second."""

from tests.settings import *  # noqa: F403

RLOCK = {"default": {"WATCHDOG_TIMEOUT": 3}}
