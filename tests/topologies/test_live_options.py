"""Options that the cache honours, so locks do: a project's own pools, passwords that change, and one for nobody."""

import gc
from typing import Any

import pytest
import redis

from django_rlock import FairLock, RLock
from django_rlock._transport.servers import get_client, source
from tests.bindings import BlockingBinding as Binding
from tests.conftest import OwnServer
from tests.topologies import pools
from tests.topologies.servers import command

DJANGO_REDIS = "django_redis.cache.RedisCache"
DJANGOS = "django.core.cache.backends.redis.RedisCache"
POOLS = [pools.AsItMakes, pools.AsItGives, pools.AsItBlocks, pools.AsItIsTold]


def entry(backend: str, url: str, pool: type[Any]) -> dict[str, Any]:
    path = f"{pool.__module__}.{pool.__qualname__}"
    options = {"CONNECTION_POOL_CLASS": path} if backend == DJANGO_REDIS else {"pool_class": path}
    return {"BACKEND": backend, "LOCATION": url, "OPTIONS": options}


@pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGOS])
@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.__name__)
async def test_a_pool_that_renews_its_password(
    binding: Binding,
    own_server: OwnServer,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    pool: type[Any],
) -> None:
    monkeypatch.setitem(pools.TOKEN, "now", "first")
    server = own_server(None, port=0, args=["--requirepass", "first"])
    settings.CACHES = {"default": entry(backend, server.url, pool)}
    with server.client(password="first") as client:
        for password in ("first", "second"):
            client.config_set("requirepass", password)
            client.client_kill_filter(_type="normal")
            pools.renew(password)
            async with binding.inside(FairLock("stock:42")):
                assert client.exists("rlock:stock:42")


def test_links_leave_nothing_in_the_books_of_a_pool(
    own_server: OwnServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pools.TOKEN, "now", "first")
    server = own_server(None, port=0, args=["--requirepass", "first"])
    settings.CACHES = {"default": entry(DJANGO_REDIS, server.url, pools.AsItBlocks)}
    for _ in range(3):
        source("default").connect().close()
    assert source("default").pool._connections == []
    gc.collect()
    found = [each for each in gc.get_objects() if issubclass(type(each), redis.Connection)]
    assert [each for each in found if each.port == server.port and getattr(each, "_sock", None)] == []


@pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGOS])
@pytest.mark.parametrize("login", [":unneeded@", "default:unneeded@"])
async def test_a_password_for_a_server_that_wants_none(
    binding: Binding, own_server: OwnServer, settings: Any, backend: str, login: str
) -> None:
    server = own_server(None, port=0)
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": server.url.replace("://", f"://{login}")}}
    async with binding.inside(RLock("stock:42")):
        assert get_client("default").exists("rlock:stock:42")
    command(server, "CONFIG SET", "requirepass", "wanted")
    with server.client(password="wanted") as client:
        client.client_kill_filter(_type="normal")
    with pytest.raises(Exception, match="invalid username-password pair"):
        await binding.acquire(RLock("stock:42"), blocking=False)
