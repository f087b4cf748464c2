"""System checks: what the first lock would refuse, found before the first request. No check asks the network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured

from django_rlock.connections import get_client
from django_rlock.settings import get_aliases

HINT = "See RLOCK in the documentation of django-rlock: docs/settings.md#rlock"


def check_settings(**_: Any) -> list[CheckMessage]:
    """E001: the RLOCK setting, an alias of it or its cache is wrong. The text is the one of the exception."""
    return [Error(text, hint=HINT, id="django_rlock.E001") for text in _refusals()]


def _refusals() -> Iterator[str]:
    try:
        aliases = get_aliases()
    except ImproperlyConfigured as error:
        yield str(error)
        return
    for alias in aliases:
        try:
            get_client(alias)  # makes an object, no connection
        except ImproperlyConfigured as error:
            yield str(error)
