"""RedLock and its settings refuse bad input in words that say what to do."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_rlock import FairLock, rlock
from django_rlock.checks import check_settings
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.redlock import RedLock
from django_rlock.settings import get_settings
from tests.redlock.conftest import NODE_TIMEOUT, holders

URLS = ["redis://one", "redis://two", "redis://three"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"NODES": []}, "at least two independent servers"),
        ({"NODES": URLS[:1]}, "for one, use CACHE"),
        ({"NODES": [*URLS, URLS[0]]}, "one that is named twice would vote twice"),
        ({"NODES": "redis://one"}, "a list of CACHES aliases"),
        ({"NODES": [*URLS, 5]}, "a list of CACHES aliases"),
        ({"NODES": [*URLS, "http://three"]}, "URLs begin with one of redis://"),
        ({"NODES": [*URLS, "defualt"]}, "did you mean 'default'"),
        ({"NODES": URLS, "CACHE": "default"}, "both 'NODES' and 'CACHE'"),
        ({"NODES": URLS, "KIND": "fair"}, "both 'NODES' and 'KIND'"),
        ({"NODES": URLS, "WATCHDOG_TIMEOUT": 0.9}, "at least 20 times NODE_TIMEOUT"),
        ({"NODES": URLS, "NODE_TIMEOUT": 2}, "at least 20 times NODE_TIMEOUT"),
        ({"NODES": URLS, "QUARANTINE": 10}, "must not be less than WATCHDOG_TIMEOUT"),
        ({"NODES": URLS, "CLOCK_DRIFT": 1}, "less than 1"),
        ({"NODES": URLS, "QUARANTINE": True}, "a number of seconds"),
    ],
)
def test_settings(options, text, settings):
    settings.RLOCK = {"quorum": options}
    with pytest.raises(ImproperlyConfigured, match=text) as refused:
        get_settings("quorum")
    assert str(refused.value) in [message.msg for message in check_settings()]


def test_passwords_are_not_told(settings):
    settings.RLOCK = {"quorum": {"NODES": ["redis://me:secret@one"]}}
    with pytest.raises(ImproperlyConfigured) as refused:
        get_settings("quorum")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "ids"),
    [
        (URLS, []),
        (URLS[:2], ["django_rlock.W001", "django_rlock.W002"]),
        ([*URLS, "redis://four"], ["django_rlock.W001"]),
    ],
)
def test_warnings(nodes, ids, settings):
    settings.RLOCK = {"default": {}, "quorum": {"NODES": nodes}}
    assert [message.id for message in check_settings()] == ids


def test_check_of_a_cache_that_is_not_django_redis(settings):
    settings.CACHES = {**settings.CACHES, "local": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    settings.RLOCK = {"quorum": {"NODES": [*URLS, "local", "redis://five"]}}
    [message] = check_settings()
    assert message.id == "django_rlock.E001"
    assert "'local'" in message.msg


@pytest.mark.parametrize("kind", ["fair", "rlock", "spin", "fenced", "read", "write"])
def test_another_kind_on_nodes(kind, nodes):
    with pytest.raises(ImproperlyConfigured, match="only RedLock works"):
        rlock("x", using="quorum", kind=kind)


async def test_another_class_on_nodes(binding, nodes):
    with pytest.raises(ImproperlyConfigured, match="only RedLock works"):
        await binding.acquire(FairLock("x", using="quorum"), wait_time=0)
    assert not any(holders(nodes))
    assert HOLDS.snapshot() == []


async def test_redlock_on_one_server(binding, redis_client):
    with pytest.raises(ImproperlyConfigured, match="RedLock needs several"):
        await binding.acquire(RedLock("x"), wait_time=0)
    assert redis_client.keys() == []


@pytest.mark.parametrize(("lease", "text"), [(19.9, "at least 20 s, 20 times"), (61.0, "at most 60 s")])
async def test_leases(lease, text, binding, nodes, settings):
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "QUARANTINE": 60}}
    lock = RedLock("x", using="quorum")
    with pytest.raises(ValueError, match=text):
        await binding.acquire(lock, lease_time=lease)
    assert not any(holders(nodes))


async def test_extend_checks_the_lease_too(binding, nodes, settings):
    lock = RedLock("x", using="quorum")
    async with binding.inside(lock):
        with pytest.raises(ValueError, match="at least 20 s"):
            await binding.call(lock, "extend", 19.9)
        assert not lock.lost
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "QUARANTINE": 60}}
    with pytest.raises(ValueError, match="at most 60 s"):
        lock._kind.check_lease(lock, 61.0)


async def test_a_chosen_owner_acquires_nothing(binding, nodes):
    with pytest.raises(ValueError, match="takes no owner="):
        await binding.acquire(RedLock("x", using="quorum", owner="me"), wait_time=0)
    assert not any(holders(nodes))


@pytest.mark.lengthy
async def test_one_server_under_two_names(binding, nodes, settings):
    """An address may lead to the same server as another; its run id shows that."""
    path = nodes[0].url
    twins = [path, path.replace("?db=0", "?db=1"), nodes[1].url]
    settings.RLOCK = {"quorum": {"NODES": twins, "QUARANTINE": 0, "NODE_TIMEOUT": NODE_TIMEOUT}}
    nodes[1].pause()  # so that both names are needed
    try:
        with pytest.raises(ImproperlyConfigured, match="one and the same server"):
            await binding.acquire(RedLock("x", using="quorum"), wait_time=0)
    finally:
        nodes[1].resume()
    await binding.until(lambda: not any(holders(nodes)))
