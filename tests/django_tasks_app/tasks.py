"""``log`` names a test's records."""

import time
import uuid

from celery import Celery
from django.tasks import task

from django_rlock import distributed_lock
from django_rlock.celery import LockedTask
from tests.celery_app.records import inside

WORK = 0.05
"""How long a task holds its lock, in seconds, so that another one has time to take it as well."""

celery = Celery("tests.django_tasks_app", broker="memory://", set_as_current=False)


@task
@distributed_lock("work:<log>")
def waits(log: str) -> str:
    return work(log)


@task
@distributed_lock("work:<log>", on_locked="skip")
def skips(log: str) -> str:
    return work(log)


@celery.task(base=LockedTask, shared=False, lock_key="work:<log>", on_locked="wait")
def locked(log: str) -> str:
    return work(log)


@task
def calls_a_locked_task(log: str) -> str:
    done: str = locked(log)
    return done


def work(log: str) -> str:
    with inside(log, uuid.uuid4().hex):
        time.sleep(WORK)
    return f"done {log}"
