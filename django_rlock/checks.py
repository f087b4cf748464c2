"""System checks: what the first lock would refuse, found before the first request. No check asks the network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured

from django_rlock.connections import get_client
from django_rlock.settings import get_aliases, get_settings, server_aliases

HINT = "See RLOCK in the documentation of django-rlock: docs/settings.md#rlock"


def check_settings(**_: Any) -> list[CheckMessage]:
    """What is wrong with RLOCK.

    E001: the setting, an alias of it or its cache; the text is the one of the exception. W001: an even number of NODES.
    W002: fewer than three.
    """
    errors: list[CheckMessage] = [Error(text, hint=HINT, id="django_rlock.E001") for text in _refusals()]
    return errors or list(_doubts())


def _refusals() -> Iterator[str]:
    try:
        aliases = get_aliases()
    except ImproperlyConfigured as error:
        yield str(error)
        return
    for alias in aliases:
        try:
            for server in server_aliases(alias):
                get_client(server)  # makes an object, no connection
        except ImproperlyConfigured as error:
            yield str(error)


def _doubts() -> Iterator[CheckMessage]:
    for alias in get_aliases():
        nodes = len(get_settings(alias).nodes or ())
        if nodes and nodes % 2 == 0:
            text = f"RLOCK[{alias!r}]['NODES'] are {nodes}, which may fail no more often than {nodes - 1} would."
            yield CheckWarning(text, hint=f"Use an odd number of nodes. {HINT}", id="django_rlock.W001")
        if 0 < nodes < 3:
            text = f"RLOCK[{alias!r}]['NODES'] are {nodes}: when one of them fails, no lock can be taken."
            yield CheckWarning(text, hint=f"Use three or five independent nodes. {HINT}", id="django_rlock.W002")
