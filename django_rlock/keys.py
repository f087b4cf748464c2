"""Names of keys and channels. Pure functions; Redisson's own names where it has one.

A lock's state is at ``key`` itself. Its helpers wrap the key in braces, so that they share its cluster slot; a key
that brings braces of its own is taken to bring its hash tag, as Redisson does.
"""

from __future__ import annotations

from functools import lru_cache

MODE = "mode"
"""The field of a read-write lock that says who holds it: ``read`` or ``write``; no owner is called so."""
WRITER = ":write"
"""Ends the field of a read-write lock's writer; a reader's is its owner alone."""


def tagged(prefix: str, key: str) -> str:
    """``prefix:{key}``, or ``prefix:key`` where the key has a hash tag already (Redisson's ``prefixName``)."""
    return f"{prefix}:{key}" if "{" in key else f"{prefix}:{{{key}}}"


def redisson_channel(key: str) -> str:
    """Where Redisson's plain lock publishes ``0`` when it is released."""
    return tagged("redisson_lock__channel", key)


def token_key(key: str) -> str:
    """The last fencing token that Redisson's fenced lock gave out."""
    return tagged("redisson_lock_token", key)


def queue_key(key: str) -> str:
    """Sorted set of a fair lock: waiting owner → ticket."""
    return tagged("rlock_queue", key)


def alive_key(key: str) -> str:
    """Sorted set of a fair lock: client id → epoch milliseconds until which its waiters count as alive."""
    return tagged("rlock_alive", key)


def tombstones_key(key: str) -> str:
    """Sorted set of a RedLock's node: owner that gave up → epoch milliseconds until which it is refused."""
    return tagged("rlock_tombstones", key)


@lru_cache(maxsize=4096)
def redlock_keys(key: str) -> tuple[str, str, str, str]:
    """State, last token, tombstones and Redisson's channel of a lock on each node."""
    return key, token_key(key), tombstones_key(key), redisson_channel(key)


def wake_channel(client_id: str, key: str | None = None) -> str:
    """Where a process hears that one of its fair waiters was granted its lock. Payload: ``<owner> <key>``.

    One channel for all locks; in a cluster one for each ``key``, in the lock's slot.
    """
    return f"rlock_wake:{client_id}" if key is None else f"{tagged('rlock_wake', key)}:{client_id}"


def semaphore_channel(key: str) -> str:
    """Where Redisson's semaphores publish how many permits there are when some come back."""
    return tagged("redisson_sc", key)


def permits_key(key: str) -> str:
    """Sorted set of Redisson's expirable semaphore: raw id → epoch milliseconds at which its lease ends."""
    return f"{key}:timeout" if "{" in key else f"{{{key}}}:timeout"


def latch_channel(key: str) -> str:
    """Where Redisson's latch publishes ``0`` when it opens. Always in braces: a key's own hash tag is not heeded."""
    return f"redisson_countdownlatch__channel__{{{key}}}"


def requests_key(key: str) -> str:
    """Sorted set of a semaphore or latch: request → epoch milliseconds until which it is remembered."""
    return tagged("rlock_requests", key)


def drained_key(key: str, request: str) -> str:
    """What a request to drain a semaphore took."""
    return f"{tagged('rlock_drained', key)}:{request}"


def readwrite_channel(key: str) -> str:
    """Where Redisson's read-write lock publishes ``0`` when its last reader leaves, ``1`` when a writer does."""
    return tagged("redisson_rwlock", key)


def read_holds_key(key: str) -> str:
    """What the keys of a read-write lock's read holds begin with: ``{key}:<owner>:rwlock_timeout:<1..holds>``."""
    return key if "{" in key else f"{{{key}}}"


def writers_key(key: str) -> str:
    """Sorted set of a read-write lock: waiting writer → epoch milliseconds until which it keeps new readers out."""
    return tagged("rlock_writers", key)


@lru_cache(maxsize=4096)
def readwrite_keys(key: str) -> tuple[str, str, str, str]:
    """State, read holds, waiting writers and channel of a read-write lock."""
    return key, read_holds_key(key), writers_key(key), readwrite_channel(key)


def force_release_keys(key: str) -> tuple[str, ...]:
    """What is touched when a lock is freed whose kind nobody knows."""
    return *fair_keys(key), read_holds_key(key), readwrite_channel(key)


@lru_cache(maxsize=4096)
def fair_keys(key: str) -> tuple[str, str, str, str]:
    """State, queue, alive marks and Redisson's channel of a lock."""
    return key, queue_key(key), alive_key(key), redisson_channel(key)
