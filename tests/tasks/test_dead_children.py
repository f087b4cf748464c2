"""Children of a worker that die in the middle of a task: the worker frees what they held, and nothing else."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from django_rlock import FairLock, RLock
from django_rlock._tasks.holders import has_ended
from tests import namespaces
from tests.beside import beside
from tests.celery_app import BLIND, app, records, tasks
from tests.celery_app.records import starts, until
from tests.celery_app.workers import TEMPORARY
from tests.eventually import PATIENCE

pytestmark = pytest.mark.usefixtures("worker", "locks_of_workers")

SOON = 10
"""Seconds that a lock may take to be free, on a busy machine: a third of its lease."""


def kill(run, result):
    os.kill(run["pid"], signal.SIGKILL)


def revoke(run, result):
    app.control.revoke(result.id, terminate=True, signal="SIGKILL")


def wait_for_its_own_end(run, result):
    pass


DEATHS = [
    pytest.param("killed", {}, kill, id="killed"),
    pytest.param("revoked", {}, revoke, id="revoked"),
    pytest.param("late", {"time_limit": 1}, wait_for_its_own_end, id="hard time limit"),
    pytest.param("exit", {}, wait_for_its_own_end, id="exit"),
]


@pytest.mark.parametrize(("how", "options", "end"), DEATHS)
def test_the_lock_of_a_dead_child_is_free_at_once(log, how, options, end):
    result = tasks.dies.apply_async([log, how], **options)
    (run,) = starts(log, 1)
    end(run, result)
    with FairLock(f"work:{log}", wait_time=SOON):
        pass


def test_the_worker_watches_its_children_itself(start_worker, log):
    """Celery's pool notices an end seconds later, now and then; here it never does."""
    with start_worker("blind", "--pool", "prefork", "-c", "1", **{BLIND: "1"}) as blind:
        tasks.dies.apply_async([log, "killed"], queue=blind.queue)
        (run,) = starts(log, 1)
        kill(run, None)
        with FairLock(f"work:{log}", wait_time=SOON):
            pass
        assert f"pid:{run['pid']} exited" not in blind.last_lines(100)
        blind.kill()  # it would wait for the task


PARENT = """
import sys
import threading

import django
from celery.signals import worker_init
from django.conf import settings

caches = {name: {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url} for name, url in zip("abc", sys.argv[1:])}
locks = {"default": {"CACHE": "a"}, "quorum": {"NODES": list(caches), "QUARANTINE": 0}}
settings.configure(CACHES={**caches, "default": caches["a"]}, RLOCK=locks, INSTALLED_APPS=["django_rlock"])
django.setup()

from django_rlock import celery
from django_rlock._tasks.holders import free_the_dead
from django_rlock.locks import named_lock

worker_init.send(None)
assert len(threading.enumerate()) == 1
before = set(sys.modules)
for using in locks:
    free_the_dead(named_lock("stock:42", using=using), lambda holder: True, "it has ended")
print(sorted(set(sys.modules) - before))
"""


def test_to_free_locks_imports_no_module(own_server):
    """A child that is forked meanwhile would have a part of the module, and all its tasks would fail."""
    urls = [own_server(None).url for _ in range(3)]
    done = subprocess.run([sys.executable, "-c", PARENT, *urls], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "[]\n", done


def test_a_child_that_ends_as_it_should_frees_all_its_locks(start_worker, log):
    """It ends by ``os._exit``, without what is registered with ``atexit``."""
    with start_worker("replaced", "--pool", "prefork", "-c", "1", "--max-tasks-per-child", "1") as pool:
        tasks.keeps.apply_async((log,), queue=pool.queue).get(timeout=records.WAIT)
        with RLock(f"kept:{log}", wait_time=SOON):
            pass


def test_a_lock_is_free_whose_name_is_no_plain_string(log):
    """A template of Django makes such names."""
    tasks.dies_under_a_safe_name.delay(log)
    (run,) = starts(log, 1)
    kill(run, None)
    with FairLock(f"work:{log}", wait_time=SOON):
        pass


def test_all_locks_of_a_call_within_a_call_are_free(log):
    tasks.dies_deep.delay(log, 2)
    (run,) = starts(log, 1)
    kill(run, None)
    for depth in range(3):
        with FairLock(f"work:{log}:{depth}", wait_time=SOON):
            pass


def test_the_next_holder_keeps_the_lock_of_a_dead_child(log):
    tasks.dies.delay(log, "killed")
    (first,) = starts(log, 1)
    lock = FairLock(f"work:{log}")
    lock.force_release()
    with lock:
        kill(first, None)
        tasks.dies.delay(f"{log}-next", "exit")
        with FairLock(f"work:{log}-next", wait_time=SOON):  # the worker has seen to the first child before
            assert lock.owned()
        records.client().srem(f"{log}:inside", f"{first['pid']}:{first['id']}")


@pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))
def test_a_worker_whose_disk_is_full_frees_the_lock_of_a_dead_child(start_worker, log, tmp_path):
    full = namespaces.with_full_disk(tmp_path)
    options = ["--pool", "prefork", "-c", "1"]
    with start_worker("full", *options, before=full, **{TEMPORARY: str(tmp_path)}) as worker:
        tasks.dies.apply_async([log, "killed"], queue=worker.queue)
        (run,) = starts(log, 1)
        kill(run, None)
        with FairLock(f"work:{log}", wait_time=SOON):
            pass


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv, of util-linux, is not installed")
def test_a_program_that_is_tied_to_the_child_ends_with_it(log):
    tasks.starts_a_program.delay(log)
    program = records.wait_for(f"{log}:program")
    child = int(Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(child, signal.SIGKILL)
    with FairLock(f"work:{log}", wait_time=SOON):
        until(lambda: has_ended(program))


def test_a_duplicate_that_meets_the_lock_of_a_dead_worker_runs(start_worker, log):
    with start_worker("victim", "--pool", "prefork", "-c", "1") as victim:
        tasks.skips.apply_async([log, True], queue=victim.queue)
        (run,) = starts(log, 1)
        victim.kill()
    until(lambda: has_ended(run["pid"]))
    result = tasks.skips.delay(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"


MAIN_THREAD_ENDS = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_has_ended_when_its_last_thread_has():
    """The kernel ends threads one by one: the first may be gone while another still has a command under way."""
    with subprocess.Popen([sys.executable, "-c", MAIN_THREAD_ENDS], stdin=subprocess.PIPE) as ending:
        state = Path(f"/proc/{ending.pid}/stat")
        until(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z")
        assert not has_ended(ending.pid)
        ending.communicate()
    assert has_ended(ending.pid)


def test_a_process_that_is_being_reaped_has_ended():
    """/proc loses it bit by bit; a check meanwhile must not take it for alive again."""
    for _ in range(100):
        ended = subprocess.Popen(["true"])
        until(lambda pid=ended.pid: has_ended(pid))
        seen: list[bool] = []
        reaped = threading.Event()

        def look(pid=ended.pid, seen=seen, reaped=reaped) -> None:
            while not reaped.is_set():
                seen.append(has_ended(pid))

        with beside(look):
            until(lambda seen=seen: seen)
            ended.wait()
            reaped.set()
        assert all(seen)
