"""The project that servers serve. Its views tell by lists in Redis where they are, and wait there for the test.

``entered:<name>`` gets the pid of a process and how many are inside with it, ``go:<name>`` lets one go on, and
``left:<name>`` gets the pid of one that has come to its end.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_rlock import distributed_lock, rlock
from tests.eventually import PATIENCE

URL = os.environ["RLOCK_TEST_URL"]


def pid(request: HttpRequest) -> HttpResponse:
    return HttpResponse(os.getpid())


@contextmanager
def entered(name: str) -> Iterator[redis.Redis]:
    """Count who is inside. It blocks an event loop as well, but no cancellation can keep it from counting.

    Between the entry and the end no object of redis-py ends: a signal whose handler Python runs in a ``__del__`` could
    not stop the view.
    """
    with redis.Redis.from_url(URL) as events:
        inside = events.incr(f"inside:{name}")
        gc.collect()
        try:
            events.rpush(f"entered:{name}", f"{os.getpid()} {inside}")  # the test may end the process from here on
            yield events
            events.rpush(f"left:{name}", os.getpid())
        finally:
            events.decr(f"inside:{name}")


def work(request: HttpRequest, name: str) -> HttpResponse:
    with entered(name) as events:
        # In turns: Python handles a signal that comes just before a system call only after that call.
        while not events.blpop([f"go:{name}"], 0.5):
            pass
    return HttpResponse("done")


async def awork(request: HttpRequest, name: str) -> HttpResponse:
    with entered(name) as events:
        # Not by redis.asyncio, which may swallow a cancellation while it connects.
        while not events.lpop(f"go:{name}"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return HttpResponse("done")


def forget(request: HttpRequest, name: str) -> HttpResponse:
    assert rlock(f"stock:{name}").acquire()
    return HttpResponse("done")


async def aforget(request: HttpRequest, name: str) -> HttpResponse:
    assert await rlock(f"stock:{name}").aacquire()
    return HttpResponse("done")


def keep(request: HttpRequest, name: str) -> HttpResponse:
    """Take a lock for the process, which keeps it until its end."""
    assert rlock(f"kept:{name}", owner=f"process {os.getpid()}").acquire(blocking=False)
    return HttpResponse("done")


def locked(view: Callable[..., Any], using: str) -> Callable[..., Any]:
    return distributed_lock("stock:<name>", using=using, wait_time=PATIENCE)(view)


urlpatterns = [
    path("pid/", pid),
    path("job/<name>/", locked(work, "default")),
    path("ajob/<name>/", locked(awork, "default")),
    path("short/job/<name>/", locked(work, "short")),
    path("short/ajob/<name>/", locked(awork, "short")),
    path("forget/<name>/", forget),
    path("aforget/<name>/", aforget),
    path("keep/<name>/", keep),
]

wsgi = get_wsgi_application()
asgi = get_asgi_application()
