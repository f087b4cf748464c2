"""A forked child owns nothing of its parent's, disturbs nothing of it, and works on its own."""

import os
import signal
import threading
import traceback
from collections.abc import Callable
from operator import attrgetter

import pytest

from django_rlock import FairLock, LockNotOwnedError, RLock
from django_rlock.connections import command_pool
from django_rlock.drivers import background, pubsub
from django_rlock.drivers.identity import client_id, current_owner
from django_rlock.locks.holds import HOLDS, WAITS
from tests.eventually import eventually

KEY = "rlock:stock:42"

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def in_child(body: Callable[[], object]) -> None:
    """Run a body in a forked child; what it raises fails the test."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # a child that hangs ends, and has said nothing
        try:
            body()
            os.write(writing, b"ok")
        except BaseException:  # noqa: BLE001 - the parent is told
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    assert said == "ok", said


def test_child_owns_nothing(kind, redis_client):
    lock = kind("stock:42")
    with lock:
        held = redis_client.hgetall(KEY)
        parent = client_id(), current_owner().name

        def child() -> None:
            assert HOLDS.snapshot() == []
            assert WAITS.snapshot() == []
            assert client_id() != parent[0]
            assert not current_owner().name.startswith(parent[0])
            assert not lock.owned()
            assert not lock.acquire(blocking=False)
            with pytest.raises(LockNotOwnedError):
                lock.release()
            with pytest.raises(LockNotOwnedError):
                lock.extend(5)
            with pytest.raises(LockNotOwnedError):
                lock.check()

        in_child(child)
        assert redis_client.hgetall(KEY) == held
        assert lock.owned()
    assert not redis_client.exists(KEY)


def test_end_of_the_block_in_the_child_frees_nothing(kind, redis_client):
    lock = kind("stock:42")
    with lock:

        def child() -> None:
            with pytest.raises(LockNotOwnedError):
                lock.__exit__(None, None, None)

        in_child(child)
        assert redis_client.hlen(KEY) == 1


def test_child_takes_waits_and_is_renewed_by_itself(kind, redis_client, settings):
    """The parent has all threads running at the fork; the child needs its own."""
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 0.6, "WAITER_ALIVE_TIME": 1.0, "CLAIM_TIME": 0.5}}
    lock = kind("stock:42")
    with lock, kind("stock:43"):
        taken = threading.Event()

        def wait() -> None:
            with kind("stock:42"):
                taken.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(WAITS.snapshot)
        assert background._loop._thread is not None

        def child() -> None:
            assert background._loop._thread is None
            assert pubsub._listeners == {}
            with kind("stock:44") as own:
                # Others must wait for it, longer than its lease.
                other = threading.Thread(target=lambda: kind("stock:44").acquire(wait_time=1.5))
                other.start()
                other.join()
                own.check()
            assert not kind("stock:43").acquire(wait_time=0.05)

        in_child(child)
        lock.check()
    waiting.join(10)
    assert taken.is_set()


def test_fork_while_another_thread_acquires(kind, redis_client):
    """Mutexes and sockets that the other threads use at the fork are not the child's."""
    with kind("stock:42"):  # imports what there is to import: a child cannot take over another thread's import
        pass
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            with kind(f"other:{number % 2}"):
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()

    def child() -> None:
        for _ in range(3):
            with kind("stock:42"):
                pass
        assert not kind("taken").acquire(wait_time=0.02)

    try:
        redis_client.hset("rlock:taken", "somebody", 1)
        for _ in range(8):
            in_child(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


def test_owner_names_of_forked_children_differ(server):
    reading, writing = os.pipe()
    current_owner()
    children = []
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            os.write(writing, (current_owner().name + "\n").encode())
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    os.close(writing)
    with os.fdopen(reading) as names:
        assert len({*names.read().split(), current_owner().name}) == 11


def test_lock_made_before_the_fork_serves_both(redis_client):
    lock = FairLock("stock:42")

    def child() -> None:
        with lock:
            assert RLock("stock:42").owned()

    in_child(child)
    with lock:
        assert RLock("stock:42").owned()


@pytest.mark.parametrize("path", ["_lock", "_event_dispatcher._lock"])
def test_fork_while_another_thread_is_inside_redis_py(kind, path):
    """redis-py makes its pool anew in a child, but not these locks."""
    with kind("stock:42"):
        pass
    try:
        lock = attrgetter(path)(command_pool("default"))
    except AttributeError:
        pytest.skip("this redis-py has no such lock")
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            locked.set()
            done.wait(30)

    other = threading.Thread(target=hold)
    other.start()
    locked.wait(10)

    def child() -> None:
        with kind("stock:42"):
            pass

    try:
        in_child(child)
    finally:
        done.set()
        other.join()
