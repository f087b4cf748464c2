"""The holder of a task's lock, with its process and task; and the children of a prefork worker, which may die."""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import selectors
import socket
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from glob import escape
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from celery.signals import worker_init, worker_ready

from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._core.process import on_fork
from django_rlock._redis.keys import is_kept
from django_rlock._transport.identity import client_id
from django_rlock.exceptions import LockTimeoutError, LockUnavailableError, RLockError
from django_rlock.inspection import describe_owner, iter_locks
from django_rlock.locks import BaseLock, rlock
from django_rlock.settings import get_settings

if TYPE_CHECKING:
    from django_rlock._tasks.options import TaskOptions
    from django_rlock.locks.infos import LockInfo

# --- holders ----------------------------------------------------------------------------------------------------------

# The holder of a task's lock: its process and its task's id are part of the owner's owner id.
#
# The owner id is ``<client id>:<number>:<pid>.<start time>@<machine>:<task id>``, with ``@<mark of the task>`` after
# the machine if senders look for runs of that task (``reservations``). So a process on the same machine can learn from
# the kernel alone that a holder has died; it then frees exactly that hold, by its owner id. The start time and the
# machine are empty if the kernel does not provide them. A process that does not know its own machine assumes that all
# holders live.

_RENEWED_BY = 0.5
"""The smallest remaining share of a lease while its holder renews it, which happens after each third."""


class TaskHolder(NamedTuple):
    """An owner of a lock that was taken for a task."""

    owner_id: str
    client: str
    process: str
    task_id: str

    @classmethod
    def of(cls, owner_id: str) -> TaskHolder | None:
        """Parse an owner id; returns None if it is not a task's."""
        client, *rest = owner_id.split(":", 3)
        return cls(owner_id, client, *rest[1:]) if len(rest) == 3 and "@" in rest[1] else None

    @property
    def is_gone(self) -> bool:
        """Whether its process ran on this machine and has ended; False if that cannot be known here."""
        process, machine, *_ = self.process.split("@")
        pid, _, started = process.partition(".")
        return bool(machine) and machine == _machine() and pid.isdigit() and has_ended(int(pid), started)


def label(task_id: str, mark: str = "") -> str:
    """The end of the owner id of a task's locks in this process."""
    return f"{_process_label()}@{mark}:{task_id}" if mark else f"{_process_label()}:{task_id}"


def holders_of(lock: BaseLock) -> list[TaskHolder]:
    """The tasks that hold a lock, by one command. Raises LockUnavailableError when Redis is unreachable."""
    return tasks_among(lock.holders())


def tasks_among(owner_ids: Iterable[str]) -> list[TaskHolder]:
    """The tasks among some owners."""
    return [holder for owner_id in owner_ids if (holder := TaskHolder.of(owner_id)) is not None]


def overlapping_runs(lock: BaseLock) -> LockInfo | None:
    """The runs of a task with one lock per message, combined into one LockInfo, with the waiting messages. These locks
    are named after ``lock`` and the message's id. Runs are known once they have lasted for half a second. Raises
    LockUnavailableError if Redis is unreachable.
    """
    info = lock.info()
    found = iter_locks(lock.using, f"{escape(lock.name)}:*")
    runs = [each for each in found if each.holder.owner.endswith(each.name.removeprefix(lock.name))]
    if not runs:
        return info
    holders = tuple(holder for run in runs for holder in run.holders)
    return replace(runs[0], name=lock.name, key=lock.key, holders=holders, queued=info.queued if info else ())


def seems_dead(options: TaskOptions, left: float | None) -> bool:
    """Whether the holder of a task's lock has not renewed it in time; ``left`` is the remaining lease in seconds."""
    if options.lease_time is not None or left is None or left < 0:
        return False
    return left < get_settings(options.using).watchdog_timeout * _RENEWED_BY


def free_the_dead(lock: BaseLock, is_gone: Callable[[TaskHolder], bool], reason: str) -> bool:
    """Free the holds of ended processes; returns whether there were any."""
    freed = False
    for part in lock.parts:
        # By owner id: another owner may have acquired the lock meanwhile, and must keep it.
        for holder in filter(is_gone, holders_of(part)):
            freed = part.force_release(holder.owner_id, reason=reason) or freed
    return freed


def has_ended(pid: int, started: str = "") -> bool:
    """Whether a process of this machine has ended and closed its connections, even if it has not been reaped.

    ``/proc`` may hide the processes of other users, so a missing entry there proves nothing. ``started`` is the start
    time of the process, which distinguishes it from a later process with the same id; empty if unknown.
    """
    found = _stat(pid)
    if found is None:
        return not _exists(pid)
    # The main thread may end before other threads, which may still have commands under way.
    return (found.state in "ZX" and found.threads <= 1) or started not in {"", found.started}


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # a process of another user
    return True


class _Stat(NamedTuple):
    """The kernel's data about a process: the state of its main thread, its number of threads, its start time."""

    state: str
    threads: int
    started: str


def _stat(pid: int) -> _Stat | None:
    """Read the data of a process; None if ``/proc`` does not show the process, or no longer does."""
    try:
        # The fields follow the command, which is in parentheses and may itself contain parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return _Stat(fields[0], int(fields[17]), fields[19])
    except (OSError, ValueError, IndexError):
        return None


@cache
def _process_label() -> str:
    found = _stat(os.getpid()) if _machine() else None
    process = f"{os.getpid()}.{found.started}" if found else str(os.getpid())
    return f"{process}@{_machine()}"


@cache
def _machine() -> str:
    """An id that differs between machines, their clones, and containers with their own process ids; "" if unknown."""
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):
            return ""  # /proc shows the processes of another container
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        processes = str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return ""
    parts = [socket.gethostname(), _installation(), boot, processes]
    return blake2b("\n".join(parts).encode(), digest_size=5).hexdigest()


def _installation() -> str:
    """The id of the machine's installation; containers have none. A clone of a running machine has the same boot id,
    but another installation id."""
    try:
        return Path("/etc/machine-id").read_text()
    except OSError:
        return ""


on_fork("identity", _process_label.cache_clear)

# --- children ---------------------------------------------------------------------------------------------------------

# The children of a prefork worker: when one dies, its parent frees its locks at once.
#
# A child sends its parent once, by an inherited socket, its client id, a file, and the reading end of a pipe. Before
# each run it writes the locks that it is about to acquire into the file, which is mapped, so this needs no system call.
# The pipe closes when the child ends for any reason, before Celery's own pool notices. Then a thread of the parent
# reads the file, and frees the noted locks that the child's client id holds. A child that is not forked (macOS) has no
# such socket; its locks end with their leases.
#
# The file has two halves, preceded by the number of the valid half. A child writes into the other half first and then
# changes the number, so it may die at any point.

logger = logging.getLogger("django_rlock.celery")

_MOST = 65_536
"""The size of half a child's file, in bytes. Longer notes are not written: their locks end with their leases."""
_HALVES = {1: 4096, 2: 4096 + _MOST}
"""The offsets of the halves. The first byte of the file is the number of the valid half; 0 means neither."""
_SIZE = 4096 + 2 * _MOST
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
                logger.exception("A child of the worker could not be watched; its locks end with their leases.")
                time.sleep(_AGAIN)

    def _look(self) -> None:
        for key, _ in self._selector.select(_AGAIN if self._left else None):
            if key.fileobj is self.ours:
                self._meet()
            else:
                self._part(key.fd, *key.data)
        self._left = [each for each in self._left if not self._freed(*each)]

    def _meet(self) -> None:
        client, descriptors, *_ = socket.recv_fds(self.ours, 100, 2)
        if len(descriptors) == 2:
            pipe, file = descriptors
            self._selector.register(pipe, selectors.EVENT_READ, (file, client.decode()))

    def _part(self, pipe: int, file: int, client: str) -> None:
        """Handle the end of a child."""
        self._selector.unregister(pipe)
        try:
            half = _HALVES.get(os.pread(file, 1, 0)[0])
            written = b"" if half is None else os.pread(file, _MOST, half)
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
                free_the_dead(rlock(name, using=using, kind=kind), lambda each: each.client == note["client"], reason)
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
        half = 3 - self._half if len(text) <= _MOST else 0
        if half:
            start = _HALVES[half]
            self._mapped[start : start + len(text)] = text
            self._half = half
        self._mapped[0] = half


_parent: _Parent | None = None
_child: _Child | None = None


def note_of(task_id: str, lock: BaseLock, kind: str | None) -> Note | None:
    """The note of the lock that the parent frees if this process dies while the task runs; None if it is not a child of
    a worker."""
    if _this_child() is None:
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


def _this_child() -> _Child | None:
    global _child  # noqa: PLW0603 - a process is one child
    if _child is None and _parent is not None and os.getppid() == _parent.pid:
        with suppress(OSError):  # the parent is ending, or does not read: the next task tries again
            _child = _Child(_parent)
    return _child


def _after_fork() -> None:
    """Close the pipe in a process that a child has forked: it must not stay open after the child's end."""
    global _child  # noqa: PLW0603
    if _child is not None:
        _child.close()
        _child = None


on_fork("holds", _after_fork)


@worker_init.connect(weak=False)
def _expect_children(**_: Any) -> None:
    """Make the parent's socket before the worker forks any child."""
    global _parent  # noqa: PLW0603
    _parent = _Parent()


@worker_ready.connect(weak=False)
def _watch_children(sender: Any = None, **_: Any) -> None:
    """Start watching after the children were forked, so that no thread runs during the fork."""
    from celery.concurrency.prefork import TaskPool

    if _parent is not None and isinstance(getattr(sender, "pool", None), TaskPool):
        threads.start(_parent.watch, name="rlock-children")


class Holders:
    """The tasks that hold a lock that could not be taken, read once."""

    def __init__(self, lock: BaseLock) -> None:
        self._lock = lock

    @cached_property
    def _owners(self) -> list[str] | None:
        """The owner ids of all holders; None if they are unknown."""
        try:
            return self._lock.holders()
        except LockUnavailableError:
            return None

    @cached_property
    def _found(self) -> list[TaskHolder] | None:
        return None if self._owners is None else tasks_among(self._owners)

    def has(self, task_id: str) -> bool:
        """Whether the task itself is among them; True if they are unknown, because skipping could lose work."""
        return self._found is None or any(holder.task_id == task_id for holder in self._found)

    def seems_dead(self, options: TaskOptions, error: LockTimeoutError) -> bool:
        """Whether the holder has not renewed the lock in time; none has to renew one that stays taken."""
        if self._owners is None:
            return True
        return seems_dead(options, error.retry_after) and not any(map(is_kept, self._owners))

    @property
    def first_task(self) -> str | None:
        """The id of a task that holds it; None if that is not known."""
        return next((holder.task_id for holder in self._found or ()), None)

    def describe(self) -> str | None:
        """A holder of a single lock, in one line, by one round trip; None if unknown."""
        return describe_owner(self._lock, self._owners[0]) if self._owners and len(self._lock.parts) == 1 else None

    def frees_the_dead(self) -> bool:
        """Free the holds of ended processes of this machine; returns whether there were any."""
        if not any(holder.is_gone for holder in self._found or ()):
            return False
        try:
            return free_the_dead(self._lock, lambda holder: holder.is_gone, "its process has ended")
        except LockUnavailableError:
            return False
