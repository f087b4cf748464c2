"""The RLOCK setting: what it takes, and what it says to what it does not take."""

from dataclasses import fields

import pytest
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_rlock import CountDownLatch, FairLock, RLock, Semaphore, rlock
from django_rlock.checks import check_settings
from django_rlock.settings import AliasSettings, get_aliases, get_settings, server_aliases


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


def test_a_process_keeps_a_hundred_connections_unless_it_is_told_another_number(settings):
    assert get_settings().max_connections == 100
    settings.RLOCK = {"default": {"MAX_CONNECTIONS": 1}}
    assert get_settings().max_connections == 1


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("CACHE", "defalt", " (did you mean 'default'?), not 'defalt'."),
        ("KEY_PREFIX", "a{b}", "without braces"),
        ("KEY_PREFIX", "a\n", "printable"),
        ("KIND", "fare", "one of 'fair', 'rlock', 'spin'"),
        ("KIND", ["fair"], "one of 'fair', 'rlock', 'spin'"),
        ("WATCHDOG_TIMEOUT", 0, "a number of seconds above 0"),
        ("WATCHDOG_TIMEOUT", "30", "a number of seconds above 0"),
        ("WATCHDOG_TIMEOUT", True, "a number of seconds above 0"),
        ("WATCHDOG_TIMEOUT", float("nan"), "a number of seconds above 0"),
        ("WATCHDOG_TIMEOUT", float("inf"), "a number of seconds above 0 (the longest is 3153600000 s, 100 years), not"),
        ("WATCHDOG_TIMEOUT", 10**400, "a number of seconds above 0 (the longest is 3153600000 s, 100 years), not"),
        ("VIEW_WAIT_TIME", 1e10, "to try once (the longest is 3153600000 s, 100 years), or None"),
        ("VIEW_WAIT_TIME", -1, "a number of seconds, 0 to try once, or None to wait forever"),
        ("VIEW_WAIT_TIME", False, "a number of seconds"),
        ("LOCKED_STATUS", 200, "one of 423, 409, 429, 503"),
        ("RECORD_CONTEXT", 1, "True or False"),
        ("SLOW_HOLD", 0, "a number of seconds above 0"),
        ("TASK_URL", "https://flower.example.com/task/", "with {id} in it"),
        ("TASK_URL", "javascript:alert('{id}')", "None or a URL"),
        ("TASK_URL", 5, "None or a URL"),
        ("CACHE", ["default"], "must be a string"),
        ("NODES", [["default"], {}], "a list of CACHES aliases"),
        ("KEY_PREFIX", {}, "must be a string"),
        ("KEY_FUNCTION", 5, "None, a function that gets a lock's name, or its dotted path"),
        ("KEY_FUNCTION", "by_tenant", "or its dotted path"),
        ("REPLICA_ACKS", ["all"], "a number of replicas, 'majority' or 'all'"),
        ("REPLICA_ACKS", {}, "a number of replicas, 'majority' or 'all'"),
        ("LOCKED_STATUS", [423], "one of 423, 409, 429, 503"),
        ("QUARANTINE", [], "a number of seconds"),
        ("MAX_CONNECTIONS", 0, "a whole number from 1"),
        ("MAX_CONNECTIONS", 1.5, "a whole number from 1"),
        ("MAX_CONNECTIONS", True, "a whole number from 1"),
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


@pytest.mark.parametrize("value", [["default"], "default", 5, {"default"}, [], "", 0, False, ()])
def test_not_a_dict(settings, value):
    settings.RLOCK = value
    with pytest.raises(ImproperlyConfigured, match="RLOCK must be a dict"):
        get_settings()


@pytest.mark.parametrize("value", [None, "default", 5, [("CACHE", "default")]])
def test_alias_is_not_a_dict(settings, value):
    assert "must be a dict of options" in refused(settings, value)


def test_options_without_an_alias_are_refused_by_every_lock(settings):
    settings.CACHES = {**settings.CACHES, "locks": settings.CACHES["default"]}
    settings.RLOCK = {"CACHE": "locks"}
    for make in (rlock, RLock, FairLock):
        with pytest.raises(ImproperlyConfigured) as caught:
            make("stock:1").acquire()
        assert "write RLOCK = {'default': {'CACHE': …}}" in str(caught.value)


@pytest.mark.parametrize("entry", [{"KIND": "fare"}, {"WATCHDOG_TIMOUT": 5}, {"CACHE": "nowhere"}, "default", None])
def test_a_lock_is_refused_while_another_alias_is_wrong(settings, entry):
    settings.RLOCK = {"default": {}, "orders": entry}
    calls = rlock("stock:1").acquire, FairLock("stock:1").acquire, Semaphore("seats").acquire, CountDownLatch("x").wait
    for call in calls:
        with pytest.raises(ImproperlyConfigured, match="orders"):
            call(wait_time=0)


@pytest.mark.parametrize("alias", [5, None, ("a", "b"), "quorum#0", "redis://:secret@host"])
def test_alias_that_is_no_name(settings, alias):
    settings.RLOCK = {alias: {}, "orders": {}}
    [misnamed] = set(get_aliases()) - {"default", "orders"}
    with pytest.raises(
        ImproperlyConfigured, match="An alias in RLOCK must be a string without '#' and '://'"
    ) as caught:
        get_settings(misnamed)
    assert "secret" not in misnamed + str(caught.value)
    assert get_settings("orders").cache == "default"
    with pytest.raises(ImproperlyConfigured, match="An alias in RLOCK must be a string"):
        rlock("stock:1", using="orders").acquire()


USING: list[object] = [
    *(["default"], {}, 5, None, True, b"default", 1.5),
    *(
        "",
        "#",
        "#0",
        "x#y",
        "x#0",
        "default#0",
        "quorum#",
        "quorum#3",
        "quorum#-1",
        "quorum#x",
        "quorum# 1",
        "quorum#00",
    ),
    *("quorum#٠", "quorum#0#0", "redis://:secret@host"),
]


@pytest.mark.parametrize("using", USING, ids=repr)
def test_using_an_alias_that_is_none(settings, using):
    settings.RLOCK = {"quorum": {"NODES": ["redis://one", "redis://two", "redis://three"]}}
    with pytest.raises(
        ImproperlyConfigured, match=r"^RLOCK has no alias .* Known aliases: default, quorum\.$"
    ) as caught:
        get_settings(using)
    assert "secret" not in str(caught.value)
    with pytest.raises(ImproperlyConfigured, match="RLOCK has no alias"):
        rlock("stock:42", using=using)


def test_nodes_have_aliases_of_their_own(settings):
    settings.RLOCK = {"quorum": {"NODES": ["redis://one", "default", "redis://three"], "KEY_PREFIX": "x:"}}
    assert server_aliases("quorum") == ["quorum#0", "quorum#1", "quorum#2"]
    nodes = [get_settings(alias) for alias in server_aliases("quorum")]
    assert [(node.alias, node.cache, node.nodes, node.key_prefix) for node in nodes] == [
        ("quorum#0", "redis://one", None, "x:"),
        ("quorum#1", "default", None, "x:"),
        ("quorum#2", "redis://three", None, "x:"),
    ]


@pytest.mark.parametrize("kind", [FairLock, RLock])
def test_unknown_alias(settings, kind):
    settings.RLOCK = {"orders": {}}
    lock = kind("stock:42", using="order")
    with pytest.raises(ImproperlyConfigured, match=r"no alias 'order' \(did you mean 'orders'\?\)\. .*default, orders"):
        lock.acquire()


@pytest.mark.parametrize("kind", [FairLock, RLock])
@pytest.mark.parametrize("backend", ["locmem.LocMemCache", "dummy.DummyCache"])
def test_cache_that_is_no_redis(settings, kind, backend):
    settings.CACHES = {
        **settings.CACHES,
        "local": {
            "BACKEND": f"django.core.cache.backends.{backend}",
            "LOCATION": settings.CACHES["default"]["LOCATION"],
        },
    }
    settings.RLOCK = {"default": {"CACHE": "local"}}
    with pytest.raises(ImproperlyConfigured, match=r"CACHES\['local'\].*backends.redis.RedisCache"):
        kind("stock:42").acquire()


# --- URLs ------------------------------------------------------------------------------------------------------------

GOOD_URLS = [
    "redis://host",
    "redis://host:6380/",
    "rediss://me:a%2Fb%40c@host:6379/15",
    "redis://[::1]:6379/0?socket_timeout=1.5",
    "redis://host?db=3&password=a@b",
    "redis:///2",
    "unix:///run/redis.sock?db=0",
    "unix://:pass@/run/redis.sock",
]
BAD_URLS = [
    "redis://:secret",
    "redis://me:secret",
    "redis://me:1/secret",
    "redis://:secret@host:port/0",
    "redis://:secret@host:70000",
    "redis://:secret@host:-1",
    "redis://:secret@host:0",
    "redis://:secret@host:6379/zero",
    "redis://:secret@host/-1",
    "redis://:secret@host/0/1",
    "redis://:secret@host?db=zero",
    "redis://host?password=secret&socket_timeout=soon",
    "redis://:se/secret@host:6379/0",
    "redis://:1/secret@host:6379/0",
    "redis://:1#secret@host:6379/0",
    "redis://:a secret@host:6379/0",
    "redis://:secret@[::1:6379/0",
    "unix://:secret@",
    "unix:///run/redis.sock?db=-1&password=secret",
]


@pytest.mark.parametrize("url", GOOD_URLS)
def test_url_that_is_well_formed(settings, url):
    settings.RLOCK = {"quorum": {"NODES": [url, "redis://two", "redis://three"]}}
    assert get_settings("quorum").nodes == (url, "redis://two", "redis://three")
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": url}}
    assert get_settings().cache == "default"


@pytest.mark.parametrize("url", BAD_URLS)
def test_malformed_url_of_a_node(settings, url):
    message = refused(settings, {"NODES": ["redis://one", url, "redis://three"]}, "quorum")
    assert "RLOCK['quorum']['NODES'] must be a list of URLs like redis://user:password@host:6379/0" in message
    assert "secret" not in message


@pytest.mark.parametrize("many", [lambda url: url, lambda url: f"{url},redis://two", lambda url: ["redis://one", url]])
@pytest.mark.parametrize("url", [*BAD_URLS, "http://:secret@host", "127.0.0.1:6379"])
@pytest.mark.parametrize("options", [{"CACHE": "locks"}, {"NODES": ["redis://one", "locks", "redis://three"]}])
def test_malformed_location(settings, url, many, options):
    settings.CACHES = {**settings.CACHES, "locks": {**settings.CACHES["default"], "LOCATION": many(url)}}
    message = refused(settings, options)
    assert message.startswith("RLOCK['default'] uses CACHES['locks'], whose LOCATION must be like redis://")
    assert "secret" not in message


@pytest.mark.parametrize(
    ("backend", "location"),
    [
        ("django_redis.cache.RedisCache", "redis://:sec,ret@one"),
        ("django.core.cache.backends.redis.RedisCache", "redis://:sec,ret@one"),
        ("django.core.cache.backends.redis.RedisCache", "redis://:sec;ret@one,redis://two"),
    ],
)
def test_password_that_a_separator_takes_apart(settings, backend, location):
    settings.CACHES = {**settings.CACHES, "locks": {"BACKEND": backend, "LOCATION": location}}
    message = refused(settings, {"CACHE": "locks"})
    assert "whose LOCATION must be like redis://" in message
    assert not any(part in message for part in ("sec,", "sec;", ":sec", "ret@"))


def test_locations_that_other_clients_take_are_left_to_them(settings):
    entries: dict[str, dict[str, object]] = {
        "memcached": {"BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache", "LOCATION": "127.0.0.1:11211"},
        "special": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "valkey://host:6379"},
        "odd": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": 5, "OPTIONS": 5},
    }
    entries["special"]["OPTIONS"] = {"CONNECTION_FACTORY": "shop.ValkeyFactory"}
    settings.CACHES = {**settings.CACHES, **entries}
    for name in entries:
        settings.RLOCK = {"default": {"CACHE": name}}
        assert get_settings().cache == name


@pytest.mark.parametrize("entry", [None, "redis://:secret@host", ["redis://:secret@host"], 5])
def test_cache_that_is_not_a_dict(settings, entry):
    settings.CACHES = {**settings.CACHES, "locks": entry}
    message = refused(settings, {"CACHE": "locks"})
    assert "uses CACHES['locks'], which must be a dict of options" in message
    assert "secret" not in message


# --- whatever it is --------------------------------------------------------------------------------------------------


def test_repr_shows_no_password(settings):
    settings.RLOCK = {"quorum": {"NODES": ["redis://me:secret@one", "redis://two?password=secret", "redis://three"]}}
    for alias in ("quorum", *server_aliases("quorum")):
        assert "secret" not in repr(get_settings(alias))
    assert "redis://***@one" in repr(get_settings("quorum#0"))
    assert "alias='quorum#0'" in repr(get_settings("quorum#0"))


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
    | st.sampled_from(["default", "memory", "all", "redis://one", "redis://two", *BAD_URLS])
    | st.frozensets(st.integers(), max_size=2)
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values, max_size=2),
    max_leaves=5,
)
OPTIONS = st.dictionaries(st.sampled_from([item.name.upper() for item in fields(AliasSettings)]), VALUES, max_size=3)
ALIASES = st.sampled_from(["default", "quorum", "orders"]) | LEAVES
ANY_RLOCK = st.dictionaries(ALIASES, OPTIONS | VALUES, max_size=3) | VALUES


def told_by_exceptions():
    try:
        aliases = get_aliases()
    except ImproperlyConfigured as error:
        return [str(error)]
    texts = []
    for alias in aliases:
        try:
            get_settings(alias)
        except ImproperlyConfigured as error:
            texts.append(str(error))
    return texts


@given(ANY_RLOCK)
def test_whatever_it_is_there_is_one_error_and_the_check_tells_it(value):
    with override_settings(RLOCK=value):
        expected = told_by_exceptions()
        told = [message.msg for message in check_settings() if message.id == "django_rlock.E001"]
    assert set(expected) <= set(told)
    assert "secret" not in str(told)


@given(VALUES, VALUES)
def test_whatever_a_cache_is(entry, location):
    usual = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}
    for cache in (entry, usual):
        with override_settings(
            CACHES={**django_settings.CACHES, "locks": cache}, RLOCK={"default": {"CACHE": "locks"}}
        ):
            assert "secret" not in str(told_by_exceptions())


def test_settings_may_change_in_tests(settings, redis_client):
    for prefix in ("a:", "b:"):
        settings.RLOCK = {"default": {"KEY_PREFIX": prefix}}
        with RLock("stock:42"):
            assert redis_client.keys() == [f"{prefix}stock:42"]
