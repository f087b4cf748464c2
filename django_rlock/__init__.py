"""Distributed locks for Django and Celery, equal to Redisson's in Redis."""

from django_rlock.decorators import distributed_lock
from django_rlock.exceptions import (
    KeyTemplateError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    LockUnavailableError,
    RLockError,
    StaleTokenError,
)
from django_rlock.fencing import fenced
from django_rlock.locks import ConstantBackoff, ExponentialBackoff, FairLock, FencedLock, RLock, SpinLock, rlock

__all__ = [
    "ConstantBackoff",
    "ExponentialBackoff",
    "FairLock",
    "FencedLock",
    "KeyTemplateError",
    "LockLostError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "LockUnavailableError",
    "RLock",
    "RLockError",
    "SpinLock",
    "StaleTokenError",
    "distributed_lock",
    "fenced",
    "rlock",
]
