"""The locks that Redisson derives from a collection and one of its keys."""

from __future__ import annotations

from typing import get_args

import pytest

from django_rlock.redisson import MapLockKind, map_lock_name
from tests.interop.sites import PLACES

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
