"""A forked child owns nothing of its parent's, disturbs nothing of it, and works on its own."""

import io
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from django_rlock import FairLock, LockNotOwnedError, RLock
from django_rlock._core import callbacks, process, threads
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


# --- log records and callbacks ----------------------------------------------------------------------------------------


class SlowFile(io.RawIOBase):
    """A file each of whose writes lasts until it may end."""

    def __init__(self) -> None:
        self.is_written, self.may_end = threading.Event(), threading.Event()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.is_written.set()
        assert self.may_end.wait(PATIENCE)
        return len(data)


@pytest.fixture
def slow_file() -> Iterator[SlowFile]:
    """What the test's logger writes into, by way of a buffered stream, as ``sys.stderr`` is."""
    file = SlowFile()
    handler = logging.StreamHandler(io.TextIOWrapper(io.BufferedWriter(file)))
    logger.addHandler(handler)
    yield file
    file.may_end.set()
    logger.removeHandler(handler)


logger = logging.getLogger("tests.forks")


@pytest.fixture
def on_pause(monkeypatch) -> Callable[[Callable[[], object]], None]:
    """Sets what is called before each pause of a thread that waits for a fork, or of a fork that waits for a thread."""

    def call(function: Callable[[], object]) -> None:
        def sleep(seconds: float) -> None:
            function()
            time.sleep(seconds)

        monkeypatch.setattr(process, "time", SimpleNamespace(sleep=sleep))

    return call


def test_child_logs_although_a_thread_of_the_parent_was_logging(slow_file, on_pause):
    """The stream has a mutex, which Python does not recreate in a child."""

    def fork_meanwhile() -> int:
        pid = fork()
        slow_file.may_end.set()
        return pid

    callbacks.log(logger, logging.WARNING, "In the parent.")
    assert slow_file.is_written.wait(PATIENCE)
    on_pause(slow_file.may_end.set)
    in_child(lambda: logger.warning("In the child."), fork_meanwhile)


def test_no_callback_begins_during_a_fork(on_pause):
    waits, called = threading.Event(), threading.Event()
    on_pause(waits.set)
    process._forks.append(None)
    callbacks.post(called.set)
    assert waits.wait(PATIENCE)
    assert not called.is_set()
    process._forks.pop()
    assert called.wait(PATIENCE)


def test_callback_forks(monkeypatch):
    monkeypatch.setattr(process, "FORK_WAITS", float("inf"))
    call = threads.Call(lambda: in_child(use_callbacks))
    callbacks.post(call.run)
    assert call.wait(PATIENCE)
    call.result()


def test_callback_waits_for_the_thread_that_forks(monkeypatch):
    monkeypatch.setattr(process, "FORK_WAITS", 0.01)
    begun, forked = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert forked.wait(PATIENCE)

    call = threads.Call(wait)
    callbacks.post(call.run)
    assert begun.wait(PATIENCE)
    in_child(use_callbacks)
    forked.set()
    assert call.wait(PATIENCE)
    call.result()


def test_fork_that_a_signal_handler_interrupts(slow_file, on_pause, monkeypatch):
    """Python reports an exception in a hook of a fork, and forks."""
    interrupted: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: interrupted.append(each.exc_type))

    def interrupt() -> None:
        raise KeyboardInterrupt

    callbacks.log(logger, logging.WARNING, "In the parent.")
    assert slow_file.is_written.wait(PATIENCE)
    on_pause(interrupt)
    in_child(use_callbacks)
    assert interrupted == [KeyboardInterrupt]
    slow_file.may_end.set()
    use_callbacks()


def use_callbacks() -> None:
    called = threading.Event()
    callbacks.post(called.set)
    assert called.wait(PATIENCE)
