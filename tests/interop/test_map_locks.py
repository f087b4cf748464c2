"""The locks that Redisson derives from a collection and one of its keys."""

from __future__ import annotations

from typing import get_args

import pytest

from django_rlock import RLock
from django_rlock.redisson import MapLockKind, map_lock_name
from tests.bindings import visit, waiting
from tests.eventually import UNTIL_SERVED
from tests.interop.sites import PLACES

LONG = 600
GETTERS = (
    "getLock",
    "getFairLock",
    "getReadWriteLock",
    "getSemaphore",
    "getPermitExpirableSemaphore",
    "getCountDownLatch",
)


@pytest.fixture(params=PLACES, ids=str)
def scene(request):
    return request.param


@pytest.fixture
def alice(site, java):
    """She writes keys as their UTF-8 bytes."""
    site.address = site.address._replace(options=(("setCodec", "org.redisson.client.codec.StringCodec"),))
    return java("alice")


@pytest.mark.parametrize("collection", ["getMap", "getSet", "getSetMultimap"])
def test_names_are_redissons(collection, name, alice):
    for getter, kind in zip(GETTERS, get_args(MapLockKind), strict=True):
        for key in "42", "x" * 31, "x" * 32, "Grüße an alle, in einem Schlüssel von mehr als 64 Bytes Länge …":
            assert alice.do([[collection, name], [getter, key]], "getName") == map_lock_name(name, key, kind)


async def test_both_exclude_and_wake_each_other(binding, name, site, alice):
    ours, theirs = RLock(map_lock_name(name, b"42")), [["getMap", name], ["getLock", "42"]]
    alice.do(theirs, "lock", LONG, "SECONDS")
    assert await binding.acquire(ours, blocking=False) is False
    visiting = binding.start(visit, binding, ours)
    await waiting(binding)
    alice.do(theirs, "unlock")
    await binding.result(visiting)
    await binding.acquire(ours)
    assert alice.do(theirs, "tryLock") is False
    locking = alice.begin(theirs, "lock", LONG, "SECONDS")
    await binding.until(alice.sleeps)
    await binding.release(ours)
    locking.result(UNTIL_SERVED)
    alice.do(theirs, "unlock")
