"""Distributed locks for Django and Celery, stored in Redis exactly as Redisson stores them."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "django-rlock does not run on Windows: it needs the sockets and the fork of POSIX. Use WSL or a container."
    )

from django_rlock.exceptions import (
    KeyTemplateError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    LockUnavailableError,
    LockUpgradeError,
    PermitNotHeldError,
    QuorumNotReachedError,
    RLockError,
    StaleTokenError,
    TaskQueuedError,
)
from django_rlock.locks import (
    BaseLock,
    ConstantBackoff,
    ExponentialBackoff,
    FairLock,
    FencedLock,
    LimitedLock,
    MultiLock,
    ReadLock,
    ReadWriteLock,
    RedLock,
    RLock,
    SpinLock,
    WriteLock,
    rlock,
)
from django_rlock.locks.fencing import fenced
from django_rlock.version import __version__

if TYPE_CHECKING:
    from django_rlock._web.decorator import distributed_lock
    from django_rlock.locks.counters import CountDownLatch
    from django_rlock.locks.expirable import Permit, PermitExpirableSemaphore
    from django_rlock.locks.semaphore import Semaphore

__all__ = [
    "BaseLock",
    "ConstantBackoff",
    "CountDownLatch",
    "ExponentialBackoff",
    "FairLock",
    "FencedLock",
    "KeyTemplateError",
    "LimitedLock",
    "LockLostError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "LockUnavailableError",
    "LockUpgradeError",
    "MultiLock",
    "Permit",
    "PermitExpirableSemaphore",
    "PermitNotHeldError",
    "QuorumNotReachedError",
    "RLock",
    "RLockError",
    "ReadLock",
    "ReadWriteLock",
    "RedLock",
    "Semaphore",
    "SpinLock",
    "StaleTokenError",
    "TaskQueuedError",
    "WriteLock",
    "__version__",
    "distributed_lock",
    "fenced",
    "rlock",
]


_LATER = {
    "CountDownLatch": "locks.counters",
    "Permit": "locks.expirable",
    "PermitExpirableSemaphore": "locks.expirable",
    "Semaphore": "locks.semaphore",
    "distributed_lock": "_web.decorator",
}


def __getattr__(name: str) -> Any:
    """Import what many processes do not need on first access.

    Modules access these names while they are imported. Calls access the kinds of locks, and a signal may interrupt a
    call in the middle of an import, so the kinds are imported at once.
    """
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
