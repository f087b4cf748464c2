"""What has ended as it should is given back by a call, not when its object is collected: an interpreter that does not
count references collects it much later. Here such objects are kept for ever, and cycles are not looked for.
"""

import asyncio
import gc
import threading

import pytest

from django_rlock import FairLock, PermitExpirableSemaphore, RLock, rlock
from django_rlock.drivers.identity import Owner
from django_rlock.drivers.listening.waiters import ListenerWaiter
from django_rlock.drivers.room import listeners
from django_rlock.links.link import Link, Place
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.permits import Permit
from django_rlock.locks.records import Hold, Wait
from django_rlock.locks.turns import TURNS, Turn
from tests.background import links
from tests.eventually import eventually


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """All objects of these classes that are made during a test."""
    found = []
    for kind in Turn, Place, Link, ListenerWaiter, Permit, Hold, Wait, Owner:
        init = kind.__init__

        def keep(self, *args, init=init, **options):
            found.append(self)
            init(self, *args, **options)

        monkeypatch.setattr(kind, "__init__", keep)
    gc.disable()
    yield found
    gc.enable()


def of(kept, kind):
    return [each for each in kept if isinstance(each, kind)]


def test_a_turn_leaves_the_line(kept, redis_client):
    with rlock("stock", owner="checkout-7"):
        pass
    assert of(kept, Turn)
    assert TURNS._line == []
