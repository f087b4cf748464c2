"""System checks: what ``get_settings`` refuses, found before the first request. No check asks the network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured

from django_rlock.settings import get_aliases, get_settings

HINT = "See RLOCK in the documentation of django-rlock: docs/settings.md#rlock"


def check_settings(**_: Any) -> list[CheckMessage]:
    """E001: the RLOCK setting, or one of its aliases, is wrong. The text is the one of the exception."""
    return [Error(text, hint=HINT, id="django_rlock.E001") for text in _refusals()]


def _refusals() -> Iterator[str]:
    try:
        aliases = get_aliases()
    except ImproperlyConfigured as error:
        yield str(error)
        return
    for alias in aliases:
        try:
            get_settings(alias)
        except ImproperlyConfigured as error:
            yield str(error)
