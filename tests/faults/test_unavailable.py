"""Redis down, silent, refusing: before, in and after; nothing is locked without being known, nothing waits too long."""

import math
import threading
import time
from functools import partial

import pytest
from django_redis import get_redis_connection

from django_rlock import LockLostError, LockUnavailableError, RLock, scripts
from django_rlock.connections import UNSET_TIMEOUT
from django_rlock.drivers import background, pubsub
from django_rlock.locks.holds import HOLDS, WAITS
from tests.eventually import eventually
from tests.proxy import load_scripts

KEY = "rlock:stock:42"
QUEUE = f"rlock_queue:{{{KEY}}}"
SLACK = 15.0
"""What a call may take beyond its wait, in seconds: one for the last answer, the rest for a busy machine."""
FOR_LONG = 30.0
"""What a call would take that tries again where that is no use, in seconds."""


def reply_late(settings):
    """Have the cache itself wait for replies for long."""
    cache = settings.CACHES["default"]
    settings.CACHES = {**settings.CACHES, "default": {**cache, "OPTIONS": {"SOCKET_TIMEOUT": FOR_LONG}}}


class Clock:
    def __enter__(self):
        self.began = time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.began


@pytest.mark.parametrize("wait", [0, 0.4])
async def test_down_at_start(face, kind, own_server, wait):
    server = own_server()
    server.kill()
    with Clock() as took, pytest.raises(LockUnavailableError, match=r"'stock:42'.*check that Redis is up") as caught:
        await face.acquire(kind("stock:42"), wait_time=wait)
    assert wait <= took.seconds < wait + SLACK
    assert caught.value.lock_name == "stock:42"
    assert caught.value.__cause__ is not None
    assert isinstance(caught.value, ConnectionError)
    assert HOLDS.snapshot() == []
    server.start()
    async with face.inside(kind("stock:42")):
        pass


async def test_comes_up_within_the_wait(face, kind, own_server):
    server = own_server()
    server.kill()
    starting = face.start(_start, server)
    assert await face.acquire(kind("stock:42"), wait_time=15)
    await face.result(starting)
    await face.release(kind("stock:42"))


async def _start(server) -> None:
    server.start()


async def test_goes_down_in_the_middle_of_a_wait(face, kind, own_server):
    server = own_server()
    with server.client() as client:
        client.hset(KEY, "somebody", 1)
    waiting = face.start(_wait, face, kind("stock:42"), 1.0)
    await face.until(WAITS.snapshot)
    server.kill()
    took, outcome = await face.result(waiting)
    assert outcome == "LockUnavailableError"
    assert took < 1.0 + SLACK
    assert WAITS.snapshot() == []


async def _wait(face, lock, seconds):
    with Clock() as took:
        try:
            outcome = await face.acquire(lock, wait_time=seconds)
        except LockUnavailableError as error:
            outcome = type(error).__name__
    return took.seconds, outcome


async def test_goes_down_and_comes_back_in_the_middle_of_a_wait(face, kind, own_server, settings):
    server = own_server()
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 1.0, "CLAIM_TIME": 0.5}}
    with server.client() as client:
        client.hset(KEY, "somebody", 1)
        client.pexpire(KEY, 1500)
    waiting = face.start(_wait, face, kind("stock:42"), 15)
    await face.until(WAITS.snapshot)
    server.restart()
    _, outcome = await face.result(waiting)
    assert outcome is True
    HOLDS.clear()  # the waiter's thread or task has ended


def test_waiters_are_heard_again_after_an_outage(own_server):
    """Also when the listener's first attempts to reconnect found no server."""
    server = own_server()
    lock = RLock("stock:42", wait_time=10)
    taken = []

    def wait() -> None:
        taken.append(lock.acquire())
        lock.release()

    with lock:
        waiting = threading.Thread(target=wait)
        waiting.start()
        with server.client() as client:
            eventually(lambda: client.pubsub_channels("redisson*"))
    waiting.join(20)
    server.kill()
    (subscriber,) = pubsub.listener("default")._subscribers.values()
    eventually(lambda: not subscriber._pubsub.subscribed)
    server.restart()
    with server.client() as client:
        eventually(lambda: client.pubsub_channels("redisson*"))
    assert taken == [True]


async def test_goes_silent_while_connections_are_open(face, kind, own_server, settings):
    server = own_server()
    reply_late(settings)
    async with face.inside(kind("warm")):
        pass
    server.pause()
    try:
        with Clock() as took, pytest.raises(LockUnavailableError):
            await face.acquire(kind("stock:42"), wait_time=0.3)
        assert took.seconds < 0.3 + SLACK
    finally:
        server.resume()
    with server.client() as client:
        eventually(lambda: not client.exists(KEY, QUEUE))  # obeyed after all, and given back behind


def test_silent_before_the_connection_is_made(kind, own_server, settings):
    """Connecting takes the cache's own time-outs, whatever the wait time: here one for each of two attempts."""
    server = own_server()
    settings.CACHES = {"default": settings.CACHES["default"] | {"OPTIONS": {"SOCKET_TIMEOUT": 0.4}}}
    server.pause()
    try:
        with Clock() as took, pytest.raises(LockUnavailableError):
            kind("stock:42").acquire(wait_time=0.3)
        assert took.seconds < UNSET_TIMEOUT, "where the cache sets none, an attempt would take so long"
    finally:
        server.resume()


async def test_down_at_an_inner_acquire(face, kind, own_server):
    """The wait time counts there as well, not the outer hold's lease."""
    server = own_server()
    lock = kind("stock:42")
    await face.acquire(lock)
    server.kill()
    with Clock() as took, pytest.raises(LockUnavailableError):
        await face.acquire(lock, wait_time=0.2)
    assert took.seconds < 0.2 + SLACK
    assert HOLDS.snapshot()[0].count == 1
    HOLDS.clear()


async def test_down_at_release(face, kind, own_server, settings):
    """The release is made up for when the server is back, and the lock is not renewed meanwhile."""
    server = own_server()
    reply_late(settings)
    lock = kind("stock:42")
    await face.acquire(lock)
    server.pause()
    with Clock() as took, pytest.raises(LockUnavailableError, match="could not be released") as caught:
        await face.release(lock)
    server.resume()
    assert took.seconds < 1.0 + SLACK
    assert "frees itself in" in str(caught.value)
    assert HOLDS.snapshot() == []
    with server.client() as client:
        eventually(lambda: not client.exists(KEY))
    async with face.inside(lock):
        pass


async def test_down_at_an_inner_release(face, kind, own_server):
    """The count is the client's, so the outer release frees the lock all the same."""
    server = own_server()
    lock = kind("stock:42")
    await face.acquire(lock)
    await face.acquire(lock)
    server.pause()
    with pytest.raises(LockUnavailableError):
        await face.release(lock)
    server.resume()
    await face.release(lock)
    with server.client() as client:
        eventually(lambda: not client.exists(KEY))


async def test_down_past_the_lease(face, kind, own_server, settings):
    """Told by the local deadline, without a server to ask."""
    server = own_server()
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 0.5}}
    lock = kind("stock:42")
    await face.acquire(lock)
    server.kill()
    await face.until(lambda: HOLDS.snapshot()[0].lost, within=5)
    assert lock.lost
    with pytest.raises(LockLostError, match="could not be renewed"):
        await face.release(lock)


def test_silent_past_the_lease(own_server, settings):
    """lock_lost and on_lost come soon after the deadline: the background thread waits for no reply for long."""
    server = own_server()
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 0.6}}
    told = threading.Event()
    lock = RLock("stock:42", on_lost=lambda _: told.set())
    lock.acquire()
    try:
        server.pause()
        eventually(lambda: lock.lost, within=2)  # the owner's own look is in time
        assert told.wait(4)
    finally:
        server.resume()
        HOLDS.clear()


async def test_short_outage_does_not_cost_the_lock(face, kind, own_server, settings):
    server = own_server()
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 6}}
    lock = kind("stock:42")
    async with face.inside(lock):
        server.restart(keep_data=True)
        HOLDS.snapshot()[0].deadline -= 4.5  # late for the renewal
        background._loop.nudge()
        await face.until(lambda: HOLDS.snapshot()[0].deadline - time.monotonic() > 4)
        lock.check()


async def test_server_that_forgot_its_scripts(face, kind, redis_client):
    lock = kind("stock:42")
    redis_client.script_flush()
    assert await face.acquire(lock, blocking=False)
    redis_client.script_flush()
    await face.release(lock)
    assert not redis_client.exists(KEY)


async def test_connections_closed_by_the_server(face, kind, redis_client):
    lock = kind("stock:42")
    async with face.inside(lock):
        redis_client.client_kill_filter(_type="normal")
    redis_client.client_kill_filter(_type="normal")
    assert await face.acquire(lock, blocking=False)
    await face.release(lock)


async def test_out_of_memory(face, kind, own_server):
    """Acquire fails closed; what is held can be entered again, given back and freed."""
    server = own_server()
    load_scripts(server)
    lock = kind("stock:42")
    with server.client() as client:
        await face.acquire(lock)
        client.config_set("maxmemory", 1)
        with pytest.raises(LockUnavailableError, match="maxmemory"):
            await face.acquire(kind("other"), blocking=False)
        await face.acquire(lock)
        assert client.hvals(KEY) == ["2"]
        await face.call(lock, "extend", 20)
        await face.release(lock)
        await face.release(lock)
        assert client.keys() == []


async def test_hand_over_when_out_of_memory(face, own_server):
    from django_rlock import FairLock

    server = own_server()
    load_scripts(server)
    with server.client() as client:
        await face.acquire(FairLock("stock:42"))
        waiting = face.start(_visit, face, FairLock("stock:42"))
        await face.until(lambda: client.zcard(QUEUE))
        client.config_set("maxmemory", 1)
        await face.release(FairLock("stock:42"))
        await face.result(waiting)


async def _visit(face, lock) -> None:
    async with face.inside(lock):
        pass


async def test_key_of_another_type(face, kind, redis_client):
    redis_client.set(KEY, "not a lock")
    for attempt in ({"blocking": False}, {"wait_time": FOR_LONG}):
        with Clock() as took, pytest.raises(LockUnavailableError, match=r"another type of value.*delete that key"):
            await face.acquire(kind("stock:42"), **attempt)
        assert took.seconds < SLACK
    with pytest.raises(LockUnavailableError, match="another type"):
        await face.call(kind("stock:42"), "locked")
    with pytest.raises(LockUnavailableError):
        await face.call(kind("stock:42"), "force_release")
    assert redis_client.get(KEY) == "not a lock"


async def test_key_of_another_type_at_release(face, kind, redis_client):
    lock = kind("stock:42")
    await face.acquire(lock)
    redis_client.set(KEY, "not a lock")
    with pytest.raises((LockUnavailableError, LockLostError)):
        await face.release(lock)
    assert redis_client.get(KEY) == "not a lock"


@pytest.mark.parametrize(
    ("rights", "works"),
    [
        (["~*", "&*", "+@all"], True),
        (["~rlock:*", "~rlock_*", "~redisson_*", "resetchannels", "+@all"], True),
        (["~*", "&*", "+@all", "-@scripting"], False),
        (["~cache:*", "&*", "+@all"], False),
    ],
    ids=["all", "no channels", "no scripts", "other keys"],
)
async def test_user_without_rights(face, kind, own_server, settings, rights, works):
    server = own_server()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "reset", "on", ">secret", *rights)
    settings.CACHES = {
        "default": {**settings.CACHES["default"], "LOCATION": server.url.replace("unix://", "unix://shop:secret@")}
    }
    lock = kind("stock:42")
    if works:
        async with face.inside(lock):
            pass
        with server.client() as client:
            assert not client.exists(KEY)
    else:
        with Clock() as took, pytest.raises(LockUnavailableError, match="ACL of the Redis user"):
            await face.acquire(lock, wait_time=FOR_LONG)
        assert took.seconds < SLACK


async def test_wrong_password(face, kind, own_server, settings):
    server = own_server()
    with server.client() as client:
        client.config_set("requirepass", "secret")
    settings.CACHES = {
        "default": {**settings.CACHES["default"], "LOCATION": server.url.replace("unix://", "unix://:wrong@")}
    }
    with Clock() as took, pytest.raises(LockUnavailableError, match="credentials"):
        await face.acquire(kind("stock:42"), wait_time=FOR_LONG)
    assert took.seconds < SLACK


async def test_replica_refuses_and_becomes_primary_again(face, kind, own_server):
    server = own_server()
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(LockUnavailableError, match=r"(?i)read.?only"):
            await face.acquire(kind("stock:42"), blocking=False)
        waiting = face.start(_wait, face, kind("stock:42"), 10)
        await face.sleep(0.1)
        client.execute_command("REPLICAOF", "NO", "ONE")
        assert (await face.result(waiting))[1] is True
        HOLDS.clear()


async def test_busy_script_is_waited_for(face, kind, own_server):
    server = own_server()
    with server.client() as client, server.client() as other:
        client.config_set("busy-reply-threshold", 10)
        busy = threading.Thread(target=_block_until_killed, args=(other,))
        busy.start()
        await face.until(lambda: _is_busy(client))
        waiting = face.start(_wait, face, kind("stock:42"), 10)
        await face.sleep(0.1)
        client.script_kill()
        assert (await face.result(waiting))[1] is True
        busy.join(20)  # it still reads from a client that the block closes
        HOLDS.clear()


def _block_until_killed(client) -> None:
    import redis

    with pytest.raises(redis.ResponseError):
        client.eval("while true do end", 0)


def _is_busy(client) -> bool:
    import redis

    try:
        client.ping()
    except redis.ResponseError:
        return True
    return False


def test_pool_of_the_cache_that_is_disconnected_in_use(kind, redis_client):
    """CLOSE_CONNECTION does that at the end of each request."""
    lock = kind("stock:42")
    with lock:
        get_redis_connection("default").connection_pool.disconnect()
    assert not redis_client.exists(KEY)
    assert scripts.LOCK_STATE.sha


def test_clean_up_that_is_added_while_the_next_one_is_looked_for():
    """By any thread, at any time: the background thread must not end of it."""
    loop = background._Loop()

    class Meanwhile:
        @property
        def not_before(self) -> float:
            loop.deferred.append(background._Deferred(print, math.inf, math.inf))
            return math.inf

    loop.deferred.extend([Meanwhile(), Meanwhile()])  # type: ignore[list-item]
    assert loop.run_deferred() == math.inf


def test_slow_clean_up_leaves_the_other_jobs_their_turn(monkeypatch):
    """One server that does not answer must not stop the renewal on all others."""
    monkeypatch.setattr(background, "SLOWEST_TICK", 0.01)
    loop = background._Loop()
    called = []

    def attempt(number: int) -> None:
        time.sleep(0.02)
        called.append(number)

    for number in range(2):
        loop.deferred.append(background._Deferred(partial(attempt, number), 0.0, 0.0))
    assert loop.run_deferred() <= time.monotonic()
    assert called == [0]
    loop.run_deferred()
    assert called == [0, 1]
