"""The tasks that hold a lock, read from its owner ids: their processes, and whether those have ended.

The owner id is ``<client id>:<number>:<pid>.<start time>@<machine>:<task id>``, with ``@<mark of the task>`` after
the machine if senders look for runs of that task (``reservations``). So a process on the same machine can learn from
the kernel alone that a holder has died; it then frees exactly that hold, by its owner id. The start time and the
machine are empty if the kernel does not provide them. A process that does not know its own machine assumes that all
holders live.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from django_rlock._core.clock import monotonic
from django_rlock._core.process import MadeOnce, on_fork
from django_rlock._redis.keys import is_kept
from django_rlock.exceptions import LockTimeoutError, LockUnavailableError
from django_rlock.locks.holds import INSPECTOR
from django_rlock.settings import get_settings

if TYPE_CHECKING:
    from django_rlock._tasks.task import TaskOptions
    from django_rlock.locks import BaseLock

_RENEWED_BY = 0.5
"""The smallest remaining share of a lease while its holder renews it, which happens after each third."""
WORDS_KEPT = 1.0
"""How long the description of a holder is used, in seconds."""
_MOST_WORDS = 1000
_words: dict[tuple[str, ...], tuple[float, str | None]] = {}
"""Descriptions of holders, and until when they are used, by alias, lock and owner id."""


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


def tasks_among(owner_ids: Iterable[str]) -> list[TaskHolder]:
    """The tasks among some owners."""
    return [holder for owner_id in owner_ids if (holder := TaskHolder.of(owner_id)) is not None]


def seems_dead(options: TaskOptions, left: float | None) -> bool:
    """Whether the holder of a task's lock has not renewed it in time; ``left`` is the remaining lease in seconds."""
    if options.lease_time is not None or left is None or left < 0:
        return False
    return left < get_settings(options.using).watchdog_timeout * _RENEWED_BY


class Holders:
    """The tasks that hold a lock that could not be taken, read once."""

    def __init__(self, lock: BaseLock) -> None:
        self._lock = lock

    @MadeOnce
    def _owners(self) -> list[str] | None:
        """The owner ids of all holders; None if they are unknown."""
        try:
            return self._lock.holders()
        except LockUnavailableError:
            return None

    @MadeOnce
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

    def describe(self, lock_name: str) -> str | None:
        """A holder of the lock of that name, in one line; None if unknown.

        The words are looked up once a second for each hold: many duplicates may be skipped meanwhile.
        """
        now, key = monotonic(), (self._lock.using, lock_name, *(self._owners or ())[:1])
        expires, words = _words.get(key, (now, None))
        if expires <= now:
            words = None
            if self._owners and len(self._lock.parts) == 1:
                words = INSPECTOR.owner(self._lock, self._owners[0])
            taken = next((part for part in self._lock.parts if part.name == lock_name), None)
            if not words and taken is not None:
                words = INSPECTOR.holder(taken)
            if len(_words) >= _MOST_WORDS:
                _words.clear()
            _words[key] = now + WORDS_KEPT, words
        return words

    def frees_the_dead(self) -> bool:
        """Free the holds of ended processes of this machine; returns whether there were any."""
        if not any(holder.is_gone for holder in self._found or ()):
            return False
        try:
            return free_the_dead(self._lock, lambda holder: holder.is_gone, "its process has ended")
        except LockUnavailableError:
            return False


def free_the_dead(lock: BaseLock, is_gone: Callable[[TaskHolder], bool], reason: str) -> bool:
    """Free the holds of ended processes; returns whether there were any. Raises LockUnavailableError."""
    freed = False
    for part in lock.parts:
        # By owner id: another owner may have acquired the lock meanwhile, and must keep it.
        for holder in filter(is_gone, tasks_among(part.holders())):
            freed = part.force_release(holder.owner_id, reason=reason) or freed
    return freed


# --- processes --------------------------------------------------------------------------------------------------------


def has_ended(pid: int, started: str = "") -> bool:
    """Whether a process of this machine has ended and closed its connections, even if it has not been reaped.

    ``/proc`` may hide the processes of other users, so a missing entry there proves nothing. ``started`` is the start
    time of the process, which distinguishes it from a later process with the same id; empty if unknown.
    """
    found = _stat(pid)
    if found is not None:
        # The main thread may end before other threads, which may still have commands under way.
        return (found.state in "ZX" and found.threads <= 1) or started not in {"", found.started}
    try:
        os.kill(pid, 0)
    except OSError as error:  # otherwise it may be a process of another user
        return isinstance(error, ProcessLookupError)
    return False


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
    # A clone of a running machine has the same boot id, but another installation id; containers have none.
    installation = ""
    with suppress(OSError):
        installation = Path("/etc/machine-id").read_text()
    parts = [socket.gethostname(), installation, boot, processes]
    return blake2b("\n".join(parts).encode(), digest_size=5).hexdigest()


on_fork("identity", _process_label.cache_clear)
