"""The project's URLconf."""

from django.conf import settings
from django.urls import get_resolver


def import_views() -> None:
    """Import the modules of all views, for checks that look at what these have defined."""
    if getattr(settings, "ROOT_URLCONF", None):
        _ = get_resolver().url_patterns
