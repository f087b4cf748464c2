"""The Celery app of a campaign: ``python -m celery -A tests.campaign.app worker``.

Whose tasks they are is the plan's choice.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from celery import Celery
from celery.signals import task_internal_error, task_success, worker_process_init

from tests.campaign.plan import PLACE, PLAN, QUEUE, TASKS, VISIBILITY, WATCHDOG_TIMEOUT
from tests.celery_app.workers import use_temporary_folder
from tests.soak.records import ALONE, Log

LOOKS_EVERY = 0.1
"""Seconds between two looks of a body whether its lock is lost."""
_SOON = {"lock_retry_delay": 0.1, "lock_retry_max_delay": 1.0}

CONFIGURATION = {
    "task_default_queue": QUEUE,
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "task_publish_retry_policy": {"max_retries": 30, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.5},
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "worker_prefetch_multiplier": 1,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "broker_transport_options": {
        "visibility_timeout": VISIBILITY,
        "unacked_restore_interval": 0.5,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 2,  # else nobody delivers again for five minutes where who does so is killed at it
    },
}


# --- what is written down ---------------------------------------------------------------------------------------------

_runs = itertools.count()


@cache
def holds() -> Log:
    """Records who held a lock when, for the checker of tests.soak."""
    return Log(Path(PLAN["folder"]), f"p{os.getpid()}")


@cache
def fates() -> Log:
    """What became of tasks."""
    return Log(Path(PLAN["folder"]) / TASKS, f"p{os.getpid()}")


def _begin_files_anew() -> None:
    holds.cache_clear()
    fates.cache_clear()


os.register_at_fork(after_in_child=_begin_files_anew)


def work(task: Any, key: str, lasts: float) -> str:
    """Hold the lock for a number of seconds, and record what it promises meanwhile."""
    began = time.monotonic()
    task_id = str(task.request.id)
    run = f"{task_id}.{os.getpid()}.{next(_runs)}"
    lost, deadline = _promise(task)
    holds().write(
        "got", id=run, kind=task.name, place=PLACE, names=[key], mode=ALONE, amount=1, limit=1,
        owner=f"p{os.getpid()}.{run}", asked=began, got=began, deadline=began if lost else deadline,
        lease=WATCHDOG_TIMEOUT, token=None,
    )  # fmt: skip
    fates().write("began", task=task_id, at=began)
    try:
        while (left := began + lasts - time.monotonic()) > 0:
            time.sleep(min(left, LOOKS_EVERY))
            _look(task, run)
    finally:
        task.request.ended = time.monotonic()
        holds().write("leaving", id=run, at=task.request.ended)
    return f"done {key}"


def _look(task: Any, run: str) -> None:
    at = time.monotonic()
    lost, deadline = _promise(task)
    if lost:
        holds().write("lost", id=run, at=at)
    else:
        holds().write("seen", id=run, at=at, deadline=deadline, lease=WATCHDOG_TIMEOUT)


def _promise(task: Any) -> tuple[bool, float]:
    """Whether the lock is lost, and until when it is promised. Tasks without a lock promise it while they run."""
    from django_rlock._transport.identity import thread_owner
    from django_rlock.celery import LockedTask
    from django_rlock.locks.holds import HOLDS

    if not isinstance(task, LockedTask):
        return False, time.monotonic() + WATCHDOG_TIMEOUT
    found = HOLDS.of_lock(task.lock, thread_owner())
    return task.lock.lost or not found, min((hold.deadline for hold in found), default=0.0)


@task_success.connect
def _note_success(sender: Any = None, result: Any = None, **_: Any) -> None:
    """Celery has stored the result by now."""
    at = time.monotonic()
    ended = sender.request.get("ended", at)
    fates().write("succeeded", task=str(sender.request.id), at=at, ended=ended, ran=bool(result))


@task_internal_error.connect
def _note_unstored(task_id: str, **_: Any) -> None:
    fates().write("unstored", task=task_id, at=time.monotonic())


class _Said(logging.Handler):
    """What the package has to say of tasks."""

    def emit(self, record: logging.LogRecord) -> None:
        fates().write("said", text=record.getMessage(), at=time.monotonic())


@worker_process_init.connect
def _listen(**_: Any) -> None:
    logging.getLogger("django_rlock.celery").addHandler(_Said(logging.WARNING))


worker_process_init.connect(use_temporary_folder)


# --- the tasks --------------------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """An app, and those of its tasks that are to be sent."""

    app: Celery
    tasks: list[Any]


def make(plan: dict[str, Any]) -> Made:
    """The app for the servers of a plan, with the tasks that the plan names."""
    app = Celery("tests.campaign", set_as_current=False)
    app.conf.update(CONFIGURATION, broker_url=plan["broker"], result_backend=plan["results"])
    tasks = WHOSE[plan["whose"]](app)
    app.finalize()
    return Made(app, tasks)


def _locked(app: Any) -> list[Any]:
    from django_rlock.celery import LockedTask

    task = partial(app.task, base=LockedTask, bind=True, shared=False, lock_key="campaign:<key>", **_SOON)
    return [
        task(name="skips")(work),
        task(name="retries", on_locked="retry")(work),
        task(name="waits", on_locked="wait", lock_wait_time=1)(work),
        task(name="fails", on_locked="retry", max_retries=3)(_fails_at_first),
    ]


def _queued(app: Any) -> list[Any]:
    from django_rlock.celery import LockedTask

    task = partial(
        app.task,
        base=LockedTask,
        bind=True,
        shared=False,
        lock_key="campaign:<key>",
        lock_scope="queue",
        lock_queue_time=5,
        **_SOON,
    )
    return [
        task(name="queues", on_locked="retry")(work),
        task(name="raises", on_queued="raise")(work),
        task(name="again", on_queued="again")(work),
        task(name="fails", on_locked="retry", max_retries=3)(_fails_at_first),
    ]


def _fails_at_first(task: Any, key: str, lasts: float) -> str:
    done = work(task, key, lasts)
    if task.request.retries == 0:
        raise task.retry(countdown=0.1)
    return done


def _plain(app: Any) -> list[Any]:
    return [app.task(name="plain", bind=True, shared=False)(work)]


WHOSE: dict[str, Callable[[Any], list[Any]]] = {"locked": _locked, "queued": _queued, "plain": _plain}
"""Whose tasks a campaign may run."""

if PLAN:
    app = make(PLAN).app
