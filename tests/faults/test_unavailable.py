"""Redis down, silent, refusing: before, in and after; nothing is locked without being known, nothing waits too long."""

import _thread
import gc
import re
import threading
import time
import traceback
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import pytest
import redis
from django_redis import get_redis_connection
from redis.exceptions import ConnectionError as RedisConnectionError

from django_rlock import (
    LockLostError,
    LockUnavailableError,
    MultiLock,
    PermitExpirableSemaphore,
    RedLock,
    RLock,
    Semaphore,
)
from django_rlock._transport import servers
from django_rlock._transport.registry import listener
from django_rlock._transport.worker import CleanUps
from django_rlock.locks import watchdog
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import nudge, renew_now, until_renewed
from tests.beside import beside, visit
from tests.bindings import visit as visit_by
from tests.eventually import UNTIL_SERVED, eventually
from tests.proxy import load_scripts

pytestmark = pytest.mark.lengthy

KEY = "rlock:stock:42"
QUEUE = f"rlock_queue:{{{KEY}}}"
GRACE = 1.5
"""How much longer than its wait a call may take, in seconds: one for the last reply, the rest for the call itself."""
AS_LONG_AS_IT_TAKES = {"wait_time": 3600}
"""For what no wait can change: who waits for it in vain does not come back."""


async def in_time(wait, attempt):
    """An attempt lasts not much longer than its wait; a machine that stalls delays some, but not each."""
    for _ in range(10):
        began = time.monotonic()
        await attempt()
        seconds = time.monotonic() - began
        if seconds < wait + GRACE:
            return
    raise AssertionError(f"The last one took {seconds:.1f} s.")


async def refused(binding, lock, **options):
    """The error of an acquire that meets no server."""
    with pytest.raises(LockUnavailableError) as caught:
        await binding.acquire(lock, **options)
    return caught.value


@pytest.mark.parametrize("wait", [0, 0.4])
async def test_down_at_start(binding, kind, own_server, wait):
    server = own_server()
    server.kill()
    await in_time(wait, lambda: refused(binding, kind("stock:42"), wait_time=wait))
    began = time.monotonic()
    error = await refused(binding, kind("stock:42"), wait_time=wait)
    assert time.monotonic() - began >= wait
    assert re.search(r"'stock:42'.*Check that Redis is up", str(error))
    assert error.lock_name == "stock:42"
    assert error.__cause__ is not None
    assert isinstance(error, ConnectionError)
    assert HOLDS.snapshot() == []
    server.start()
    async with binding.inside(kind("stock:42")):
        pass


class TellingConnection(redis.Connection):
    """Fails with a text that shows its options, as redis-py 6.4 does where no sentinel replies."""

    def connect(self):
        told = f"<redis.connection.Connection(host=one,password={self.password})>"
        raise RedisConnectionError(f"No master found for 'mymaster' : Redis<{told}> - no reply") from ValueError(told)


@pytest.mark.parametrize("nodes", [1, 3])
async def test_no_password_in_its_text_and_traceback(binding, settings, nodes):
    options = {"PASSWORD": "hidden", "CONNECTION_POOL_KWARGS": {"connection_class": TellingConnection}}
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://one", "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "1": cache, "2": cache, "3": cache}
    settings.RLOCK = {"default": {"CACHE": "1"} if nodes == 1 else {"NODES": ["1", "2", "3"]}}
    error = await refused(binding, RedLock("stock:42") if nodes == 3 else RLock("stock:42"), blocking=False)
    assert "host=one,password=***" in str(error)
    assert "hidden" not in repr(error)
    assert "hidden" not in "".join(traceback.format_exception(error))


@pytest.fixture
def _no_collections():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collections")
async def test_connections_that_failed_leave_their_places(binding, kind, own_server, settings):
    """Also where nothing collects what the errors refer to."""
    settings.RLOCK = {"default": {"MAX_CONNECTIONS": 2}}
    server = own_server()
    server.kill()
    for _ in range(3):
        await refused(binding, kind("stock:42"), blocking=False)
    reached = servers.server("default")
    await binding.until(lambda: reached.size == 0)
    server.start()
    async with binding.inside(kind("stock:42")):
        assert reached.size == 1


@pytest.mark.parametrize("down", [False, True], ids=["up", "down"])
async def test_where_no_thread_can_be_started(binding, kind, own_server, monkeypatch, down):
    """The caller connects: to have no thread left is not to have no Redis."""
    server = own_server()
    if down:
        server.kill()
    started = _thread.start_new_thread
    own = threading.get_ident()

    def refuse(*args):
        if threading.get_ident() == own:
            raise RuntimeError("can't start new thread")
        return started(*args)

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    if down:
        assert "Check that Redis is up" in str(await refused(binding, kind("stock:42"), blocking=False))
    else:
        async with binding.inside(kind("stock:42")):
            pass


@pytest.mark.timeout(60)
@pytest.mark.parametrize("patience", [0, 0.3])
@pytest.mark.parametrize("make", [RLock, Semaphore, PermitExpirableSemaphore, MultiLock])
async def test_a_server_that_refuses_connections_is_not_waited_for(binding, own_server, settings, make, patience):
    """Nor by who would wait for the lock for an hour."""
    settings.RLOCK = {"default": {"REFUSED_WAIT_TIME": patience}}
    own_server().kill()
    made = MultiLock(RLock("x"), RLock("y")) if make is MultiLock else make("x")
    with pytest.raises(LockUnavailableError, match="Check that Redis is up"):
        await binding.call(made, "acquire", wait_time=3600)


@pytest.mark.timeout(60)
async def test_a_block_does_not_wait_for_a_server_that_refuses_connections(binding, kind, own_server):
    own_server().kill()
    with pytest.raises(LockUnavailableError):
        async with binding.inside(kind("stock:42", wait_time=3600)):
            pytest.fail("there is no server")


async def test_comes_up_within_the_wait(binding, kind, own_server, settings):
    server = own_server()
    settings.RLOCK = {"default": {"REFUSED_WAIT_TIME": None}}
    server.kill()
    starting = binding.start(_start, server)
    assert await binding.acquire(kind("stock:42"), wait_time=15)
    await binding.result(starting)
    await binding.release(kind("stock:42"))


async def _start(server) -> None:
    server.start()


async def test_goes_down_in_the_middle_of_a_wait(binding, kind, own_server):
    server = own_server()

    async def attempt():
        server.start()
        with server.client() as client:
            client.hset(KEY, "another", 1)
        waiting = binding.start(_wait, binding, kind("stock:42"), 3.0)
        await binding.until(WAITS.snapshot)
        server.kill()
        assert await binding.result(waiting) == "LockUnavailableError"

    await in_time(3.0, attempt)
    assert WAITS.snapshot() == []


async def _wait(binding, lock, seconds):
    try:
        return await binding.acquire(lock, wait_time=seconds)
    except LockUnavailableError as error:
        return type(error).__name__


async def test_goes_down_and_comes_back_in_the_middle_of_a_wait(binding, kind, own_server, settings):
    server = own_server()
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 1.0, "CLAIM_TIME": 0.5, "REFUSED_WAIT_TIME": None}}
    with server.client() as client:
        client.hset(KEY, "another", 1)
        client.pexpire(KEY, 1500)
    waiting = binding.start(_wait, binding, kind("stock:42"), 15)
    await binding.until(WAITS.snapshot)
    server.restart()
    assert await binding.result(waiting) is True
    HOLDS.clear()  # the waiter's thread or task has ended


def test_waiters_are_heard_again_after_an_outage(own_server):
    """Also when the listener's first attempts to reconnect found no server."""
    server = own_server()
    lock = RLock("stock:42", wait_time=10)
    with ExitStack() as waiting, lock:
        waiting.enter_context(beside(visit, lock))
        with server.client() as client:
            eventually(lambda: client.pubsub_channels("redisson*"))
    server.kill()
    (subscriber,) = cast("Any", listener("default")).subscribers.values()
    eventually(lambda: subscriber.connection is None)
    server.restart()
    with server.client() as client:
        eventually(lambda: client.pubsub_channels("redisson*"))


async def test_goes_silent_while_connections_are_open(binding, kind, own_server):
    server = own_server()
    async with binding.inside(kind("warm")):
        pass
    server.pause()
    try:
        await in_time(0.3, lambda: refused(binding, kind("stock:42"), wait_time=0.3))
    finally:
        server.resume()
    with server.client() as client:
        eventually(lambda: not client.exists(KEY, QUEUE))  # executed after all, and released afterwards


async def test_silent_before_the_connection_is_made(binding, kind, own_server, settings):
    """Connecting takes the cache's own time-outs, whatever the wait time: here one for each of two attempts."""
    server = own_server()
    settings.CACHES = {"default": settings.CACHES["default"] | {"OPTIONS": {"SOCKET_TIMEOUT": 0.4}}}
    server.pause()
    try:
        await in_time(0.3, lambda: refused(binding, kind("stock:42"), wait_time=0.3))
    finally:
        server.resume()


async def test_down_at_an_inner_acquire(binding, kind, own_server):
    """The wait time counts there as well, not the outer hold's lease."""
    server = own_server()
    lock = kind("stock:42")
    await binding.acquire(lock)
    server.kill()
    await in_time(0.2, lambda: refused(binding, lock, wait_time=0.2))
    assert HOLDS.snapshot()[0].count == 1
    HOLDS.clear()


async def test_down_at_release(binding, kind, own_server):
    """The release is made up for when the server is back, and the lock is not renewed meanwhile."""
    server = own_server()
    lock = kind("stock:42")

    async def attempt():
        await binding.acquire(lock)
        server.pause()
        with pytest.raises(LockUnavailableError, match=r"could not be released.*frees itself in"):
            await binding.release(lock)
        server.resume()

    await in_time(1.0, attempt)
    assert HOLDS.snapshot() == []
    with server.client() as client:
        eventually(lambda: not client.exists(KEY))
    async with binding.inside(lock):
        pass


async def test_down_at_an_inner_release(binding, kind, own_server):
    """The count is the client's, so the outer release frees the lock all the same."""
    server = own_server()
    lock = kind("stock:42")
    await binding.acquire(lock)
    await binding.acquire(lock)
    server.pause()
    with pytest.raises(LockUnavailableError):
        await binding.release(lock)
    server.resume()
    await binding.release(lock)
    with server.client() as client:
        eventually(lambda: not client.exists(KEY))


async def test_an_outage_is_logged_once_for_a_hold(binding, kind, own_server, caplog, monkeypatch):
    monkeypatch.setattr(watchdog, "RETRY", 0.02)
    caplog.set_level("DEBUG", "django_rlock.watchdog")

    def failures():
        return [each.levelname for each in caplog.records if "could not be renewed" in each.message]

    with own_server().client() as client:
        async with binding.inside(kind("stock:42")):
            (hold,) = HOLDS.snapshot()
            for _ in range(2):
                until_renewed(hold)
                client.config_set("min-replicas-to-write", 1)
                renew_now(hold)
                await binding.until(lambda: len(failures()) >= 3)
                client.config_set("min-replicas-to-write", 0)
                await binding.until(lambda: not hold.suspect)
                assert failures() == ["ERROR", *["DEBUG"] * (len(failures()) - 1)]
                caplog.clear()


async def test_down_past_the_lease(binding, kind, own_server, settings):
    """The local deadline shows it, without a server to ask."""
    server = own_server()
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 0.5}}
    lock = kind("stock:42")
    await binding.acquire(lock)
    server.kill()
    await binding.until(lambda: HOLDS.snapshot()[0].lost)
    assert lock.lost
    with pytest.raises(LockLostError, match="could not be renewed"):
        await binding.release(lock)


def test_silent_past_the_lease(own_server, settings):
    """lock_lost and on_lost come soon after the deadline: the background thread waits for no reply for long."""
    server = own_server()
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 0.6}}
    told = threading.Event()
    lock = RLock("stock:42", on_lost=lambda _: told.set())
    lock.acquire()
    try:
        server.pause()
        eventually(lambda: lock.lost)
        assert told.wait(UNTIL_SERVED)
    finally:
        server.resume()
        HOLDS.clear()


async def test_short_outage_does_not_cost_the_lock(binding, kind, own_server):
    server = own_server()
    lock = kind("stock:42")
    async with binding.inside(lock):
        server.restart(keep_data=True)
        (hold,) = HOLDS.snapshot()
        until_renewed(hold)
        lock.check()


async def test_out_of_memory(binding, kind, own_server):
    """Acquire fails closed; a held lock can be re-entered, released and freed."""
    server = own_server()
    load_scripts(server)
    lock = kind("stock:42")
    with server.client() as client:
        await binding.acquire(lock)
        client.config_set("maxmemory", 1)
        with pytest.raises(LockUnavailableError, match="maxmemory"):
            await binding.acquire(kind("other"), blocking=False)
        await binding.acquire(lock)
        assert client.hvals(KEY) == ["2"]
        await binding.call(lock, "extend", 20)
        await binding.release(lock)
        await binding.release(lock)
        assert client.keys() == []


async def test_hand_over_when_out_of_memory(binding, own_server):
    from django_rlock import FairLock

    server = own_server()
    load_scripts(server)
    with server.client() as client:
        await binding.acquire(FairLock("stock:42"))
        waiting = binding.start(visit_by, binding, FairLock("stock:42"))
        await binding.until(lambda: client.zcard(QUEUE))
        client.config_set("maxmemory", 1)
        await binding.release(FairLock("stock:42"))
        await binding.result(waiting)


async def test_key_of_another_type(binding, kind, redis_client):
    redis_client.set(KEY, "not a lock")
    for attempt in ({"blocking": False}, AS_LONG_AS_IT_TAKES):
        error = await refused(binding, kind("stock:42"), **attempt)
        assert re.search(r"another type of value.*delete that key", str(error))
    with pytest.raises(LockUnavailableError, match="another type"):
        await binding.call(kind("stock:42"), "locked")
    with pytest.raises(LockUnavailableError):
        await binding.call(kind("stock:42"), "force_release")
    assert redis_client.get(KEY) == "not a lock"


async def test_key_of_another_type_at_release(binding, kind, redis_client):
    lock = kind("stock:42")
    await binding.acquire(lock)
    redis_client.set(KEY, "not a lock")
    with pytest.raises((LockUnavailableError, LockLostError)):
        await binding.release(lock)
    assert redis_client.get(KEY) == "not a lock"


USER = ("ACL", "SETUSER", "shop", "reset", "on", ">secret")


@pytest.mark.parametrize(
    ("set_up", "login", "error"),
    [
        ((*USER, "~*", "&*", "+@all"), "shop:secret", None),
        ((*USER, "~rlock:*", "~rlock_*", "~redisson_*", "resetchannels", "+@all"), "shop:secret", None),
        ((*USER, "~*", "&*", "+@all", "-@scripting"), "shop:secret", "ACL of the Redis user"),
        ((*USER, "~cache:*", "&*", "+@all"), "shop:secret", "ACL of the Redis user"),
        (("CONFIG", "SET", "requirepass", "secret"), ":wrong", "credentials"),
    ],
    ids=["all", "no channels", "no scripts", "other keys", "wrong password"],
)
async def test_user_and_rights(binding, kind, own_server, settings, set_up, login, error):
    server = own_server()
    with server.client() as client:
        client.execute_command(*set_up)
        location = server.url.replace("unix://", f"unix://{login}@")
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": location}}
        if error:
            assert error in str(await refused(binding, kind("stock:42"), **AS_LONG_AS_IT_TAKES))
            return
        async with binding.inside(kind("stock:42")):
            pass
        assert not client.exists(KEY)


@contextmanager
def replica(client, _other):
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    yield
    client.execute_command("REPLICAOF", "NO", "ONE")


@contextmanager
def busy(client, other):
    client.config_set("busy-reply-threshold", 10)
    with beside(_block, other):
        eventually(lambda: _is_busy(client))
        yield
        client.script_kill()


@pytest.mark.parametrize(("refuses", "error"), [(replica, r"(?i)read.?only"), (busy, "BUSY")])
async def test_refusal_that_ends_is_waited_for(binding, kind, own_server, refuses, error):
    server = own_server()
    with server.client() as client, server.client() as other:
        with refuses(client, other):
            with pytest.raises(LockUnavailableError, match=error):
                await binding.acquire(kind("stock:42"), blocking=False)
            waiting = binding.start(_wait, binding, kind("stock:42"), 10)
            await binding.sleep(0.1)
        assert await binding.result(waiting) is True
        HOLDS.clear()


def _block(client) -> None:
    with pytest.raises(redis.ResponseError):
        client.eval("while true do end", 0)


def _is_busy(client) -> bool:
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


def test_failing_job_does_not_end_the_background_thread(monkeypatch, kind, redis_client):
    """Renewal goes on when clean-up raises, as iterating over a deque did while others appended."""
    failed = threading.Event()

    def fail(self: CleanUps, now: float) -> float:
        failed.set()
        raise SystemExit("deque mutated during iteration")

    lock = kind("stock:42")
    with lock:
        monkeypatch.setattr(CleanUps, "round", fail)
        nudge()
        assert failed.wait(UNTIL_SERVED)
        (hold,) = HOLDS.snapshot()
        until_renewed(hold)
