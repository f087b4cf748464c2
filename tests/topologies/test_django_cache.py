"""Django's own Redis backend, and what an entry of it may say. The other tests here run over it as well."""

import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured

from django_rlock import FairLock, RedLock, RLock
from django_rlock._transport.servers import clients_of
from django_rlock.checks import check_settings
from tests.eventually import PATIENCE
from tests.topologies import djangos
from tests.topologies.servers import djangos_encrypted

PATH = "tests.topologies.djangos"
KEY = "rlock:stock:42"


@pytest.fixture
def topology(started):
    topology = started("django")
    yield topology
    topology.redis.flushall()


async def taken(binding: Any, client: Any) -> None:
    """A lock is where a client looks, through both what locks and what lists them."""
    async with binding.inside(FairLock("stock:42")):
        assert client.exists(KEY)
        assert (await binding.call(FairLock("stock:42"), "info")).holder
    assert not client.exists(KEY)


# --- what is locked --------------------------------------------------------------------------------------------------


async def test_nodes(binding, own_server, settings):
    nodes = [own_server(None) for _ in range(3)]
    entry = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": nodes[0].url}
    settings.CACHES = {**settings.CACHES, "first": entry}
    names = ["first", *(node.url for node in nodes[1:])]
    settings.RLOCK = {"default": {"NODES": names, "NODE_TIMEOUT": 1, "QUARANTINE": 0}}
    with ExitStack() as stack:
        clients = [stack.enter_context(node.client()) for node in nodes]
        async with binding.inside(RedLock("stock:42")):
            await binding.until(lambda: all(client.exists(KEY) for client in clients))
        assert check_settings() == []


async def test_both_backends_at_once(binding, topology, settings, redis_client):
    settings.CACHES = {**settings.CACHES, "locks": topology.cache}
    settings.RLOCK = {"default": {}, "djangos": {"CACHE": "locks"}}
    async with binding.inside(RLock("stock:42", using="djangos")):
        async with binding.inside(RLock("stock:42")):
            assert (redis_client.exists(KEY), topology.redis.exists(KEY)) == (1, 1)
        assert (redis_client.exists(KEY), topology.redis.exists(KEY)) == (0, 1)
        assert not await binding.call(RLock("stock:42"), "locked")
        assert await binding.call(RLock("stock:42", using="djangos"), "locked")


# --- LOCATION --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [",".join, ";".join, list, tuple, lambda urls: urls[0]])
async def test_locks_are_on_the_first_server_of_several(binding, topology, use, written):
    primary, other = topology.servers
    use(replace(topology, location=written([primary.url, other.url])))
    with other.client() as elsewhere:
        async with binding.inside(RLock("stock:42")):
            assert topology.redis.exists(KEY)
            assert elsewhere.dbsize() == 0


async def test_unix_socket(binding, settings, own_server):
    server = own_server(None)
    assert server.url.startswith("unix://")
    settings.CACHES = {"default": {"BACKEND": f"{PATH}.Subclass", "LOCATION": server.url}}
    with server.client() as client:
        await taken(binding, client)


async def test_tls(binding, use):
    with djangos_encrypted() as topology:
        use(topology)
        await taken(binding, topology.redis)


# --- OPTIONS ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"pool_class": "redis.BlockingConnectionPool", "timeout": 1},
        {"parser_class": "redis._parsers._RESP2Parser"},
        {"parser_class": "redis._parsers._RESP3Parser", "protocol": 3},
        {"protocol": 3},
        {"max_connections": 1},
        {"decode_responses": True, "serializer": "django.core.cache.backends.redis.RedisSerializer"},
        {"socket_keepalive": True, "health_check_interval": 30, "retry_on_timeout": True},
    ],
    ids=str,
)
async def test_options_keep_their_meaning(binding, topology, use, options):
    use(replace(topology, options={**topology.options, **options}))
    assert check_settings() == []
    await taken(binding, topology.redis)


async def test_the_database_and_the_clients_name(binding, own_server, settings):
    server = own_server(None, port=0)
    location, options = server.url.removesuffix("/0"), {"db": 5, "client_name": "shop"}
    settings.CACHES = {"default": {"BACKEND": f"{PATH}.Subclass", "LOCATION": location, "OPTIONS": options}}
    with redis.Redis(port=server.port, db=5, decode_responses=True) as client, server.client() as other_database:
        await taken(binding, client)
        assert {each["db"] for each in client.client_list() if each["name"] == "shop"} == {"5"}
        assert other_database.dbsize() == 0


async def test_a_cache_that_is_out_of_connections_stops_no_lock(binding, topology, use):
    use(replace(topology, options={**topology.options, "max_connections": 1}, backend=f"{PATH}.Sharing"))
    cache: Any = caches["default"]
    pool = cache._cache.get_client(write=True).connection_pool
    before = dict(pool.connection_kwargs)
    taken_by_the_cache = pool.get_connection()
    try:
        await taken(binding, topology.redis)
        assert clients_of("default", within=0.5)
        assert pool.connection_kwargs == before  # the time limits of locks are not the cache's
    finally:
        pool.release(taken_by_the_cache)
        djangos.SharingClient.pools.clear()
        pool.disconnect()


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"BACKEND": f"{PATH}.Sharding"}, "ShardingClient: it spreads keys over servers"),
        ({"BACKEND": f"{PATH}.Databases"}, "DatabasesClient: it spreads keys over servers"),
        ({"BACKEND": f"{PATH}.Cluster"}, "a cluster or a server behind sentinels: there locks need django-redis"),
        ({"BACKEND": f"{PATH}.Sentinels"}, "a cluster or a server behind sentinels: there locks need django-redis"),
        ({"OPTIONS": {"pool_class": "redis.Nothing"}}, "from which no client can be made"),
        ({"OPTIONS": {"pool_class": "redis.sentinel.SentinelConnectionPool"}}, "service_name"),
        ({"OPTIONS": {"SOCKET_TIMEOUT": 5}}, "SOCKET_TIMEOUT"),
        ({"LOCATION": []}, "from which no client can be made"),
        ({"LOCATION": "redis://:sec,ret@one;redis://two"}, r"LOCATION must be like redis://.*, not 'redis://\*\*\*@"),
        ({"LOCATION": "redis://:sec;ret@one"}, "LOCATION must be like redis://"),
        ({"LOCATION": ["redis://:se/cret@one"]}, "LOCATION must be like redis://"),
        ({"LOCATION": "redis://:sec;ret@one", "BACKEND": f"{PATH}.Subclass"}, "LOCATION must be like redis://"),
        ({"LOCATION": "127.0.0.1:6379"}, "LOCATION must be like redis://"),
    ],
    ids=str,
)
def test_unsupported_options_are_refused_with_the_reason(settings, changes, reason):
    entry = {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": ["redis://:secret@one", "redis://two:6380"],
        "OPTIONS": {"password": "secret"},
    }
    settings.CACHES = {"default": {**entry, **changes}}
    with pytest.raises(ImproperlyConfigured, match=reason) as refused:
        RLock("stock:42").acquire(blocking=False)
    assert [message.msg for message in check_settings()] == [str(refused.value)]
    assert not any(part in str(refused.value) for part in ("sec,", "sec;", "se/c", "ret@", "secret"))


# --- without django-redis --------------------------------------------------------------------------------------------

_PROJECT = """
import asyncio, sys
sys.modules["django_redis"] = None
import django
from django.conf import settings
entry = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": sys.argv[1]}
settings.configure(
    CACHES={"default": entry},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    RLOCK={"default": {}, "quorum": {"NODES": sys.argv[1:], "QUARANTINE": 0}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_rlock"],
)
django.setup()
from django.core.management import call_command
from django_rlock import Semaphore, rlock

async def alock():
    async with rlock("stock:43"):
        pass

asyncio.run(alock())
with rlock("stock:42"), rlock("stock:44", using="quorum"):
    call_command("rlock_list", "--scan")
call_command("check")
call_command("rlock_doctor", "--using", "default")
assert not [name for name in sys.modules if name.startswith("django_redis.")]
"""


def test_django_redis_need_not_be_there(own_server):
    urls = [own_server(None).url for _ in range(2)]
    command = [sys.executable, "-W", "error", "-c", _PROJECT, *urls]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    assert "stock:42" in ran.stdout
