"""Signals that interrupt a MultiLock: all of its locks are held, or none."""

import gc
from contextlib import suppress
from functools import partial

import pytest

from django_rlock import FairLock, FencedLock, LockTimeoutError, MultiLock, ReadLock, RLock
from django_rlock._core.clock import monotonic
from django_rlock._transport.calls import run_sync
from django_rlock._transport.identity import current_owner
from django_rlock._transport.registry import sync_driver
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.multi import AllOrNone
from django_rlock.locks.records import key_of
from django_rlock.locks.watchdog import lose
from tests.apart import ApartLock
from tests.background import until_clean
from tests.faults.interrupting import Interruption, interruptions, lose_hold_of, outside_of

# A socket whose interrupted opener never had it is closed by Python.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.mark.parametrize("kind", [RLock, FencedLock, ReadLock, ApartLock], ids=["together", "fenced", "read", "alone"])
def test_interrupted_attempt_at_several_locks_keeps_none(redis_client, kind):
    """The second one becomes free during the wait, the third one never."""
    lock = MultiLock(*[kind(f"account:{number}") for number in range(4)])
    redis_client.hset("rlock:account:2", "another", 1)

    def act() -> None:
        redis_client.hset("rlock:account:1", "another", 1)
        redis_client.pexpire("rlock:account:1", 2)
        lock.acquire(wait_time=0.01)

    for number in interruptions(act, OUTSIDE_OF_SEVERAL):
        if HOLDS.snapshot():
            gc.collect()  # errors of several locks refer to each other
        assert HOLDS.snapshot() == [], number
    until_clean()
    assert redis_client.keys("rlock:account:?") == ["rlock:account:2"]


def test_interrupted_release_of_several_locks_keeps_none_that_it_began_with(redis_client):
    """Before that, all are held."""
    lock = MultiLock(FairLock("account:1"), ReadLock("account:2"), ApartLock("account:3"))
    lock.acquire()
    for number in interruptions(lock.release, OUTSIDE_OF_SEVERAL):
        held = {hold.lock.name for hold in HOLDS.snapshot()}
        assert held in ({"account:1", "account:2", "account:3"}, set()), number
        until_clean()
        assert bool(redis_client.keys("rlock:account:?")) == bool(held), number
        if not held:
            lock.acquire()
    assert HOLDS.snapshot() == []


def test_interrupted_attempt_of_a_name_at_several_locks_keeps_none(redis_client):
    """Its owner never ends, so nothing else would end their renewal."""
    lock = MultiLock(RLock("account:1"), ApartLock("account:2"), owner="batch")
    redis_client.hset("rlock:account:2", "another", 1)
    for number in interruptions(partial(lock.acquire, wait_time=0), OUTSIDE_OF_SEVERAL):
        assert HOLDS.snapshot() == [], number
        redis_client.delete("rlock:account:1")  # else it ends with its lease


def test_interrupted_attempt_of_a_name_leaves_its_other_blocks_counted(redis_client):
    several = MultiLock(RLock("account:1"), ApartLock("account:2"), owner="batch", wait_time=0)
    redis_client.hset("rlock:account:2", "another", 1)

    def act() -> None:
        with suppress(LockTimeoutError):
            several.enter(describe=False)

    with RLock("account:1", owner="batch"):
        for number in interruptions(act, OUTSIDE_OF_SEVERAL):
            assert [(hold.count, hold.scoped) for hold in HOLDS.snapshot()] == [(1, 1)], number


def test_failed_attempt_keeps_no_lock_whose_earlier_loss_was_forgotten_meanwhile():
    """As the watchdog does after a minute, if the loss was never reported."""
    several = MultiLock(RLock("account:1"), ApartLock("account:2"))
    lose_hold_of(several.parts[0])
    attempt = attempt_at(several)
    HOLDS.remove(HOLDS.snapshot()[0])
    assert run_sync(attempt._take_alone(several.parts[0], None, None))
    run_sync(attempt.undo_after(Interruption()))
    assert HOLDS.snapshot() == []
    until_clean()


def attempt_at(several):
    keys = [key_of(part, current_owner()) for part in several.parts]
    return AllOrNone(sync_driver("default"), AcquireRequest(current_owner(), monotonic(), 0, None), keys)


def test_failed_attempt_forgets_a_lock_that_was_lost_during_it():
    """Else a later hold of its owner would count as lost."""
    several = MultiLock(RLock("account:1"), ApartLock("account:2"))
    attempt = attempt_at(several)
    assert run_sync(attempt._take_alone(several.parts[0], None, None))
    lose(HOLDS.snapshot()[0], "it was freed by force")
    run_sync(attempt.undo_after(Interruption()))
    assert HOLDS.snapshot() == []
    until_clean()


OUTSIDE_OF_SEVERAL = outside_of("locks/multi.py", "locks/groups.py")


@pytest.mark.parametrize("together", [False, True])
def test_interrupted_block_of_several_locks_is_left_where_an_earlier_loss_was_forgotten_meanwhile(together):
    """As the watchdog does after a minute, while the statement waits."""
    lock = MultiLock(RLock("account:1"), RLock("account:2"))
    lose_hold_of(lock if together else lock.parts[0])
    leave = lock.__exit__  # the statement looks it up before it enters
    for hold in HOLDS.snapshot():
        HOLDS.remove(hold)
    lock.enter()
    del leave
    assert HOLDS.snapshot() == []
    until_clean()
    assert not any(part.locked() for part in lock.parts)
