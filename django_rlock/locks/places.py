"""Which aliases share their locks: those with the same database and prefix, whatever their other options are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from django_rlock._core.process import owned_table
from django_rlock._core.redis_py import database_at, primary_database
from django_rlock.settings import get_aliases, get_settings, is_url


def _place_of(alias: str) -> str:
    try:
        options = get_settings(alias)
    except ImproperlyConfigured:  # which each use of the lock reports
        return alias
    databases = [database_of(options.cache)] if options.nodes is None else ["nodes", *map(database_of, options.nodes)]
    return " ".join([options.key_prefix, *sorted(databases)])


def database_of(name: str) -> str:
    """The database of an entry of CACHES, or at a URL: equal for two names of one database, as far as they show."""
    if is_url(name):
        return database_at(name) or name
    entry: Any = django_settings.CACHES.get(name)
    found = primary_database(entry) if isinstance(entry, Mapping) else None
    return f"CACHES {name}" if found is None else found


PLACES = owned_table("settings", _place_of, lambda _place: None)
"""The place of each alias in the current settings. Locks with the same place and name are one lock, as far as settings
can tell: two addresses of one server are two places. There, a lock that an owner holds is taken for the owner, too,
because each attempt has its own owner id.
"""


def first_alias(using: str) -> str:
    """The first alias at the same place: the same one in all processes with the same aliases."""
    place = PLACES.value[using]
    return min((each for each in get_aliases() if PLACES.value[each] == place), default=using)
