"""Jobs of thread pools. The thread of a job goes on with others, so what a job takes must not stay with the thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any

from asgiref.sync import SyncToAsync

from django_rlock.drivers.identity import Owner

_POOLS = {
    "anyio._backends._asyncio",
    "asgiref.sync",
    "concurrent.futures.thread",
    "asgiref.current_thread_executor",
    "multiprocessing.pool",
}
"""Modules with the functions that call a job's own one."""
_METHODS = {
    "django_rlock.drivers.base",
    "django_rlock.locks.base",
    "django_rlock.locks.callers",
    "django_rlock.locks.engine",
    "django_rlock.locks.faces",
}
"""Modules between a call of a lock's method and this one."""


def is_bridged(bridge: Any = SyncToAsync.threadlocal) -> bool:
    """Whether the running thread runs functions for ``sync_to_async()``, or has done so."""
    return hasattr(bridge, "task_context")


class Job:
    """One job of a pool. ``at_end`` are functions that are called in its thread when it has ended.

    ``is_of_request`` is whether the thread works for one request only, as asgiref's thread-sensitive ones under Django.
    """

    __slots__ = ("at_end", "is_of_request", "is_over")

    def __init__(self, future: Future[Any], is_of_request: bool) -> None:
        self.at_end: dict[object, Callable[[], object]] = {}
        self.is_of_request = is_of_request
        self.is_over = False
        future.add_done_callback(self._end)

    def _end(self, _future: Future[Any]) -> None:
        self.is_over = True
        for act in list(self.at_end.values()):
            act()


def running_job(owner: Owner) -> Job | None:
    """The job of a pool that the running thread, an owner, works on.

    Raises RuntimeError if the job is nothing but the call of a lock's method.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented
    while frame is not None and frame.f_globals.get("__name__") in _METHODS:
        frame = frame.f_back
    if frame is not None and frame.f_globals.get("__name__") in _POOLS:
        raise RuntimeError(
            "A lock was to be taken by a job of a thread pool that does nothing else, as sync_to_async(lock.acquire), "
            "to_thread(lock.acquire) and submit(lock.acquire) are: the pool's thread would own the lock, and goes on "
            "with other jobs. Give the pool a function with the whole block, 'with lock:', or await lock.aacquire(), "
            "or give the lock an owner=."
        )
    job: Job | None = owner.job
    if job is None or job.is_over:
        job = owner.job = _job_of(frame)
    return job


def _job_of(frame: FrameType | None) -> Job | None:
    """The job to which a frame belongs."""
    is_sensitive = False
    while frame is not None:
        if frame.f_globals.get("__name__") in _POOLS:
            its = frame.f_locals.get("self")
            is_sensitive = is_sensitive or getattr(its, "_thread_sensitive", False)
            future = getattr(its, "future", None)
            if isinstance(future, Future):
                return Job(future, is_sensitive)
        frame = frame.f_back
    return None
