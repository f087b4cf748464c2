"""A project that fails its system checks: the admin has no templates."""

from tests.settings import *  # noqa: F403
from tests.settings import TEMPLATES

TEMPLATES.clear()
