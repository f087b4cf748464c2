"""Locks in the test process, as projects use them in their tests."""

import asyncio

import pytest
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.test import SimpleTestCase, override_settings

from django_rlock import FairLock, FencedLock, RedLock, RLock, Semaphore, rlock
from django_rlock import _memory as memory
from django_rlock.locks.holds import HOLDS
from django_rlock.settings import get_settings
from django_rlock.testing import assert_locked, assert_not_locked, hold, override_locks
from tests.beside import beside, visit
from tests.forking import in_child
from tests.forms import long

pytest.importorskip("fakeredis", reason="lupa, which fakeredis needs, has no wheels for this Python")
NOWHERE = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}


def test_no_redis_is_needed(settings, redis_client):
    settings.CACHES = NOWHERE
    with override_locks(), RLock("stock:42", wait_time=5) as lock:
        assert lock.owned()
        assert not redis_client.keys("*")


def test_in_async_code(settings):
    settings.CACHES = NOWHERE
    asyncio.run(acquire_at_once())


@override_locks()
async def acquire_at_once() -> None:
    async with RLock("stock:42", wait_time=5) as lock:
        assert await lock.aowned()


def test_each_begins_empty_and_nested_ones_do_not_meet():
    for _ in range(2):
        with override_locks():
            assert RLock("stock:42").acquire(blocking=False)
            with override_locks():
                assert not rlock("stock:42").locked()
            assert rlock("stock:42").locked()


def test_what_a_test_left_does_not_reach_the_next_one(redis_client):
    with override_locks():
        RLock("stock:42").acquire()
    assert not HOLDS.snapshot()
    with RLock("stock:42"):
        assert redis_client.exists("rlock:stock:42")


def test_what_was_held_before_is_still_held():
    with RLock("before") as lock:
        with override_locks():
            pass
        lock.check()


def test_a_waiter_is_woken():
    with override_locks():
        FairLock("stock:42").acquire()
        with beside(visit, FairLock("stock:42")):
            FairLock("stock:42").release()


def test_aliases_stay_as_they_are(settings):
    settings.RLOCK = {
        "default": {"KIND": "fenced", "REPLICA_ACKS": 1},
        "quorum": {"NODES": [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]},
    }
    with override_locks(WATCHDOG_TIMEOUT=7):
        assert get_settings("default").kind == "fenced"
        assert get_settings("quorum").watchdog_timeout == 7
        with FencedLock("stock:42") as fenced, RedLock("stock:42", using="quorum") as voted:
            assert fenced.token > 0
            assert voted.token > 0


SERVERS = {
    **{
        name: {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"redis://127.0.0.1:1/{database}"}
        for name, database in {"default": 0, "same": 0, "other": 1}.items()
    },
    "local": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
}
MEMORY = {"STORE": "memory"}


@pytest.mark.parametrize(
    ("entries", "is_one"),
    [
        ([{}, {}], True),
        ([{}, {"WATCHDOG_TIMEOUT": 300}], True),
        ([{"CACHE": "default"}, {"CACHE": "same"}], True),
        ([{"CACHE": "default"}, {"CACHE": "other"}], False),
        ([{"CACHE": "default"}, {"CACHE": "local"}], False),
        ([{"CACHE": "local"}, {"CACHE": "local"}], True),
        ([{"KEY_PREFIX": "a:"}, {"KEY_PREFIX": "b:"}], False),
        ([{"STORE": "embedded"}, {"STORE": "embedded"}], True),
        ([{"STORE": "embedded"}, {"STORE": "embedded", "FOLDER": "/srv/locks"}], False),
        ([{"STORE": "embedded"}, {}], False),
        ([MEMORY, MEMORY], True),
        ([MEMORY, {"STORE": "memory://audit"}], False),
        ([{"NODES": ["default", "other"]}, {"NODES": ["same", "other"]}], True),
        ([{"NODES": ["default", "other"]}, {"NODES": ["redis://127.0.0.1:2", "redis://127.0.0.1:3"]}], False),
    ],
)
@pytest.mark.parametrize("default", [{}, *long({"CACHE": "other"}, MEMORY)])
def test_aliases_share_their_locks_as_in_production(entries, is_one, default, settings):
    settings.CACHES = SERVERS
    settings.RLOCK = {"default": default, **dict(zip(["one", "two"], entries, strict=True))}
    with override_locks(), hold("stock:42", using="one"):
        assert_locked("stock:42", using="one")
        lock = rlock("stock:42", using="two")
        assert lock.acquire(blocking=False) is not is_one
        if is_one:
            assert_locked("stock:42", using="two")
        else:
            lock.release()
            assert_not_locked("stock:42", using="two")


def test_nodes_that_are_one_server_in_the_settings_of_tests_stay_several(settings):
    settings.CACHES = SERVERS
    settings.RLOCK = {"quorum": {"NODES": ["default", "same", "other"]}}
    with override_locks(), RedLock("stock:42", using="quorum"), hold("stock:43", using="quorum"):
        assert_locked("stock:42", using="quorum")


def test_other_caches_stay(settings):
    settings.CACHES = {**settings.CACHES, "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    with override_locks():
        assert "memory" in django_settings.CACHES


def test_bad_options_are_refused_and_leave_nothing():
    before = django_settings.CACHES
    with override_locks(WATCHDOG_TIMEUOT=3), pytest.raises(ImproperlyConfigured, match="WATCHDOG_TIMEUOT"):
        RLock("stock:42").acquire()
    assert before == django_settings.CACHES


@override_locks()
def test_as_decorator():
    semaphore = Semaphore("seats")
    assert semaphore.try_set_permits(1)
    with semaphore:
        assert semaphore.available_permits() == 0


@override_locks()
class TestCaseOfAProject(SimpleTestCase):
    def test_second_buyer_waits(self):
        with hold("stock:1"):
            assert not rlock("stock:1").acquire(blocking=False)

    def test_nothing_is_left_of_the_other_test(self):
        assert not rlock("stock:1").locked()


class TestsThatSetCaches(SimpleTestCase):
    def test_no_redis_is_needed_whatever_is_set_meanwhile(self):
        with override_locks(), RLock("stock:1"):
            for changed in {"CACHES": NOWHERE}, {"RLOCK": {"default": {"CACHE": "default"}}}, {"RLOCK": None}:
                with self.settings(**changed):
                    assert_locked("stock:1")
                    assert not rlock("stock:1", owner="another").acquire(blocking=False)


@override_locks()
@override_settings(CACHES=NOWHERE, RLOCK={"default": {"CACHE": "default", "KIND": "rlock"}})
class TestCaseWithClassSettings(SimpleTestCase):
    taken = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with rlock("data") as cls.taken:
            assert_locked("data")

    def test_its_settings_are_those_of_the_class(self):
        assert type(self.taken) is RLock
        assert type(rlock("stock:1")) is RLock
        assert not rlock("data").locked()

    def test_a_lock_that_setup_took_is_not_left(self):
        assert_not_locked("data")


def test_forked_processes_have_a_store_each():
    with override_locks():
        assert rlock("stock:1").acquire(blocking=False)
        in_child(lambda: rlock("stock:1", owner="another").acquire())


def test_forked_processes_have_nodes_each(settings):
    settings.RLOCK = {"quorum": {"NODES": [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]}}
    with override_locks(), RedLock("stock:1", using="quorum"):
        in_child(lambda: RedLock("stock:1", using="quorum").acquire())


def test_without_the_extra(monkeypatch):
    monkeypatch.setattr(memory, "find_spec", lambda _: None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'django-rlock\[testing\]'"), override_locks():
        pass
