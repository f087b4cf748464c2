"""Jobs of thread pools. A thread runs many jobs, so a lock that a job took must not stay with the thread."""

from __future__ import annotations

import multiprocessing
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import thread as executors
from pathlib import Path
from types import FrameType
from typing import Any

from asgiref.sync import SyncToAsync

from django_rlock.drivers.bridges import calls_of
from django_rlock.drivers.identity import Owner

_POOLS = {
    "anyio._backends._asyncio",
    "asgiref.sync",
    "concurrent.futures.thread",
    "asgiref.current_thread_executor",
    "multiprocessing.pool",
}
"""Modules with the functions that call a job's own one."""
_LOOPS = {
    "anyio._backends._asyncio": "run",
    "concurrent.futures.thread": "_worker",
    "multiprocessing.pool": "worker",
}
"""The functions of these modules that a pool's thread runs as long as it lives."""
_IDLE = (
    *(str(each.__file__) for each in (queue, threading, executors)),
    str(Path(multiprocessing.__file__).parent),
)
_ANYIO = "anyio/_backends/_asyncio.py"
"""Where a pool's thread is while it has no job."""
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
    """One job of a pool. ``at_end`` are functions that are called when it has ended: in its thread, if the pool tells.

    ``key`` is the job's future, which tells; else it differs from those of the thread's other jobs. ``is_of_request``
    is whether the thread works for one request only, as asgiref's thread-sensitive ones under Django.
    """

    __slots__ = ("_turn", "at_end", "is_of_request", "is_over", "key")

    def __init__(self, key: object, is_of_request: bool) -> None:
        self.at_end: dict[object, Callable[[], object]] = {}
        self.is_of_request = is_of_request
        self.is_over = False
        self.key = key
        self._turn = threading.Lock()
        if self.tells:
            key.add_done_callback(self.end)  # type: ignore[attr-defined]

    @property
    def tells(self) -> bool:
        """Whether its end is told by the pool."""
        return isinstance(self.key, Future)

    def end(self, _future: object = None) -> None:
        """Do what is to be done at its end; who comes second waits for that."""
        with self._turn:
            self.is_over = True
            self._do_what_is_left()

    def _do_what_is_left(self) -> None:
        while self.at_end:
            self.at_end.popitem()[1]()


def running_job(owner: Owner) -> Job | None:
    """The job of a pool that the running thread, an owner, works on; a former one, whose end nobody told, is ended.

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
    if job is None or job.is_over or not job.tells:
        jobs = dict(_jobs_of(frame))
        if job is not None and not job.is_over and job.key not in jobs:
            job.end()
        if job is None or job.is_over:
            job = owner.job = next((Job(*each) for each in jobs.items()), None)
    return job


def forgotten_job(owner: Owner) -> Job | None:
    """The last job of a pool's thread that waits for the next one, where nobody has told the end of it."""
    job: Job | None = owner.job
    if job is None or job.tells or job.is_over:
        return None
    files = {file for file, _, _ in calls_of(owner.thread)}
    return job if files and all(file.startswith(_IDLE) or file.endswith(_ANYIO) for file in files) else None


def _jobs_of(frame: FrameType | None) -> Iterator[tuple[object, bool]]:
    """The keys of the jobs to which a frame belongs, innermost first, each with whether it is a request's."""
    is_sensitive = tells = False
    while frame is not None:
        name, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        told, tells = tells, False
        if name in _POOLS:
            its = frame.f_locals  # not of other frames: up to Python 3.12 they would keep all that they name
            is_sensitive = is_sensitive or getattr(its.get("self"), "_thread_sensitive", False)
            future = getattr(its.get("self"), "future", None)
            if tells := isinstance(future, Future):
                yield future, is_sensitive
            elif function == _LOOPS.get(name) and not told:
                # A thread's loop: its number of jobs, anyio's future, or neither in what initializes the thread.
                yield (function, its.get("completed"), its.get("future")), is_sensitive
        frame = frame.f_back
