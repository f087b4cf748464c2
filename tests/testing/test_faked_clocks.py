"""Locks in tests that freeze the time, or travel: they go on as if it were not."""

import asyncio
import datetime as dt

import pytest

from django_rlock import FairLock, LockLostError, PermitExpirableSemaphore, ReadWriteLock, RLock, rlock
from django_rlock._core.clock import monotonic
from django_rlock.locks.holds import HOLDS
from django_rlock.testing import advance, hold, override_locks
from tests.background import look_at
from tests.eventually import eventually

freezegun = pytest.importorskip("freezegun")
time_machine = pytest.importorskip("time_machine", reason="it has no wheels for this Python")

NOON = dt.datetime(2050, 1, 1, 12, tzinfo=dt.UTC)
YEAR = dt.timedelta(days=365)
FAKES = {
    "frozen": lambda: freezegun.freeze_time(NOON, real_asyncio=True),
    "ticking": lambda: freezegun.freeze_time(NOON, tick=True, real_asyncio=True),
    "travelled": lambda: time_machine.travel(NOON),
    "stopped": lambda: time_machine.travel(NOON, tick=False),
}


@pytest.fixture(params=[*FAKES.values()], ids=[*FAKES])
def fake(request):
    return request.param


@pytest.fixture(params=["redis", "in_process"])
def anywhere(request):
    if request.param == "redis":
        yield
        return
    pytest.importorskip("fakeredis", reason="lupa, which fakeredis needs, has no wheels for this Python")
    with override_locks():
        yield


def test_what_was_taken_before_is_held(anywhere, fake):
    with RLock("stock:42") as lock:
        with fake():
            assert not lock.lost
            lock.check()
            with lock:
                assert lock.owned()
        assert not lock.lost


def test_what_is_taken_meanwhile_is_renewed_and_kept(anywhere, fake, caplog):
    with fake():
        lock = RLock("stock:42")
        lock.acquire()
    (held,) = HOLDS.snapshot()
    deadline = held.deadline
    held.runs_for *= 2  # it is due now
    look_at(held)
    eventually(lambda: held.deadline > deadline)
    lock.release()
    assert "is late" not in caplog.text


def test_the_second_buyer_still_waits_after_a_journey(anywhere):
    with hold("stock:42"), time_machine.travel(NOON) as traveller:
        traveller.shift(YEAR)
        assert not rlock("stock:42").acquire(blocking=False)
    with hold("stock:42"), freezegun.freeze_time(NOON) as frozen:
        frozen.tick(YEAR)
        assert not rlock("stock:42").acquire(blocking=False)


def test_a_waiter_gives_up_in_its_own_time(anywhere, fake):
    with hold("stock:42"), fake():
        assert not rlock("stock:42").acquire(wait_time=0.05)


def test_a_task_waits_and_gives_up(anywhere, fake):
    async def wait() -> None:
        assert not await rlock("stock:42").aacquire(wait_time=0.05)
        async with rlock("stock:1"):
            pass

    with hold("stock:42"), fake():
        asyncio.run(wait())


# --- advance() --------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_process():
    pytest.importorskip("fakeredis", reason="lupa, which fakeredis needs, has no wheels for this Python")
    with override_locks():
        yield


def test_leases_end_when_the_time_is_advanced(in_process):
    with pytest.raises(LockLostError), FairLock("stock:42") as lock:
        advance(31)
        assert lock.lost
        with hold("stock:42"), pytest.raises(LockLostError):
            lock.check()


def test_longer_leases_go_on_but_for_the_time_that_has_passed(in_process):
    semaphore = PermitExpirableSemaphore("places")
    semaphore.try_set_permits(1)
    permit = semaphore.acquire(lease_time=100)
    assert permit
    sides = ReadWriteLock("prices")
    sides.write_lock.acquire(lease_time=100)
    advance(60)
    assert not permit.lost
    assert not sides.write_lock.lost
    assert permit.deadline < monotonic() + 41
    assert HOLDS.snapshot()[0].deadline < monotonic() + 41
    advance(60)
    with pytest.raises(LockLostError):
        permit.check()
    with pytest.raises(LockLostError):
        sides.write_lock.check()


def test_who_waits_gets_a_lock_whose_lease_has_passed(in_process):
    lock = RLock("stock:42", owner="another")
    lock.acquire(lease_time=30)
    advance(31)
    assert rlock("stock:42").acquire(blocking=False)
    rlock("stock:42").release()
