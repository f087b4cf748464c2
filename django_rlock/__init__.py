"""Distributed locks for Django and Celery, equal to Redisson's in Redis."""

from django_rlock.decorators import distributed_lock
from django_rlock.exceptions import (
    KeyTemplateError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    LockUnavailableError,
    LockUpgradeError,
    PermitNotHeldError,
    RLockError,
    StaleTokenError,
)
from django_rlock.fencing import fenced
from django_rlock.locks import (
    ConstantBackoff,
    CountDownLatch,
    ExponentialBackoff,
    FairLock,
    FencedLock,
    Permit,
    PermitExpirableSemaphore,
    ReadLock,
    ReadWriteLock,
    RLock,
    Semaphore,
    SpinLock,
    WriteLock,
    rlock,
)

__all__ = [
    "ConstantBackoff",
    "CountDownLatch",
    "ExponentialBackoff",
    "FairLock",
    "FencedLock",
    "KeyTemplateError",
    "LockLostError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "LockUnavailableError",
    "LockUpgradeError",
    "Permit",
    "PermitExpirableSemaphore",
    "PermitNotHeldError",
    "RLock",
    "RLockError",
    "ReadLock",
    "ReadWriteLock",
    "Semaphore",
    "SpinLock",
    "StaleTokenError",
    "WriteLock",
    "distributed_lock",
    "fenced",
    "rlock",
]
