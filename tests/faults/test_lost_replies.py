"""A command that was obeyed though its reply never came: asked again, and nothing happens twice."""

import threading
import time
from concurrent.futures import Future

import pytest
import redis
from django_redis import get_redis_connection

from django_rlock import LockLostError, LockUnavailableError, scripts
from django_rlock.drivers import background
from django_rlock.locks.holds import HOLDS

ACQUIRE = {"fair": scripts.FAIR_ACQUIRE, "rlock": scripts.RLOCK_ACQUIRE}
RELEASE = {"fair": scripts.FAIR_RELEASE, "rlock": scripts.RLOCK_RELEASE}
KEY = "rlock:stock:42"


async def test_acquire_holds_once(face, kind, proxy, redis_client):
    lost = proxy.lose_reply(ACQUIRE[kind.kind])
    lock = kind("stock:42")
    assert await face.acquire(lock, blocking=False)
    assert lost.served.is_set()
    assert redis_client.hvals(KEY) == ["1"]
    await face.release(lock)
    assert not redis_client.exists(KEY)


async def test_entering_again_counts_once(face, kind, proxy, redis_client):
    lock = kind("stock:42")
    await face.acquire(lock)
    lost = proxy.lose_reply(ACQUIRE[kind.kind])
    await face.acquire(lock)
    assert lost.served.is_set()
    assert redis_client.hvals(KEY) == ["2"]
    await face.release(lock)
    assert redis_client.hvals(KEY) == ["1"]
    await face.release(lock)
    assert not redis_client.exists(KEY)


async def test_inner_release_keeps_the_outer_hold(face, kind, proxy, redis_client):
    lock = kind("stock:42")
    await face.acquire(lock)
    await face.acquire(lock)
    lost = proxy.lose_reply(RELEASE[kind.kind])
    await face.release(lock)
    assert lost.served.is_set()
    assert redis_client.hvals(KEY) == ["1"]
    await face.release(lock)
    assert not redis_client.exists(KEY)


async def test_release_whose_reply_was_lost_is_a_success(face, kind, proxy, redis_client):
    lock = kind("stock:42")
    lost = proxy.lose_reply(RELEASE[kind.kind])
    async with face.inside(lock):
        pass
    assert lost.served.is_set()
    assert not redis_client.exists(KEY)


async def test_command_that_never_arrived_is_sent_again(face, kind, proxy, redis_client):
    lock = kind("stock:42")
    cut = proxy.cut_before(ACQUIRE[kind.kind])
    assert await face.acquire(lock, blocking=False)
    assert cut.served.is_set()
    cut = proxy.cut_before(RELEASE[kind.kind])
    await face.release(lock)
    assert cut.served.is_set()
    assert not redis_client.exists(KEY)


async def test_renewal_whose_reply_was_lost_is_made_up_for(face, kind, proxy, redis_client):
    lock = kind("stock:42")
    lost = proxy.lose_reply(scripts.LOCK_RENEW)
    assert await face.acquire(lock)
    redis_client.pexpire(KEY, 5000)
    hold = HOLDS.snapshot()[0]
    hold.deadline -= hold.lease * 2 / 3  # due now
    background._loop.nudge()
    await face.until(lambda: redis_client.pttl(KEY) > 20_000)
    await face.until(lambda: hold.renew_at > hold.since)
    assert lost.served.is_set()
    assert not lock.lost
    await face.release(lock)


async def test_silent_connection_is_given_up_within_the_wait(face, kind, proxy, redis_client):
    """The acquire was obeyed but never answered: it fails, and what was granted is given back behind it."""
    swallowed = proxy.swallow_reply(ACQUIRE[kind.kind])
    lock = kind("stock:42")
    with pytest.raises(LockUnavailableError):
        await face.acquire(lock, blocking=False)
    assert swallowed.served.is_set()
    await face.until(lambda: not redis_client.exists(KEY))
    assert await face.acquire(lock, blocking=False)
    await face.release(lock)


async def test_acquire_that_arrives_after_its_clean_up_does_not_meet_the_next_hold(face, kind, proxy, redis_client):
    """The first command is stuck on its way, the caller gives up, comes back, and only then it arrives."""
    stuck = proxy.hold(ACQUIRE[kind.kind])
    lock = kind("stock:42")
    with pytest.raises(LockUnavailableError):
        await face.acquire(lock, blocking=False)
    assert await face.acquire(lock, blocking=False)
    owner = redis_client.hkeys(KEY)
    stuck.let_go.set()
    await face.sleep(0.05)
    assert redis_client.hkeys(KEY) == owner
    await face.release(lock)
    assert not redis_client.exists(KEY)


async def test_waiter_whose_grant_got_lost_is_granted_once(face, proxy, kind, redis_client):
    """Every reply and wake-up of the waiting side may be lost; the hand-over still comes, and once."""
    lock = kind("stock:42")
    await face.acquire(lock)
    took = threading.Event()

    async def wait():
        async with face.inside(kind("stock:42", wait_time=10)):
            took.set()
            assert redis_client.hvals(KEY) == ["1"]

    waiting = face.start(wait)
    await face.until(lambda: _waits(redis_client, kind.kind))
    lost = proxy.lose_reply(ACQUIRE[kind.kind])
    await face.release(lock)
    await face.result(waiting)
    assert lost.served.is_set()
    assert took.is_set()
    assert not redis_client.exists(KEY)


def _waits(redis_client, kind):
    if kind == "fair":
        return redis_client.zcard("rlock_queue:{rlock:stock:42}")
    return redis_client.pubsub_numsub("redisson_lock__channel:{rlock:stock:42}")[0][1]


async def test_deadline_counts_from_before_the_command(face, kind, proxy):
    """However late the reply, the hold counts as lost before the server may give the lock to another."""
    lock = kind("stock:42", lease_time=20)
    reply = proxy.hold_reply(ACQUIRE[kind.kind])
    obeyed_at = _let_go_later(reply)
    await face.acquire(lock)
    assert HOLDS.snapshot()[0].deadline <= obeyed_at.result(10) + 20
    await face.release(lock)


async def test_deadline_of_a_renewal_counts_from_before_the_command(face, kind, proxy, settings):
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 3}}
    lock = kind("stock:42")
    await face.acquire(lock)
    hold = HOLDS.snapshot()[0]
    first = hold.deadline
    reply = proxy.hold_reply(scripts.LOCK_RENEW)
    obeyed_at = _let_go_later(reply)
    await face.until(lambda: hold.deadline > first)
    assert hold.deadline <= obeyed_at.result(10) + 3
    await face.release(lock)


def _let_go_later(reply):
    """Let a reply go a fifth of a second after the server gave it; answers when that was."""
    obeyed_at: Future[float] = Future()

    def wait() -> None:
        reply.served.wait(10)
        obeyed_at.set_result(time.monotonic())
        time.sleep(0.2)
        reply.let_go.set()

    threading.Thread(target=wait).start()
    return obeyed_at


def test_release_that_was_not_sent_at_first_does_not_hide_a_loss(kind, redis_client, monkeypatch):
    """Only what the server may have obeyed makes "not yours" the echo of an earlier release."""
    lock = kind("stock:42")
    lock.acquire()
    redis_client.delete(KEY)
    pool = get_redis_connection("default").connection_pool
    connect = pool.get_connection
    failures = [redis.ConnectionError("refused")]

    def get_connection(*args, **kwargs):
        if failures:
            raise failures.pop()
        return connect(*args, **kwargs)

    monkeypatch.setattr(pool, "get_connection", get_connection)
    with pytest.raises(LockLostError):
        lock.release()
