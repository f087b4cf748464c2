"""Who is asking: the owner of a lock is a thread, a task or a greenlet of one process.

On the wire an owner is ``<client id>:<number>``, plus ``:<label>`` where one is set (a Celery task's id). The client id
is new in every process and after every fork. The number belongs to one thread, task or greenlet for its life, and is
never used twice: the system recycles thread idents and ``id()``, so both are kept out.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary


class Owner:
    """One thread, task or greenlet.

    ``serial`` never changes. ``name`` is the wire name, which may. ``place`` is what reports call it. ``is_alive`` says
    whether the thread, task or greenlet still runs; this object may outlive it, in tracebacks that are kept.
    """

    __slots__ = ("__weakref__", "is_alive", "label", "name", "place", "serial")

    def __init__(self, place: str, is_alive: Callable[[], object]) -> None:
        self.serial = next(_process.numbers)
        self.place = place
        self.is_alive = is_alive
        self.label = ""
        self.renew_name()

    def renew_name(self) -> None:
        """Take a fresh wire name, so that late commands under the old one can do no harm.

        Called when the outcome of a command is unknown: it may still reach the server after those that follow.
        Holds keep the name that they were taken with.
        """
        self.name = f"{_process.client_id}:{next(_process.numbers)}{self.label}"

    @contextmanager
    def labelled(self, label: str) -> Iterator[None]:
        """Add a label to the wire name of the locks taken inside, for others to see in Redis."""
        outer, self.label = self.label, f":{label}"
        self.renew_name()
        try:
            yield
        finally:
            self.label = outer
            self.renew_name()


class _Life:
    """Only the thread's own storage refers to it, so it is gone when the thread has ended."""

    __slots__ = ("__weakref__",)


class _Process:
    """What a forked child must not share with its parent."""

    def __init__(self) -> None:
        self.client_id = str(uuid.UUID(bytes=os.urandom(16), version=4))
        self.numbers = itertools.count(1)
        self.threads = threading.local()
        self.tasks: WeakKeyDictionary[asyncio.Task[Any], Owner] = WeakKeyDictionary()
        self.greenlets: WeakKeyDictionary[Any, Owner] = WeakKeyDictionary()


_process = _Process()


def client_id() -> str:
    """This process's id in Redis: 36 characters, new after a fork."""
    return _process.client_id


def thread_owner() -> Owner:
    """The owner of the running thread, or of the running greenlet where there is one."""
    greenlet = sys.modules.get("greenlet")
    # Without monkey patching, or with late patching, all greenlets of a thread share its threading.local.
    if greenlet is not None and greenlet.getcurrent().parent is not None:
        return _greenlet_owner(greenlet.getcurrent())
    try:
        owner: Owner = _process.threads.owner
    except AttributeError:
        life = _process.threads.life = _Life()
        owner = _process.threads.owner = Owner(_thread_name(), weakref.ref(life))
    return owner


def task_owner() -> Owner:
    """The owner of the running asyncio task. RuntimeError outside of a task."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("A lock's async methods need a running asyncio task: it is the owner of the lock.")
    owner = _process.tasks.get(task)
    if owner is None:
        owner = _process.tasks[task] = Owner(task.get_name(), partial(_goes_on, weakref.ref(task)))
    return owner


def _goes_on(place: weakref.ref[asyncio.Task[Any]]) -> bool:
    task = place()
    return task is not None and not task.done() and not task.get_loop().is_closed()


def current_owner() -> Owner:
    """The running task inside an event loop, else the running thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return thread_owner() if task is None else task_owner()


def _greenlet_owner(current: Any) -> Owner:
    owner = _process.greenlets.get(current)
    if owner is None:
        owner = _process.greenlets[current] = Owner(_thread_name(), partial(_runs, weakref.ref(current)))
    return owner


def _runs(place: weakref.ref[Any]) -> bool:
    current = place()
    return current is not None and not current.dead


def _thread_name() -> str:
    return threading.current_thread().name


def _after_fork() -> None:
    global _process  # noqa: PLW0603 - the one place where the child gets its own
    _process = _Process()


os.register_at_fork(after_in_child=_after_fork)
