"""Options of connections that redis-py takes from an entry of CACHES, and on which it or a socket would fail later."""

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_rlock import RLock
from django_rlock._transport.servers import get_client
from django_rlock.checks import check_deployment, check_settings

DJANGO_REDIS = "django_redis.cache.RedisCache"
DJANGOS = "django.core.cache.backends.redis.RedisCache"
SENTINEL = {"CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory"}
WRONG_LIMITS: list[Any] = ["5", 0, -1, float("nan"), float("inf"), True, 1e300, [5]]
REFUSED: list[tuple[str, Any]] = [
    *[(name, value) for name in ("socket_timeout", "socket_connect_timeout") for value in WRONG_LIMITS],
    *[("port", port) for port in ("x", 0, 65536, 6379.5, None)],
    ("host", 5),
]


def entry(backend: str, location: str = "redis://one", **options: Any) -> dict[str, Any]:
    return {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}


async def refused(binding: Any, settings: Any, cache: dict[str, Any]) -> str:
    """The text of the error, which is the same everywhere."""
    settings.CACHES = {**settings.CACHES, "locks": cache}
    settings.RLOCK = {"default": {"CACHE": "locks"}}
    with pytest.raises(ImproperlyConfigured) as told:
        await binding.acquire(RLock("stock:42"), blocking=False)
    assert [message.msg for message in check_settings()] == [str(told.value)]
    assert check_deployment() == []
    with pytest.raises(ImproperlyConfigured) as told_again:
        get_client("default")
    assert str(told_again.value) == str(told.value)
    return str(told.value)


@pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGOS])
@pytest.mark.parametrize(("name", "value"), REFUSED)
async def test_options_of_an_entry(binding, settings, backend, name, value):
    given = {"CONNECTION_POOL_KWARGS": {name: value}} if backend == DJANGO_REDIS else {name: value}
    # The URL's own host would be taken before the option.
    location = "redis:///0" if name in ("host", "port") else "redis://one"
    text = await refused(binding, settings, entry(backend, location, **given))
    assert f"its {name} must be " in text
    assert f"not {value!r}" in text


@pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGOS])
@pytest.mark.parametrize("query", ["socket_timeout=nan", "socket_connect_timeout=-1"])
async def test_options_in_a_url(binding, settings, backend, query):
    text = await refused(binding, settings, entry(backend, f"redis://one?{query}"))
    assert f"its {query.split('=')[0]} must be " in text


@pytest.mark.parametrize("sentinel", [("one", "x"), ("one", 0), (5, 26379)])
async def test_addresses_of_sentinels(binding, settings, sentinel):
    options = {**SENTINEL, "SENTINELS": [("one", 26379), sentinel]}
    text = await refused(binding, settings, entry(DJANGO_REDIS, "redis://mymaster/0", **options))
    assert "a sentinel's " in text


async def test_limits_of_sentinels(binding, settings):
    options = {**SENTINEL, "SENTINELS": [("one", 26379)], "SENTINEL_KWARGS": {"socket_timeout": "5"}}
    text = await refused(binding, settings, entry(DJANGO_REDIS, "redis://mymaster/0", **options))
    assert "a sentinel's socket_timeout must be " in text


@pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGOS])
async def test_connections_that_open_no_socket(binding, settings, backend):
    """As fakeredis's documentation shows for Django's cache."""
    fakeredis = pytest.importorskip("fakeredis")
    given = {"connection_class": fakeredis.FakeConnection}
    options = {"CONNECTION_POOL_KWARGS": given} if backend == DJANGO_REDIS else given
    assert "override_locks()" in await refused(binding, settings, entry(backend, **options))


async def test_client_that_spreads_keys(binding, settings):
    options = {"CLIENT_CLASS": "django_redis.client.ShardClient"}
    text = await refused(
        binding, settings, {**entry(DJANGO_REDIS, **options), "LOCATION": ["redis://one", "redis://two"]}
    )
    assert "whose client is ShardClient: it spreads keys over servers that know nothing of each other" in text
    assert "NODES for RedLock" in text


def test_what_redis_py_takes_as_a_number_stays(settings):
    options = {"socket_timeout": 5, "socket_connect_timeout": None, "port": "6380"}
    settings.CACHES = {**settings.CACHES, "locks": entry(DJANGOS, "redis:///0", **options)}
    settings.RLOCK = {"default": {"CACHE": "locks"}}
    assert check_settings() == []
