"""TLS and passwords on one server, behind sentinels and in a cluster: what is refused, and what the entry may say."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from redis.sentinel import SentinelManagedSSLConnection

from django_rlock import LockUnavailableError, RLock
from django_rlock.checks import check_settings
from tests.topologies.documented import entry
from tests.topologies.servers import Topology

_numbers = count(1000)


@pytest.fixture(params=["tls", "sentinel-tls", "cluster-tls"])
def topology(request, started):
    return started(request.param)


def changed(topology: Topology, **options: Any) -> Topology:
    """With other options, and another URL: django-redis keeps one pool for each, whatever the options."""
    location = f"{topology.location}?health_check_interval={next(_numbers)}"
    return replace(topology, location=location, options={**topology.options, **options})


def without_authority(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "ssl_ca_certs"}


async def test_strangers_certificate_is_refused(binding, topology, use):
    use(changed(topology, CONNECTION_POOL_KWARGS=without_authority(topology.options["CONNECTION_POOL_KWARGS"])))
    with pytest.raises(LockUnavailableError, match="certificate"):
        await binding.acquire(RLock("stock:42"), wait_time=0)


async def test_sentinel_with_a_strangers_certificate_is_not_believed(binding, started, use):
    topology = started("sentinel-tls")
    use(changed(topology, SENTINEL_KWARGS=without_authority(topology.options["SENTINEL_KWARGS"])))
    with pytest.raises(LockUnavailableError):
        await binding.acquire(RLock("stock:42"), wait_time=0)


async def test_wrong_password_is_refused_with_advice(binding, topology, use):
    use(changed(topology, PASSWORD="wrong"))
    with pytest.raises(LockUnavailableError, match="check the credentials"):
        await binding.acquire(RLock("stock:42"), wait_time=20)


async def test_no_certificate_is_asked_for_where_the_entry_says_so(binding, topology, use):
    kwargs = {**without_authority(topology.options["CONNECTION_POOL_KWARGS"]), "ssl_cert_reqs": "none"}
    use(changed(topology, CONNECTION_POOL_KWARGS=kwargs))
    async with binding.inside(RLock("stock:42")):
        pass


async def test_sentinels_with_a_class_of_connections(binding, started, use):
    """Which says as much as ``"ssl": True``, whatever the scheme."""
    topology = started("sentinel-tls")
    kwargs = {**topology.options["CONNECTION_POOL_KWARGS"], "connection_class": SentinelManagedSSLConnection}
    use(changed(replace(topology, location=f"rediss://{topology.service}/0"), CONNECTION_POOL_KWARGS=kwargs))
    assert check_settings() == []
    async with binding.inside(RLock("stock:42")):
        pass


async def test_no_password_is_shown_where_no_sentinel_replies(binding, use):
    """redis-py names the sentinels in its error, with all that it connects by."""
    passwords = {"password": "hidden", "ssl_password": "hidden", "ssl_keyfile": "key.pem", "ssl": True}
    options = entry("sentinel-tls")["OPTIONS"] | {"SENTINELS": [("127.0.0.1", 1)], "SENTINEL_KWARGS": passwords}
    use(Topology("sentinel-tls", "redis://nowhere/0", None, [], options))
    with pytest.raises(LockUnavailableError) as refused:
        await binding.acquire(RLock("stock:42"), wait_time=0)
    assert "hidden" not in str(refused.value)
