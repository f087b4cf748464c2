"""Platforms store the memory of a process that has loaded the project, and start many copies of it: with the same
process id, the same objects, and a wall clock that jumps."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_rlock import RLock, Semaphore, rlock
from django_rlock._core import process
from django_rlock._core.clock import wall_offset
from django_rlock._monitoring import reporter
from django_rlock._transport import identity
from django_rlock._transport.identity import client_id
from django_rlock.locks.holds import WAITS
from tests.beside import beside, visit
from tests.eventually import PATIENCE, eventually, in_threads
from tests.processes import ROOT, ClientProcess

HOUR = 3600.0
COPIES = """
import os
from django_rlock import CountDownLatch, FairLock, MultiLock, ReadWriteLock, RLock, Semaphore
from django_rlock._core import process
from django_rlock._core.clock import wall_offset
from django_rlock._transport import identity
from tests.forking import fork_in_c, in_child

locks = [FairLock("a"), RLock("b"), MultiLock(RLock("c"), RLock("d")), ReadWriteLock("e").write_lock]

def use():
    for each in locks:
        with each:
            pass
    Semaphore("f").try_set_permits(1)
    CountDownLatch("g").try_set_count(2)

def copy():
    process.pid = os.getpid()  # that of a copy is the original's
    if was_used:
        identity._process.clocks -= 3600  # but time has passed
    got.append([each.acquire(wait_time=0) for each in locks] + [Semaphore("f").acquire(wait_time=0)])
    CountDownLatch("g").count_down()
    assert got[0] == [expected] * 5, got

if was_used:
    use()
else:
    in_child(use)  # another process
for expected in True, False:
    got = []
    in_child(copy, fork_in_c)
assert CountDownLatch("g").count() == 0
"""
TOLD = """
import sys
import django
from django.conf import settings
settings.configure(CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": sys.argv[1]}})
django.setup()
from django_rlock import LockNotOwnedError, RLock
from django_rlock._transport.identity import client_id
from django_rlock.signals import lock_lost
import snapshot_restore_py

lost = []
lock_lost.connect(lambda reason, **_: lost.append(reason), weak=False)
lock, before = RLock("stock:42", on_lost=print), client_id()
lock.acquire()
for hook in snapshot_restore_py.hooks:
    hook()
assert lock.lost
assert client_id() != before
with RLock("stock:43"):
    pass
assert not RLock("stock:42").acquire(wait_time=0)
"""


@pytest.mark.parametrize("use", ["used", "loaded"])
def test_copies_of_a_process_exclude_each_other(server: Any, redis_client: Any, use: str) -> None:
    """Whether the original has used a lock before its memory was stored, or has only loaded the project."""
    with ClientProcess(server.url) as process:
        process.run(COPIES, was_used=use == "used")


def test_what_the_platform_tells_is_heard(server: Any, redis_client: Any, tmp_path: Path) -> None:
    """Its hook comes after the restore, in each copy; what the original held is lost for all."""
    hooks = "hooks = []\n\ndef register_after_restore(hook):\n    hooks.append(hook)\n"
    (tmp_path / "snapshot_restore_py.py").write_text(textwrap.dedent(hooks))
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", TOLD, server.url]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True, timeout=PATIENCE)


@pytest.fixture
def jump() -> Iterator[Callable[[], None]]:
    """Makes the wall clock jump, in the eyes of the client id."""

    def jump() -> None:
        identity._process.clocks -= HOUR

    yield jump
    identity._process.clocks = wall_offset()


def holders_inside() -> list[str]:
    with RLock("stock:42") as lock:
        return lock.holders()


async def test_a_jump_with_nothing_held_is_a_new_client(binding, kind, jump):
    before = client_id()
    await binding.acquire(kind("stock:42"))
    jump()
    await binding.acquire(kind("stock:43"))
    assert client_id() == before  # holds are found by it
    await binding.release(kind("stock:43"))
    await binding.release(kind("stock:42"))
    await binding.acquire(kind("stock:42"))
    assert client_id() != before
    assert (await binding.call(kind("stock:42"), "holders"))[0].startswith(client_id())
    await binding.release(kind("stock:42"))
    after = client_id()
    await binding.acquire(kind("stock:42"))
    assert client_id() == after
    await binding.release(kind("stock:42"))


def test_a_lock_that_is_held_after_a_jump_does_not_make_others_read_the_clocks_again(jump, monkeypatch):
    looks: list[float] = []
    with RLock("stock:42"):
        monkeypatch.setattr(identity, "has_jumped", looks.append)
        jump()
        for _ in range(3):
            with RLock("stock:43"):
                pass
    assert looks == []


def test_a_jump_is_seen_by_an_owner_that_has_not_taken_a_lock_before(jump):
    before = client_id()
    jump()
    holders: list[str] = []
    in_threads(lambda: holders.extend(holders_inside()))
    assert not holders[0].startswith(before)


def test_who_waits_keeps_its_client_id(jump):
    before, lock = client_id(), rlock("stock:42", owner="order 7")
    lock.acquire()
    with beside(visit, rlock("stock:42", wait_time=PATIENCE)):
        eventually(WAITS.snapshot)
        lock.hand_over()  # nothing is held now
        jump()
        Semaphore("licences").try_set_permits(1)
        assert client_id() == before
        rlock("stock:42", owner="order 7").release()


def test_requests_of_semaphores_notice_a_jump(jump):
    semaphore, before = Semaphore("licences"), client_id()
    semaphore.try_set_permits(1)
    assert client_id() == before
    jump()
    assert semaphore.acquire(wait_time=0)
    assert client_id() != before


def test_reports_come_under_the_new_client_id(jump):
    former = reporter._reporter.value
    jump()
    with RLock("stock:42"):
        pass
    assert reporter._reporter.value is not former


def test_the_client_id_is_drawn_at_its_first_use():
    made = identity._Process()
    assert "client_id" not in vars(made)
    ids = set[str]()
    gate = threading.Barrier(8)

    def look() -> None:
        gate.wait()
        ids.add(made.client_id)

    in_threads(*[look] * 8)
    assert ids == {made.client_id}
    assert process.pid == os.getpid()
