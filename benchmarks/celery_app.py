"""The Celery app of the benchmark: empty tasks, with our lock, with none and with those of other libraries.

``python -m celery -A benchmarks.celery_app worker``; environment variables name the servers of broker and locks.
"""

from __future__ import annotations

import os
from functools import cache, partial
from typing import Any

import redis
from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton
from django.conf import settings

from benchmarks.stage import URL_VARIABLE, configure

BROKER_VARIABLE = "RLOCK_BENCH_BROKER"
"""The broker's server; it is a separate one, so that the commands of locks can be counted."""

if not settings.configured:  # in a worker
    configure()

from benchmarks.peers import raw_pair  # noqa: E402 - these need Django's settings
from django_rlock.celery import LockedTask  # noqa: E402

app = Celery("benchmarks", broker=os.environ[BROKER_VARIABLE], set_as_current=False)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=3,  # ends a worker whose benchmark was killed
    singleton_backend_url=os.environ[URL_VARIABLE],
    ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": os.environ[URL_VARIABLE]}},
)
task: Any = partial(app.task, shared=False)
_pair_of_process = cache(raw_pair)
"""Makes the connection of a process at its first run, which is after the fork."""


@task
def plain(number: int) -> None:
    """No lock at all."""


@task(acks_late=True)
def plain_late(number: int) -> None:
    """The same; its message is acknowledged at its end."""


@task
def raw(_number: int) -> None:
    """The lower bound for a lock that the worker takes and releases: its two round trips."""
    _pair_of_process()()


@task(base=LockedTask, lock_key="bench:<number>")
def locked(number: int) -> None:
    """A lock, taken and released by the worker."""


@task(base=LockedTask, lock_key="bench:<number>", acks_late=True)
def locked_late(number: int) -> None:
    """The same, and its success is remembered."""


@task(base=QueueOnce)
def once(number: int) -> None:
    """A key that the publisher sets and the worker deletes."""


@task(base=Singleton)
def singleton(number: int) -> None:
    """The same with the other library."""


@task
def tell(name: str) -> None:
    """Notify the process that waits for the list that all earlier tasks are done."""
    with redis.Redis.from_url(os.environ[BROKER_VARIABLE]) as client:
        client.rpush(name, "done")
