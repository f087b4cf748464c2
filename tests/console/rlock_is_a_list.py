"""A project whose RLOCK is no dict."""

from tests.settings import *  # noqa: F403

RLOCK = ["redis://:secret@host"]
