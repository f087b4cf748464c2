"""The watchdog of each side under the eyes of the other: it keeps what it holds for longer than two timeouts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_rlock import LockLostError, PermitExpirableSemaphore, RLock
from tests.eventually import UNTIL_SERVED
from tests.interop.pairs import PAIRS
from tests.interop.redisson import expirable_semaphore, lock
from tests.interop.sites import HASTY_WATCHDOG, PLACES

LASTING = HASTY_WATCHDOG * 2.5
LASTING_MS = int(LASTING * 1000)


def try_for_long(lock):
    taken = lock.acquire(wait_time=LASTING)
    if taken:
        lock.release()
    return taken


@pytest.mark.lengthy
@pytest.mark.parametrize("scene", PLACES, indirect=True, ids=str)
def test_watchdog_of_each_side_keeps_the_other_out(site, java):
    """All kinds at once, since it takes long."""
    alice = java("alice", hasty=True)
    permits = PermitExpirableSemaphore("permits", using="hasty")
    permits.try_set_permits(1)
    with ThreadPoolExecutor(len(PAIRS)) as threads:
        permit = permits.acquire(renewed=True)
        assert permit
        waits = [java("bob").begin(expirable_semaphore("permits"), "tryAcquire", LASTING_MS, 1, "MILLISECONDS")]
        for kind, pair in PAIRS.items():
            assert pair.ours(f"ours:{kind}", using="hasty").acquire()
            alice.do(pair.theirs(f"theirs:{kind}"), "lock")
            bob = java(f"bob-{kind}")
            waits.append(bob.begin(pair.theirs(f"ours:{kind}"), "tryLock", LASTING_MS, "MILLISECONDS"))
            waits.append(threads.submit(try_for_long, pair.ours(f"theirs:{kind}")))
        assert [wait.result(UNTIL_SERVED) or None for wait in waits] == [None] * len(waits), "nobody got in"
    permits.release(permit)
    for kind, pair in PAIRS.items():
        pair.ours(f"ours:{kind}", using="hasty").release()
        alice.do(pair.theirs(f"theirs:{kind}"), "unlock")


@pytest.mark.parametrize("scene", PLACES, indirect=True, ids=str)
def test_victim_of_javas_force_learns_from_its_watchdog(name, site, java):
    told = threading.Event()
    ours = RLock(name, using="hasty", on_lost=lambda _: told.set())
    assert ours.acquire()
    assert java("alice").do(lock(name), "forceUnlock") is True
    assert told.wait(UNTIL_SERVED)
    assert ours.lost
    with pytest.raises(LockLostError):
        ours.release()
