"""The children of a prefork worker: when one dies, its parent frees its locks at once.

A child sends its parent once, by an inherited socket, its client id, a file, and the reading end of a pipe. Before each
run it writes the locks that it is about to acquire into the file, which is mapped, so this needs no system call. The
pipe closes when the child ends for any reason, before Celery's own pool notices. Then a thread of the parent reads the
file, and frees the noted locks that the child's client id holds. A child that is not forked (macOS) has no such socket;
its locks end with their leases.

The file has two halves, preceded by the number of the valid half. A child writes into the other half first and then
changes the number, so it may die at any point.
"""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import selectors
import socket
import tempfile
import time
from contextlib import suppress
from typing import IO, Any

from celery.signals import worker_init, worker_ready
from django.core.exceptions import ImproperlyConfigured

from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._core.process import between_forks, on_fork, on_restore
from django_rlock._tasks.holders import free_the_dead
from django_rlock._transport.identity import client_id
from django_rlock._transport.registry import sync_driver
from django_rlock.exceptions import RLockError
from django_rlock.locks import BaseLock, named_lock
from django_rlock.settings import get_aliases, get_settings

logger = logging.getLogger("django_rlock.celery")

_MOST_WRITTEN = 65_536
"""The size of half a child's file, in bytes. Longer notes are not written: their locks end with their leases."""
_HALVES = {1: 4096, 2: 4096 + _MOST_WRITTEN}
"""The offsets of the halves. The first byte of the file is the number of the valid half; 0 means neither."""
_SIZE = 4096 + 2 * _MOST_WRITTEN
_AGAIN = 1.0
"""The pause before the parent retries to free a dead child's locks while Redis is unreachable, in seconds."""

Note = dict[str, Any]


class _Parent:
    """The worker's main process: it watches its children, and frees the locks of dead children."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.ours, self.childrens = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.childrens.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._left: list[tuple[float, Note]] = []

    def watch(self) -> None:
        """Watch the children for as long as the process lives."""
        self._selector.register(self.ours, selectors.EVENT_READ)
        while True:
            try:
                self._look()
            except Exception:
                with between_forks():
                    logger.exception("A child of the worker could not be watched; its locks end with their leases.")
                time.sleep(_AGAIN)

    def _look(self) -> None:
        for key, _ in self._selector.select(_AGAIN if self._left else None):
            if key.fileobj is not self.ours:
                self._part(key.fd, *key.data)
                continue
            client, descriptors, *_ = socket.recv_fds(self.ours, 100, 2)
            if len(descriptors) == 2:
                pipe, file = descriptors
                self._selector.register(pipe, selectors.EVENT_READ, (file, client.decode()))
        self._left = [each for each in self._left if not self._freed(*each)]

    def _part(self, pipe: int, file: int, client: str) -> None:
        """Handle the end of a child."""
        self._selector.unregister(pipe)
        try:
            half = _HALVES.get(os.pread(file, 1, 0)[0])
            written = b"" if half is None else os.pread(file, _MOST_WRITTEN, half)
        finally:
            os.close(pipe)
            os.close(file)
        for note in pickle.loads(written) if written else ():  # noqa: S301 - from a child of this process
            lease = note["lease"] or max(get_settings(using).watchdog_timeout for using, _, _ in note["locks"])
            self._left.append((monotonic() + lease, {**note, "client": client}))

    def _freed(self, until: float, note: Note) -> bool:
        """Try to free the locks of a child's note; returns whether the note is done."""
        try:
            for using, kind, name in note["locks"]:
                reason = f"the process of task {note['task']} has ended"
                lock = named_lock(name, using=using, kind=kind)
                free_the_dead(lock, lambda each: each.client == note["client"], reason)
        except RLockError:
            return monotonic() >= until
        return True


def _file() -> IO[bytes]:
    """A file in memory, because the disk may be full; a temporary file if the system has no files in memory."""
    with suppress(AttributeError, OSError):
        return open(os.memfd_create("rlock"), "w+b", buffering=0)  # noqa: PTH123 - it has no path
    return tempfile.TemporaryFile(buffering=0)


class _Child:
    """A process that runs tasks: a file in which it notes its locks, and a pipe that closes when it ends."""

    def __init__(self, parent: _Parent) -> None:
        with _file() as file:
            os.posix_fallocate(file.fileno(), 0, _SIZE)  # a lack of memory must not end the process later
            self._mapped = mmap.mmap(file.fileno(), _SIZE)
            self._connect(parent, file.fileno())
        self._half = 2
        self.notes: list[Note] = []

    def _connect(self, parent: _Parent, file: int) -> None:
        # Only this process has the writing end, so the parent's copy of the reading end tells when this process ends.
        reader, self._writer = os.pipe()
        try:
            socket.send_fds(parent.childrens, [client_id().encode()], [reader, file])
        except OSError:
            self.close()
            raise
        finally:
            os.close(reader)

    def close(self) -> None:
        os.close(self._writer)
        self._mapped.close()

    def write(self) -> None:
        """Write the notes. The rest of an earlier, longer text is ignored."""
        text = pickle.dumps(self.notes)
        half = 3 - self._half if len(text) <= _MOST_WRITTEN else 0
        if half:
            start = _HALVES[half]
            self._mapped[start : start + len(text)] = text
            self._half = half
        # Last, and by one byte: a child that dies before it leaves the former half valid.
        self._mapped[0] = half


_parent: _Parent | None = None
_child: _Child | None = None


def note_of(task_id: str, lock: BaseLock, kind: str | None) -> Note | None:
    """The note of the lock that the parent frees if this process dies while the task runs; None if it is not a child of
    a worker."""
    global _child  # noqa: PLW0603 - a process is one child
    if _child is None and _parent is not None and os.getppid() == _parent.pid:
        with suppress(OSError):  # the parent is ending, or does not read: the next task tries again
            _child = _Child(_parent)
    if _child is None:
        return None
    return {"task": task_id, "lease": lock.lease_time, "locks": [(each.using, kind, each.name) for each in lock.parts]}


def write(note: Note) -> None:
    """Note that this process may hold the lock from now on."""
    if _child is not None:
        _child.notes.append(note)
        _child.write()


def erase(note: Note) -> None:
    """Note that this process no longer holds the lock."""
    if _child is not None and note in _child.notes:
        _child.notes.remove(note)
        # If this was the last note, the file keeps it: the parent frees only locks that the child still holds.
        if _child.notes:
            _child.write()


def _close_child() -> None:
    """Close the pipe: in a process that a child has forked, it must not stay open after the child's end; and a child
    that has another client id tells its parent again."""
    global _child  # noqa: PLW0603
    if _child is not None:
        _child.close()
        _child = None


on_fork("holds", _close_child)
on_restore("holds", _close_child)


def _expect_children(**_: Any) -> None:
    """Make the parent's socket before the worker forks any child, and load what it takes to free locks: a child that is
    forked while a thread of the parent imports a module never gets the rest of that module."""
    global _parent  # noqa: PLW0603
    _parent = _Parent()
    for using in get_aliases():
        with suppress(ImproperlyConfigured):  # the checks, and the first call, report it
            sync_driver(using)


def _watch_children(sender: Any = None, **_: Any) -> None:
    """Start watching after the children were forked, so that no thread runs during the fork."""
    from celery.concurrency.prefork import TaskPool

    if _parent is not None and isinstance(getattr(sender, "pool", None), TaskPool):
        threads.start(_parent.watch, name="rlock-children")


def follow_children() -> None:
    """Connect the signals by which a worker tells that it begins."""
    worker_init.connect(_expect_children, weak=False)
    worker_ready.connect(_watch_children, weak=False)
