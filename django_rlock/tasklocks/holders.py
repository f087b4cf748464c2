"""The holder of a task's lock: its process and its task's id are part of the owner's owner id.

The owner id is ``<client id>:<number>:<pid>.<start time>@<machine>:<task id>``, with ``@<mark of the task>`` after the
machine if senders look for runs of that task (``places``). So a process on the same machine can see from the kernel
alone that a holder is gone; it then frees exactly that hold, by its owner id. The start time and the machine are empty
where the kernel does not tell them. A process that does not know its own machine judges no holder.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from glob import escape
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from django_rlock.inspection import iter_locks
from django_rlock.locks import BaseLock
from django_rlock.process import on_fork
from django_rlock.settings import get_settings

if TYPE_CHECKING:
    from django_rlock.inspection import LockInfo
    from django_rlock.tasklocks.options import TaskOptions

_RENEWED_BY = 0.5
"""The share of its lease that a lock has left at least while its holder renews it, which happens after a third."""


class TaskHolder(NamedTuple):
    """An owner of a lock that was taken for a task."""

    owner_id: str
    client: str
    place: str
    task_id: str

    @classmethod
    def of(cls, owner_id: str) -> TaskHolder | None:
        """Parse an owner id; returns None if it is not a task's."""
        client, *rest = owner_id.split(":", 3)
        return cls(owner_id, client, *rest[1:]) if len(rest) == 3 and "@" in rest[1] else None

    @property
    def is_gone(self) -> bool:
        """Whether its process ran on this machine and has ended; False if that cannot be known here."""
        process, machine, *_ = self.place.split("@")
        pid, _, started = process.partition(".")
        return bool(machine) and machine == _machine() and pid.isdigit() and has_ended(int(pid), started)


def label(task_id: str, mark: str = "") -> str:
    """The end of the owner id of a task's locks in this process."""
    return f"{_place()}@{mark}:{task_id}" if mark else f"{_place()}:{task_id}"


def holders_of(lock: BaseLock) -> list[TaskHolder]:
    """The tasks that hold a lock, by one command. Raises LockUnavailableError when Redis is unreachable."""
    return [holder for owner_id in lock.holders() if (holder := TaskHolder.of(owner_id)) is not None]


def overlapping_runs(lock: BaseLock) -> LockInfo | None:
    """The runs of a task whose messages have a lock each, named after this one and the message's id, as one lock; with
    the messages that wait. Runs are known once they have lasted for half a second. Raises LockUnavailableError.
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
        for holder in filter(is_gone, holders_of(part)):
            freed = part.force_release(holder.owner_id, reason=reason) or freed
    return freed


def has_ended(pid: int, started: str = "") -> bool:
    """Whether a process of this machine has ended and closed its connections, even if it has not been reaped.

    ``/proc`` may hide the processes of other users, so a missing entry there says nothing. ``started`` is the start
    time of the process, by which it differs from a later one with its number; empty if it is unknown.
    """
    found = _stat(pid)
    if found is None:
        return not _exists(pid)
    # The main thread may have ended before others that still have commands under way.
    return (found.state in "ZX" and found.threads <= 1) or started not in {"", found.started}


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True


class _Stat(NamedTuple):
    """What the kernel tells of a process: the state of its main thread, its number of threads, when it started."""

    state: str
    threads: int
    started: str


def _stat(pid: int) -> _Stat | None:
    """None where ``/proc`` does not show the process, or not any more."""
    try:
        # The fields follow the command, which is in parentheses and may contain some itself.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return _Stat(fields[0], int(fields[17]), fields[19])
    except (OSError, ValueError, IndexError):
        return None


@cache
def _place() -> str:
    found = _stat(os.getpid()) if _machine() else None
    process = f"{os.getpid()}.{found.started}" if found else str(os.getpid())
    return f"{process}@{_machine()}"


@cache
def _machine() -> str:
    """An id that differs between machines, their clones, and containers with their own process ids; "" if unknown."""
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):
            return ""  # it shows the processes of another container
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        processes = str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return ""
    parts = [socket.gethostname(), _installation(), boot, processes]
    return blake2b("\n".join(parts).encode(), digest_size=5).hexdigest()


def _installation() -> str:
    """The id of the machine's installation; containers have none. A clone of a running machine has its boot id, too."""
    try:
        return Path("/etc/machine-id").read_text()
    except OSError:
        return ""


on_fork("identity", _place.cache_clear)
