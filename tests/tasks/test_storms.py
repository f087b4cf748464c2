"""The child of a worker whose tasks run into their soft time limits inside lock calls, and which has more to do."""

import os
import signal
import threading
import time
from contextlib import contextmanager

import celery.exceptions
import pytest
from celery.exceptions import SoftTimeLimitExceeded

from django_rlock import FairLock
from tests.celery_app import records, tasks
from tests.eventually import eventually
from tests.faults.storm_kinds import subject

pytestmark = pytest.mark.usefixtures("locks_of_workers")

LIMITS = 100
TOGETHER = 120.0
"""Seconds that all the results may take together; a child that has stopped is then shown before the test's own end."""

EXCLUDED_BY = {"read": "write", "write": "read"}
"""What the other process takes, where it is another kind."""


@contextmanager
def taken_all_the_time(kind, name):
    """Let another process take a lock again and again; it must go on until the end."""
    stop, served = threading.Event(), []

    def take_turns():
        lock = subject(kind, name)
        while not stop.is_set():
            if grant := lock.acquire(wait_time=1):
                served.append(1)
                lock.give_back(grant)

    other = threading.Thread(target=take_turns)
    other.start()
    try:
        yield
        before = len(served)
        eventually(lambda: len(served) > before + 3)
    finally:
        stop.set()
        other.join()


@contextmanager
def shown_where_it_stands(worker, log):
    """Where something does not come, fail with the stacks of the child."""
    try:
        yield
    except (celery.exceptions.TimeoutError, AssertionError) as error:
        os.kill(records.wait_for(f"{log}:pids"), signal.SIGABRT)
        eventually(lambda: "Current thread" in worker.log.read_text())
        raise AssertionError(worker.log.read_text()) from error


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["fair", "rlock", "spin", "fenced", "read", "write", "multi", "permits"])
def test_a_child_outlives_a_hundred_soft_limits_inside_lock_calls(start_worker, log, kind):
    with start_worker("storm", "--pool", "prefork", "-c", "1") as worker, shown_where_it_stands(worker, log):
        give_up_at = time.monotonic() + TOGETHER

        def run(task, *args):
            return task.apply_async((log, *args), queue=worker.queue).get(timeout=give_up_at - time.monotonic())

        with taken_all_the_time(EXCLUDED_BY.get(kind, kind), f"storm:{log}"):
            for number in range(1, LIMITS + 1):
                with pytest.raises(SoftTimeLimitExceeded):
                    run(tasks.runs_into_its_limit, kind)
                if number % 5 == 0:
                    run(tasks.sweeps, kind)
        renewed_by = run(tasks.renews)
        assert {records.wait_for(f"{log}:pids") for _ in range(LIMITS)} == {renewed_by}
        with FairLock(f"work:{log}", wait_time=20):
            pass
