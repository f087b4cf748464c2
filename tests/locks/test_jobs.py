"""A thread of a library runs one job after another: what a job left held without a block is not the next job's.

But no job ends what other code keeps: the thread's own function, a module, a generator, a hook of the library.
"""

import contextlib
import queue
import sysconfig
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

from django_rlock import FairLock, RLock
from django_rlock.locks import watchdog
from django_rlock.locks.holds import HOLDS
from tests.background import renew_now
from tests.beside import in_another_thread
from tests.eventually import UNTIL_SERVED, eventually
from tests.locks.leaving import given_back, lock, take, visit

__all__ = ["lock"]

Call = Callable[[Callable[[], Any]], Any]
"""Runs a function as a job, and returns its result."""

# --- libraries --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def by_gevent() -> Iterator[Call]:
    pool = pytest.importorskip("gevent.threadpool").ThreadPool(1)
    yield pool.apply
    pool.kill()


@contextlib.contextmanager
def by_eventlet() -> Iterator[Call]:
    with warnings.catch_warnings(action="ignore"):  # it calls itself deprecated
        tpool = pytest.importorskip("eventlet.tpool")
    tpool.set_num_threads(1)
    yield tpool.execute
    tpool.killall()


@contextlib.contextmanager
def by_trio() -> Iterator[Call]:
    trio = pytest.importorskip("trio")
    yield lambda call: trio.run(trio.to_thread.run_sync, call)


@contextlib.contextmanager
def by_anyio() -> Iterator[Call]:
    anyio = pytest.importorskip("anyio")
    pytest.importorskip("trio")

    async def run(call: Callable[[], Any]) -> Any:
        return await anyio.to_thread.run_sync(call)

    yield lambda call: anyio.run(run, call, backend="trio")


@contextlib.contextmanager
def by_thread_pool() -> Iterator[Call]:
    """It tells nobody when a job has ended."""
    with ThreadPool(1) as pool:
        yield pool.apply


@contextlib.contextmanager
def by_executor() -> Iterator[Call]:
    with ThreadPoolExecutor(1) as pool:
        yield lambda call: pool.submit(call).result()


@contextlib.contextmanager
def by_twisted() -> Iterator[Call]:
    pool = pytest.importorskip("twisted.python.threadpool").ThreadPool(1, 1)
    pool.start()
    yield waiting(pool.callInThread)
    pool.stop()


@contextlib.contextmanager
def by_waitress() -> Iterator[Call]:
    dispatcher = pytest.importorskip("waitress.task").ThreadedTaskDispatcher()
    dispatcher.set_thread_count(1)
    yield waiting(lambda job: dispatcher.add_task(types.SimpleNamespace(service=job)))
    dispatcher.shutdown()


@contextlib.contextmanager
def by_huey() -> Iterator[Call]:
    broker = pytest.importorskip("huey").MemoryHuey()
    jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    task = broker.task(name="task")(lambda: jobs.get()())  # noqa: PLW0108 - not now
    consumer = broker.create_consumer(workers=1, initial_delay=0.01, check_worker_health=False, periodic=False)
    ((_, thread),) = consumer.worker_threads
    thread.start()

    def start(job: Callable[[], None]) -> None:
        jobs.put(job)
        task()

    yield waiting(start)
    consumer.stop_flag.set()
    thread.join()


@contextlib.contextmanager
def by_worker() -> Iterator[Call]:
    with working() as run:
        yield run


@contextlib.contextmanager
def by_wrapped_worker() -> Iterator[Call]:
    """As Sentry and others wrap the functions of all threads."""
    with working(wrapped=True) as run:
        yield run


@contextlib.contextmanager
def by_guarded_worker() -> Iterator[Call]:
    """As CherryPy's: another method than the thread's own loops."""
    with working(library().GuardedWorker) as run:
        yield run


LIBRARIES = [
    by_gevent, by_eventlet, by_trio, by_anyio, by_thread_pool, by_executor, by_twisted,
    by_waitress, by_huey, by_worker, by_wrapped_worker, by_guarded_worker,
]  # fmt: skip


def waiting(start: Callable[[Callable[[], None]], object]) -> Call:
    """Wait for the result of a job that a library starts."""

    def run(call: Callable[[], Any]) -> Any:
        def job() -> None:
            try:
                done.set_result(call())
            except BaseException as error:  # noqa: BLE001 - the test's
                done.set_exception(error)

        done: Future[Any] = Future()
        start(job)
        return done.result(UNTIL_SERVED)

    return run


# The threads of Dramatiq and distributed are like this; and those of the libraries that nobody has tried.
SOURCE = """
import threading

class Worker(threading.Thread):
    def __init__(self, jobs, hooks):
        super().__init__()
        self.jobs = jobs
        self.hooks = hooks

    def run(self):
        self.begin()
        while (job := self.jobs.get()) is not None:
            self.hooks.before()
            self.process(job)
            self.hooks.after()
        self.end()

    def begin(self):
        self.hooks.begin()

    def process(self, job):
        job()

    def end(self):
        self.hooks.end()

class GuardedWorker(Worker):
    def run(self):
        try:
            self.serve()
        finally:
            self.jobs = None

    serve = Worker.run

def wrapped(function):
    def wrapper(*args):
        try:
            return function(*args)
        finally:
            del args
    return wrapper
"""


def library(name: str = "library") -> Any:
    """A package that is installed."""
    module = types.ModuleType(f"{name}.workers")
    exec(compile(SOURCE, f"{sysconfig.get_path('purelib')}/{name}/workers.py", "exec"), vars(module))
    return module


class Hooks:
    """What a library calls before and after jobs."""

    def begin(self) -> None: ...

    def before(self) -> None: ...

    def after(self) -> None: ...

    def end(self) -> None: ...


@contextlib.contextmanager
def working(worker: Any = None, hooks: Any = None, wrapped: bool = False) -> Iterator[Call]:
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    module = library()
    if wrapped:
        module.Worker.run = module.wrapped(module.Worker.run)
    thread = (worker or module.Worker)(jobs, hooks or Hooks())
    thread.start()
    try:
        yield waiting(jobs.put)
    finally:
        jobs.put(None)
        thread.join()


@pytest.fixture
def run() -> Iterator[Call]:
    with working() as run:
        yield run


# --- what jobs leave held ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_library", LIBRARIES)
def test_what_a_job_left_held_is_not_the_next_ones(redis_client, by_library, caplog):
    lock = FairLock("stock:42", wait_time=0)
    with by_library() as run:
        assert run(lambda: take(lock))
        assert run(lambda: visit(lock)) == 1
    assert "has ended and still held lock 'stock:42', acquired at " + take.__code__.co_filename in caplog.text
    assert "owner=" in caplog.text
    assert "hand_over()" in caplog.text
    assert not redis_client.exists("rlock:stock:42")


@pytest.mark.parametrize("by_library", LIBRARIES)
def test_what_the_last_job_left_held_is_given_back(redis_client, by_library):
    with by_library() as run:
        run(lambda: take(RLock("stock:42")))
        eventually(lambda: given_back(redis_client))


def test_each_kind_that_a_job_left_held_is_given_back(redis_client, run, lock):
    for _ in range(2):
        run(lambda: take(lock) and take(lock))
        assert run(lambda: visit(lock)) == 1
    run(lambda: take(lock))
    eventually(lambda: given_back(redis_client))


def test_what_a_failed_job_left_held_is_given_back(redis_client, run):
    """Even if the error keeps its frames."""

    def fail() -> None:
        take(RLock("stock:42"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(fail)
    eventually(lambda: given_back(redis_client))


@pytest.mark.parametrize("by_library", [by_executor, by_thread_pool, by_worker])
def test_a_chosen_lease_runs_on_for_nobody(redis_client, by_library, caplog):
    lock = RLock("stock:42", lease_time=60)
    with by_library() as run:
        assert run(lambda: take(lock))
        assert run(lambda: take(lock)) is False
    assert redis_client.exists("rlock:stock:42")
    assert not HOLDS
    assert "still held" not in caplog.text


class Thing:
    """What a job has been given."""

    def visit(self, lock: Any) -> int:
        return visit(lock)

    def take(self, lock: Any) -> bool:
        return take(lock)


@pytest.mark.parametrize("lease", [None, 60])
def test_what_a_job_was_given_is_dropped_soon(redis_client, run, lease, monkeypatch):
    """Even if it has left a lock held."""
    monkeypatch.setattr(watchdog, "JOB_CHECK", 0.01)
    thing = Thing()
    dropped = weakref.ref(thing)
    assert run(partial(thing.take, RLock("stock:42", lease_time=lease)))
    run(int)  # a library may keep its last job
    del thing
    if not lease:
        eventually(lambda: given_back(redis_client))
    eventually(lambda: dropped() is None)
    assert redis_client.exists("rlock:stock:42") == bool(lease)
    assert not HOLDS


def test_what_a_job_with_a_block_was_given_is_dropped_at_once(run):
    thing = Thing()
    dropped = weakref.ref(thing)
    assert run(partial(thing.visit, RLock("stock:42"))) == 1
    run(int)
    del thing
    assert dropped() is None


def test_the_jobs_of_two_threads_exclude_each_other(redis_client):
    with working() as one, working() as other:
        assert one(lambda: take(RLock("stock:42")))
        assert other(lambda: take(RLock("stock:42"))) is False
        eventually(lambda: given_back(redis_client))


@pytest.mark.parametrize("by_library", [by_gevent, by_eventlet, by_trio])
def test_a_job_that_only_takes_a_lock_is_refused(redis_client, by_library):
    with by_library() as run, pytest.raises(RuntimeError, match="does nothing else"):
        run(RLock("stock:42").acquire)
    assert not redis_client.keys("*stock:42*")


# --- what other code keeps --------------------------------------------------------------------------------------------


def is_kept(lock: Any, redis_client: Any) -> bool:
    """Whether this thread holds a lock still after the watchdog has looked at it."""
    renewed = HOLDS.snapshot()[0].confirmed_at()
    renew_now()
    eventually(lambda: not HOLDS or HOLDS.snapshot()[0].confirmed_at() > renewed)
    lock.acquire(wait_time=0)
    counted = HOLDS.snapshot()[0].count
    lock.release()
    return counted == 2 and bool(redis_client.exists("rlock:stock:42"))


def test_a_job_keeps_what_its_functions_take_and_release(redis_client, run):
    lock = RLock("stock:42")

    def job() -> bool:
        take(lock)
        kept = is_kept(lock, redis_client)
        visit(lock)
        lock.release()
        return kept and not HOLDS

    assert run(job)


def test_the_projects_own_loop_keeps_a_lock_over_its_rounds(redis_client):
    lock, kept = RLock("stock:42"), list[bool]()

    def loop() -> None:
        for job in [lambda: take(lock), lambda: is_kept(lock, redis_client)]:
            kept.extend([job()])
        lock.release()

    in_another_thread(loop)
    assert kept == [True, True]


def test_the_projects_own_loop_may_be_installed(redis_client, run):
    """As a package that has both the loop and the code that takes the lock."""
    module = types.ModuleType("library.shop")
    exec("def take(lock): return lock.acquire() is True", vars(module))
    lock = RLock("stock:42")
    assert run(lambda: module.take(lock))
    assert run(lambda: is_kept(lock, redis_client))
    run(lock.release)


def test_a_subclass_of_the_project_keeps_a_lock(redis_client):
    lock = RLock("stock:42")

    class Mine(library().Worker):  # type: ignore[misc]
        def begin(self) -> None:
            lock.acquire()

        def end(self) -> None:
            lock.release()

    with working(Mine) as run:
        assert run(lambda: is_kept(lock, redis_client))
    assert not HOLDS


@pytest.mark.parametrize(("takes", "releases"), [("begin", "end"), ("before", "after")])
def test_hooks_keep_a_lock_for_the_job_between_them(redis_client, takes, releases):
    lock, hooks = RLock("stock:42"), Hooks()
    setattr(hooks, takes, lambda: take(lock))
    setattr(hooks, releases, lock.release)
    with working(hooks=hooks) as run:
        for _ in range(2):
            assert run(lambda: is_kept(lock, redis_client))
    eventually(lambda: not HOLDS)


def test_a_suspended_generator_keeps_a_lock(redis_client, run):
    lock = RLock("stock:42")

    def parts() -> Iterator[bool]:
        take(lock)
        yield True
        yield is_kept(lock, redis_client)
        lock.release()

    each = parts()
    assert run(lambda: next(each))
    assert run(lambda: next(each))
    assert run(lambda: next(each, None)) is None
    assert not HOLDS


def test_a_module_that_a_job_loads_keeps_a_lock(redis_client, run):
    lock = RLock("stock:42")
    run(lambda: exec("lock.acquire()", {"__name__": "leader", "lock": lock}))
    assert run(lambda: is_kept(lock, redis_client))
    run(lock.release)


def test_a_line_of_a_shell_keeps_a_lock(redis_client):
    """In the main thread, and nothing of the line's is on the stack later."""
    lock = RLock("stock:42")
    exec("lock.acquire()", {"__name__": "__console__", "lock": lock})
    assert is_kept(lock, redis_client)
    lock.release()
