"""Tasks under locks. ``log`` names a test's records; what is called gated waits until the test says go."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any

from celery import Task
from celery.backends.redis import RedisBackend
from celery.exceptions import Reject
from django.utils.safestring import SafeString

from django_rlock import RLock
from django_rlock._tasks.deliveries import CONTENT_TYPE, RECEIVED
from django_rlock.celery import LockedTask
from tests.celery_app import app, records
from tests.celery_app.records import inside, record, until, wait_for
from tests.faults.storm import Renewal, Storm
from tests.faults.storm_kinds import subject

WORK = 0.01
"""How long a task holds its lock, in seconds, so that another one has time to take it as well."""

LATER = 3
"""When a task comes again by itself, in seconds: later than a test does something first on a machine that stalls."""

locked = partial(app.task, base=LockedTask, bind=True, lock_key="work:<log>")
soon: dict[str, Any] = {"lock_retry_delay": 0.05, "lock_retry_max_delay": 0.2}
in_queue: dict[str, Any] = {"lock_scope": "queue", **soon}
late: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True, **soon}


def work(task, log: str, gated: bool = False) -> str:
    with inside(log, task.request.id):
        if gated:
            wait_for(f"{log}:go")
        else:
            time.sleep(WORK)
    return f"done {log}"


def gated_work(task, log: str) -> str:
    return work(task, log, gated=True)


def works(name: str, body: Callable[..., str] = work, **options: Any):
    """A task that works under its lock, with these options."""
    return locked(name=f"{__name__}.{name}", **options)(body)


skips = works("skips", **soon)


class Runs:
    """A mixin as in Celery's documentation."""

    name: str
    run: Callable[..., Any]

    def __call__(self, *args, **kwargs):
        record(f"{args[0]}:calls", self.name)
        return self.run(*args, **kwargs)


class RunsAsATask(Runs, Task[..., Any]):
    abstract = True


class RunsFirst(Runs, LockedTask[..., Any]):
    pass


class RunsLast(LockedTask[..., Any], RunsAsATask):
    pass


skips_within_a_call = works("skips_within_a_call", base=RunsFirst)
skips_within_a_call_of_a_later_base = works("skips_within_a_call_of_a_later_base", base=RunsLast)
stops_its_chain = works("stops_its_chain", on_skipped="stop_chain")
waits = works("waits", on_locked="wait")
waits_late = works("waits_late", on_locked="wait", **late)
waits_late_and_briefly = works("waits_late_and_briefly", on_locked="wait", lock_wait_time=0.8, acks_late=True)
retries = works("retries", on_locked="retry", max_retries=1, **soon)


@locked(on_locked="retry", **soon)
def tells_its_message(self, log, number):
    """Return what the message says besides its arguments."""
    names = "argsrepr", "kwargsrepr", "expires", "stamps", "ignore_result", "compression"
    found = {name: getattr(self.request, name, None) for name in names}
    return {**found, "priority": self.request.delivery_info["priority"]}


@locked(on_locked="retry", acks_late=True, **soon)
def takes_a_number(self, log, number):
    return work(self, log, gated=True)


retries_twice = works("retries_twice", on_locked="retry", lock_max_retries=2, **soon)
raises_or_runs = works("raises_or_runs", on_locked="raise")
asks = works("asks", on_locked=lambda task, error: f"{task.name} left {error.lock_name} alone")
survives = works("survives", gated_work, lock_using="short", **late)


class Obedient(RedisBackend):
    """Results of which each state is stored, even after a success, as some backends on databases do."""

    def _store_result(self, task_id, result, state, traceback=None, request=None, **_):
        meta = self._get_result_meta(result, state, traceback, request)  # type: ignore[attr-defined]
        self.set(self.get_key_for_task(task_id), self.encode({**meta, "task_id": task_id}))
        return result


obedient = cached_property(lambda _: Obedient(app=app, url=app.conf.result_backend))


tells_when_it_starts = works("tells_when_it_starts", gated_work, backend=obedient, track_started=True, **late)
tells_its_errors = works(
    "tells_its_errors", gated_work, backend=obedient, track_started=True, store_errors_even_if_ignored=True, **late
)
lasts = works("lasts", **late)
dies_twice_at_most = works("dies_twice_at_most", acks_late=True, lock_max_deaths=2, **soon)
lasts_and_keeps_nothing = works("lasts_and_keeps_nothing", acks_late=True, ignore_result=True, **soon)
lasts_and_is_late = works(
    "lasts_and_is_late", gated_work, acks_late=True, lock_retry_delay=LATER, lock_retry_max_delay=LATER
)
"""Its copies come later than a test reads and forgets its result."""


@locked(**late)
def fails_at_first(self, log):
    """Fail where it is the first run of the test."""
    with inside(log, self.request.id):
        if record(f"{log}:runs", 1) == 1:
            wait_for(f"{log}:go")
            raise ValueError(log)
    return f"done {log}"


queued = partial(locked, **in_queue)


queues = works("queues", **in_queue)
queues_or_raises = works("queues_or_raises", on_queued="raise", **in_queue)
queues_late = works("queues_late", acks_late=True, reject_on_worker_lost=True, **in_queue)


@queued(acks_late=True)
def queues_and_is_requeued(self, log):
    with inside(log, self.request.id):
        if self.request.delivery_info["redelivered"]:
            return f"done {log}"
        raise Reject("not now", requeue=True)


@queued()
def forwards_its_headers(self, log):
    """Send two messages with one key, with the headers of its own."""
    return [queues.apply_async([f"{log}-next", True], headers=self.request.headers).id for _ in range(2)]


queues_again = works("queues_again", on_queued="again", **in_queue)


def catch_up(task, log):
    """Record up to which change it has come."""
    with inside(log, task.request.id):
        change = records.client().get(f"{log}:changes")
        time.sleep(WORK)
        record(f"{log}:seen", int(change or 0))


catching_up = partial(queued, acks_late=True, reject_on_worker_lost=True)
catches_up = catching_up(on_queued="again", name="catches_up")(catch_up)
catches_up_with_the_last = catching_up(on_queued="replace", name="catches_up_with_the_last")(catch_up)


def count_message(task, log, number, gated=False):
    record(f"{log}:numbers", number)
    return work(task, log, gated)


queues_the_earlier = queued(on_queued="earlier", name="queues_the_earlier")(count_message)
queues_the_earlier_late = queued(
    on_queued="earlier", name="queues_the_earlier_late", acks_late=True, reject_on_worker_lost=True
)(count_message)
queues_the_last = queued(on_queued="replace", name="queues_the_last")(count_message)
waits_for_the_last = queued(on_queued="replace", on_locked="wait", name="waits_for_the_last")(count_message)
queues_the_last_until_it_starts = locked(
    lock_scope="until_start", on_queued="replace", name="queues_the_last_until_it_starts"
)(count_message)


def key_that_fails(task, log, how):
    """The lock's name for a sender; in a worker the soft time limit or an error comes instead."""
    if not task.request.called_directly:
        if how == "error":
            raise ConnectionError("the database is away")
        signal.raise_signal(signal.SIGUSR1)  # Celery's signal, to Celery's handler
    return f"work:{log}"


@queued(lock_key=key_that_fails)
def queues_and_never_begins(self, log, how):
    return work(self, log)


@queued(autoretry_for=(ConnectionError,), retry_backoff=False, default_retry_delay=LATER)
def queues_and_is_retried(self, log):
    with inside(log, self.request.id):
        if self.request.retries == 0:
            raise ConnectionError
    return f"done {log}"


class RetriesSlowly(LockedTask[..., Any]):
    """Waits, once its lock is released, before Celery's ``autoretry_for`` sends its message again."""

    def retry(self, *args, **kwargs):
        [log] = self.request.args or []
        wait_for(f"{log}:go")
        return super().retry(*args, **kwargs)


@queued(base=RetriesSlowly, autoretry_for=(ConnectionError,), max_retries=1, default_retry_delay=0.1)
def queues_and_is_retried_slowly(self, log, fails=1):
    with inside(log, self.request.id):
        if self.request.retries < fails:
            raise ConnectionError
    return f"done {log}"


@queued(max_retries=1)
def queues_and_retries(self, log):
    with inside(log, self.request.id):
        if self.request.retries == 0:
            raise self.retry(countdown=LATER)
    return f"done {log}"


queues_briefly = works("queues_briefly", lock_queue_time=1, **in_queue)
queues_until_it_starts = works("queues_until_it_starts", gated_work, lock_scope="until_start")
needs_fragile = works("needs_fragile", lock_using="fragile", **soon)
needs_fragile_now = works("needs_fragile_now", lock_using="fragile", lock_max_retries=0)
retries_fragile = works("retries_fragile", lock_using="fragile", on_locked="retry", **soon)


@locked(max_retries=1, on_locked="retry", **soon)
def fails_once(self, log):
    with inside(log, self.request.id):
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return [self.request.retries, self.request.get("rlock_retries", 0)]


@locked(max_retries=1, **soon)
def retries_itself(self, log):
    """Fail the first time, in a way that says when to go on."""
    with inside(log, self.request.id):
        if self.request.retries == 0:
            raise self.retry(countdown=LATER)
    return f"done {log}"


@locked(max_retries=1, **soon)
def retries_in_half_a_second(self, log):
    with inside(log, self.request.id):
        if self.request.retries == 0:
            raise self.retry(countdown=0.5)
    return f"done {log}"


@locked(max_retries=1, autoretry_for=(ZeroDivisionError,), retry_backoff=LATER, retry_jitter=False, **soon)
def is_retried(self, log):
    with inside(log, self.request.id):
        _ = 1 / self.request.retries
    return f"done {log}"


class RetriesOutside(LockedTask[..., Any]):
    """Sends its message again outside of its run, at a point that the message names."""

    def __call__(self, log, point):
        self.retry_at("before its run", point)
        done = super().__call__(log, point)
        self.retry_at("after its run", point)
        return done

    def on_success(self, retval, task_id, args, kwargs):
        self.retry_at("on_success", args[1])

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        self.retry_at("after_return", args[1])

    def retry_at(self, point, chosen):
        if point == chosen and self.request.retries == 0 and "rlock_token" in vars(self.request):
            (log, _) = self.request.args or ()
            wait_for(f"{log}:go")
            raise self.retry(countdown=0, headers={"theirs": "kept"})


@locked(base=RetriesOutside, acks_late=True, ignore_result=True, lock_scope="queue", on_locked="retry", **soon)
def retries_outside(self, log, point):
    record(f"{log}:headers", sorted(self.request.headers.keys() - {RECEIVED, CONTENT_TYPE}))
    return work(self, log)


@locked(lock_using="short", **late)
def takes_its_container_along(self, log):
    """End the whole worker, as a container ends that has no memory left."""
    record(f"{log}:starts", {"id": self.request.id})
    os.killpg(0, signal.SIGKILL)


@locked()
def dies(self, log, how):
    """End the process, or wait until it is ended, which takes SIGKILL."""
    with inside(log, self.request.id):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if how == "exit":
            os._exit(1)
        wait_for(f"{log}:go")


@app.task
def keeps(log):
    """Leave a lock of no task's held."""
    assert RLock(f"kept:{log}").acquire(wait_time=records.WAIT)


@locked()
def starts_a_program(self, log):
    """As docs/celery.md says, so that it ends with the process."""
    with subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "sleep", str(2 * records.WAIT)]) as program:
        records.record(f"{log}:program", program.pid)


@locked(lock_key=lambda _, log: SafeString(f"work:{log}"))
def dies_under_a_safe_name(self, log):
    with inside(log, self.request.id):
        wait_for(f"{log}:go")


@locked(on_locked="wait")
def names_its_lock(self, log, gated=True):
    work(self, log, gated)
    self.lock.check()
    return self.lock.name


@locked(lock_key="work:<log>:<depth>")
def dies_deep(self, log, depth):
    if depth:
        self(log, depth - 1)
    else:
        work(self, log, gated=True)


@locked(lock_key="work:<log>:<depth>", on_locked="retry", **soon)
def nests(self, log, depth):
    return [depth, *self(log, depth - 1)] if depth else [0]


@app.task
def runs_into_its_limit(log, kind):
    """Use locks until what a soft time limit raises strikes inside."""
    record(f"{log}:pids", os.getpid())
    lock = subject(kind, f"storm:{log}")

    def use_locks():
        with lock.block():
            pass
        if grant := lock.acquire(wait_time=0.002):
            lock.extend(grant, 20)
            lock.give_back(grant)

    while True:
        _storm().over(use_locks)


@app.task
def sweeps(log, kind):
    """Release what interrupted tasks of this process have left."""
    subject(kind, f"storm:{log}").sweep()


@cache
def _storm():
    return Storm(lambda: signal.raise_signal(signal.SIGUSR1))  # Celery's signal, to Celery's handler


@locked(lock_using="short", on_locked="wait")
def renews(self, log):
    """Keep the lock until it has been renewed."""
    until(Renewal(lambda: self.lock.remaining_lease() or 0.0).seen)
    return os.getpid()


@app.task
def all_of(values):
    return values


@app.task
def text_of(value):
    return f"got {value}"


@app.task
def leaves_a_lock(log, **options):
    """Without a base class, and without a block. Returns the process, and how often the lock is held now."""
    lock = RLock(f"left:{log}", **options)
    assert lock.acquire(wait_time=WORK)
    return os.getpid(), lock.hold_count()
