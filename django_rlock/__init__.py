"""Distributed locks for Django and Celery, equal to Redisson's in Redis."""

from django_rlock.decorators import distributed_lock
from django_rlock.exceptions import (
    KeyTemplateError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    LockUnavailableError,
    RLockError,
)
from django_rlock.locks import FairLock, RLock, rlock

__all__ = [
    "FairLock",
    "KeyTemplateError",
    "LockLostError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "LockUnavailableError",
    "RLock",
    "RLockError",
    "distributed_lock",
    "rlock",
]
