"""The holder of a task's lock: its process and its task's id are part of the owner's wire name.

The wire name is ``<client id>:<number>:<pid>@<machine>:<task id>``, with ``@<mark of the task>`` after the machine if
senders look for runs of that task (``places``). So a process on the same machine can see from the kernel alone that a
holder is gone; it then frees exactly that hold, by its wire name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from django_rlock.locks import BaseLock
from django_rlock.process import on_fork
from django_rlock.settings import get_settings

if TYPE_CHECKING:
    from django_rlock.tasklocks.options import TaskOptions

_RENEWED_BY = 0.5
"""The share of its lease that a lock has left at least while its holder renews it, which happens after a third."""


class TaskHolder(NamedTuple):
    """An owner of a lock that was taken for a task."""

    wire_name: str
    client: str
    place: str
    task_id: str

    @classmethod
    def of(cls, wire_name: str) -> TaskHolder | None:
        """Parse a wire name; returns None if it is not a task's."""
        client, *rest = wire_name.split(":", 3)
        return cls(wire_name, client, *rest[1:]) if len(rest) == 3 and "@" in rest[1] else None

    @property
    def is_gone(self) -> bool:
        """Whether its process ran on this machine and has ended; False if that cannot be known here."""
        pid, machine, *_ = self.place.split("@")
        return machine == _machine() and pid.isdigit() and _has_ended(int(pid))


def label(task_id: str, mark: str = "") -> str:
    """The end of the wire name of a task's locks in this process."""
    return f"{_place()}@{mark}:{task_id}" if mark else f"{_place()}:{task_id}"


def holders_of(lock: BaseLock) -> list[TaskHolder]:
    """The tasks that hold a lock, by one command. Raises LockUnavailableError when Redis is unreachable."""
    return [holder for wire_name in lock.holders() if (holder := TaskHolder.of(wire_name)) is not None]


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
            freed = part.force_release(holder.wire_name, reason=reason) or freed
    return freed


def _has_ended(pid: int) -> bool:
    """Whether a process has ended and closed its connections, even if it has not been reaped."""
    try:
        # The fields follow the command, which is in parentheses. The first is the state of the main thread; other
        # threads may still be ending. The 18th is the number of threads.
        state, *rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return state in "ZX" and int(rest[16]) <= 1
    except (FileNotFoundError, ProcessLookupError):  # the latter if it is reaped during the read
        return Path("/proc/self").exists() or not _takes_signals(pid)
    except (OSError, ValueError, IndexError):
        return False


def _takes_signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@cache
def _place() -> str:
    return f"{os.getpid()}@{_machine()}"


@cache
def _machine() -> str:
    """An id that differs between machines, and between containers on one machine with their own process ids."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # on Linux
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").stat().st_ino)]
    return blake2b("\n".join(parts).encode(), digest_size=5).hexdigest()


on_fork("identity", _place.cache_clear)
