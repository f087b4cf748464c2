"""Tasks under locks. ``log`` names a test's records; what is called gated waits until the test says go."""

import time
from functools import partial

from celery.exceptions import Ignore, Reject

from django_rlock.celery import LockedTask
from tests.celery_app import app
from tests.celery_app.records import inside, wait_for

WORK = 0.01
"""Seconds that a task is inside its lock, so that another has time to get in as well."""

locked = partial(app.task, base=LockedTask, bind=True, lock_key="work:<log>")
soon = {"lock_retry_delay": 0.05, "lock_retry_max_delay": 0.2}


def work(task, log: str, gated: bool = False) -> str:
    with inside(log, task.request.id):
        if gated:
            wait_for(f"{log}:go")
        else:
            time.sleep(WORK)
    return f"done {log}"


@locked(**soon)
def skips(self, log, gated=False):
    return work(self, log, gated)


@locked(on_locked="wait")
def waits(self, log, gated=False):
    return work(self, log, gated)


@locked(on_locked="retry", max_retries=1, **soon)
def retries(self, log, gated=False):
    return work(self, log, gated)


@locked(on_locked="retry", lock_max_retries=2, **soon)
def retries_twice(self, log):
    return work(self, log)


@locked(on_locked="raise")
def raises_or_runs(self, log, gated=False):
    return work(self, log, gated)


@locked(on_locked=lambda task, error: f"{task.name} left {error.lock_name} alone")
def asks(self, log):
    return work(self, log)


@locked(lock_using="short", acks_late=True, reject_on_worker_lost=True, **soon)
def survives(self, log):
    return work(self, log, gated=True)


@locked(lock_using="fragile", **soon)
def needs_fragile(self, log):
    return work(self, log)


@locked(lock_using="fragile", lock_max_retries=0)
def needs_fragile_now(self, log):
    return work(self, log)


@locked(max_retries=1, on_locked="retry", **soon)
def fails_once(self, log):
    with inside(log, self.request.id):
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return [self.request.retries, self.request.get("rlock_retries", 0)]


@locked()
def leaves(self, log, how):
    with inside(log, self.request.id):
        raise {"ignore": Ignore(), "reject": Reject("not now", requeue=False), "error": ValueError("no")}[how]


@locked(on_locked="wait")
def names_its_lock(self, log, gated=True):
    work(self, log, gated)
    self.lock.check()
    return self.lock.name


@locked(lock_key="work:<log>:<depth>", on_locked="retry", **soon)
def nests(self, log, depth):
    return [depth, *self(log, depth - 1)] if depth else [0]


@app.task
def text_of(value):
    return f"got {value}"
