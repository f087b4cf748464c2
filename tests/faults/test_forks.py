"""A forked child owns nothing of its parent's, disturbs nothing of it, and works on its own."""

import os
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from django_rlock import FairLock, LockNotOwnedError, RLock
from django_rlock._transport.identity import client_id, current_owner
from django_rlock._transport.registry import _listeners
from django_rlock._transport.worker import worker, workers
from django_rlock.locks.holds import HOLDS, WAITS
from tests.beside import beside, visit
from tests.eventually import PATIENCE, eventually, in_threads
from tests.forking import fork, in_child
from tests.processes import ROOT, ClientProcess

KEY = "rlock:stock:42"
FORKS_IN_C = """
from django_rlock import RLock
from django_rlock._transport.identity import client_id
from tests.forking import fork_in_c, in_child

lock, parent = RLock("stock:42"), client_id()

def child():
    with lock:
        assert client_id() != parent

in_child(child, fork_in_c)
"""


def test_child_owns_nothing(kind, redis_client):
    lock = kind("stock:42")
    with lock:
        held = redis_client.hgetall(KEY)
        parent = client_id(), current_owner().owner_id

        def child() -> None:
            assert HOLDS.snapshot() == []
            assert WAITS.snapshot() == []
            assert client_id() != parent[0]
            assert not current_owner().owner_id.startswith(parent[0])
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


@pytest.mark.lengthy
def test_child_takes_waits_and_is_renewed_by_itself(kind, redis_client, settings):
    """The parent has all threads running at the fork; the child needs its own."""
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 3.0, "WAITER_ALIVE_TIME": 1.0, "CLAIM_TIME": 0.5}}
    lock = kind("stock:42")
    with ExitStack() as waiting, lock, kind("stock:43"):
        waiting.enter_context(beside(visit, kind("stock:42")))
        eventually(WAITS.snapshot)
        assert worker("default")._runs

        def child() -> None:
            assert workers() == []
            assert _listeners.value == {}
            with kind("stock:44") as own:
                # Others must wait for it, longer than its lease.
                in_threads(lambda: kind("stock:44").acquire(wait_time=3.5))
                own.check()
            assert not kind("stock:43").acquire(wait_time=0.05)

        in_child(child)
        lock.check()


def test_child_of_which_python_was_not_notified(server):
    """uWSGI's workers are such children. The program has no threads when it forks: in C, nothing protects a child from
    what they had locked.
    """
    with ClientProcess(server.url) as process:
        process.run(FORKS_IN_C)


@pytest.mark.lengthy
def test_fork_while_another_thread_acquires(kind, redis_client):
    """Mutexes and sockets that the other threads use at the fork are not the child's."""
    with kind("stock:42"):  # imports what there is to import: a child cannot take over another thread's import
        pass
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            visit(kind(f"other:{number % 2}"))

    def child() -> None:
        for _ in range(3):
            with kind("stock:42"):
                pass
        assert not kind("taken").acquire(wait_time=0.02)

    redis_client.hset("rlock:taken", "another", 1)
    with beside(work, 0), beside(work, 1), beside(work, 2):
        try:
            for _ in range(8):
                in_child(child)
        finally:
            stop.set()


def test_owner_names_of_forked_children_differ(server):
    reading, writing = os.pipe()
    current_owner()
    children = []
    for _ in range(10):
        pid = fork()
        if pid == 0:
            os.write(writing, (current_owner().owner_id + "\n").encode())
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    os.close(writing)
    with os.fdopen(reading) as names:
        assert len({*names.read().split(), current_owner().owner_id}) == 11


def test_lock_made_before_the_fork_serves_both(redis_client):
    lock = FairLock("stock:42")

    def child() -> None:
        with lock:
            assert RLock("stock:42").owned()

    in_child(child)
    with lock:
        assert RLock("stock:42").owned()


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_child_of_multiprocessing_frees_its_locks_when_it_ends(method, server):
    """Such a child ends by ``os._exit``, which runs nothing that was registered with ``atexit``."""
    program = [sys.executable, "-m", "tests.faults.children", method, server.url]
    subprocess.run(program, cwd=ROOT, check=True, timeout=PATIENCE)
