"""A project that fails its system checks."""

from tests.settings import *  # noqa: F403

TEMPLATES: list[dict] = []
