"""The RLOCK setting: what it takes, and what it says to what it does not take."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_rlock import FairLock, RLock
from django_rlock.settings import get_aliases, get_settings


def refused(settings, options, alias="default"):
    settings.RLOCK = {alias: options}
    with pytest.raises(ImproperlyConfigured) as caught:
        get_settings(alias)
    return str(caught.value)


def test_without_the_setting_there_is_one_alias(settings):
    settings.RLOCK = None
    found = get_settings()
    assert (found.alias, found.cache, found.key_prefix, found.kind) == ("default", "default", "rlock:", "fair")
    assert (found.watchdog_timeout, found.claim_time, found.waiter_alive_time) == (30.0, 5.0, 10.0)
    assert (found.view_wait_time, found.locked_status, found.record_context, found.slow_hold) == (3.0, 423, True, 10.0)
    assert get_aliases() == ["default"]


def test_options_are_taken(settings):
    settings.RLOCK = {
        "orders": {"KIND": "rlock", "KEY_PREFIX": "", "WATCHDOG_TIMEOUT": 5, "VIEW_WAIT_TIME": None, "CLAIM_TIME": 4}
    }
    found = get_settings("orders")
    assert (found.kind, found.key_prefix, found.watchdog_timeout, found.view_wait_time) == ("rlock", "", 5.0, None)
    assert get_aliases() == ["default", "orders"]


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("CACHE", "defalt", " (did you mean 'default'?), not 'defalt'."),
        ("CACHE", 5, "must be a string"),
        ("CACHE", None, "must be a string"),
        ("KEY_PREFIX", "a{b}", "without braces"),
        ("KEY_PREFIX", "a\n", "printable"),
        ("KEY_PREFIX", b"a", "must be a string"),
        ("KIND", "fare", "one of 'fair', 'rlock', 'spin'"),
        ("KIND", ["fair"], "one of 'fair', 'rlock', 'spin'"),
        ("WATCHDOG_TIMEOUT", 0, "a number of seconds above 0"),
        ("WATCHDOG_TIMEOUT", -1, "a number of seconds above 0"),
        ("WATCHDOG_TIMEOUT", "30", "a number of seconds above 0"),
        ("WATCHDOG_TIMEOUT", True, "a number of seconds above 0"),
        ("WATCHDOG_TIMEOUT", float("nan"), "a number of seconds above 0"),
        ("WATCHDOG_TIMEOUT", float("inf"), "a number of seconds above 0"),
        ("WATCHDOG_TIMEOUT", 10**400, "a number of seconds above 0"),
        ("WATCHDOG_TIMEOUT", None, "a number of seconds above 0"),
        ("VIEW_WAIT_TIME", -1, "a number of seconds"),
        ("VIEW_WAIT_TIME", False, "a number of seconds"),
        ("VIEW_WAIT_TIME", "3", "a number of seconds"),
        ("LOCKED_STATUS", 200, "one of 423, 409, 429, 503"),
        ("LOCKED_STATUS", "423", "one of 423, 409, 429, 503"),
        ("RECORD_CONTEXT", 1, "True or False"),
        ("SLOW_HOLD", 0, "a number of seconds above 0"),
        ("CLAIM_TIME", 11, "CLAIM_TIME"),
        ("CLAIM_TIME", 3, "CLAIM_TIME"),
        ("WAITER_ALIVE_TIME", 20, "CLAIM_TIME"),
        ("WATCHDOG_TIMOUT", 30, "unknown option 'WATCHDOG_TIMOUT' (did you mean 'WATCHDOG_TIMEOUT'?). Known"),
        ("cache", "default", "unknown option"),
        (5, "default", "unknown option"),
    ],
)
def test_bad_option(settings, option, value, expected):
    message = refused(settings, {option: value})
    assert expected in message
    assert "RLOCK['default']" in message


@pytest.mark.parametrize("value", [["default"], "default", 5, {"default"}])
def test_not_a_dict(settings, value):
    settings.RLOCK = value
    with pytest.raises(ImproperlyConfigured, match="RLOCK must be a dict"):
        get_settings()


@pytest.mark.parametrize("value", [None, "default", 5, [("CACHE", "default")]])
def test_alias_is_not_a_dict(settings, value):
    assert "must be a dict of options" in refused(settings, value)


def test_alias_that_is_not_a_string(settings):
    settings.RLOCK = {5: {}, "orders": {}}
    with pytest.raises(ImproperlyConfigured):
        get_aliases()


@pytest.mark.parametrize("kind", [FairLock, RLock])
def test_unknown_alias(settings, kind):
    settings.RLOCK = {"orders": {}}
    lock = kind("stock:42", using="order")
    with pytest.raises(ImproperlyConfigured, match=r"no alias 'order' \(did you mean 'orders'\?\)\. .*default, orders"):
        lock.acquire()


@pytest.mark.parametrize("kind", [FairLock, RLock])
@pytest.mark.parametrize("backend", ["locmem.LocMemCache", "dummy.DummyCache", "redis.RedisCache"])
def test_cache_that_is_not_django_redis(settings, kind, backend):
    settings.CACHES = {
        **settings.CACHES,
        "local": {
            "BACKEND": f"django.core.cache.backends.{backend}",
            "LOCATION": settings.CACHES["default"]["LOCATION"],
        },
    }
    settings.RLOCK = {"default": {"CACHE": "local"}}
    with pytest.raises(ImproperlyConfigured, match=r"CACHES\['local'\].*django_redis.cache.RedisCache"):
        kind("stock:42").acquire()


def test_settings_may_change_in_tests(settings, redis_client):
    for prefix in ("a:", "b:"):
        settings.RLOCK = {"default": {"KEY_PREFIX": prefix}}
        with RLock("stock:42"):
            assert redis_client.keys() == [f"{prefix}stock:42"]
