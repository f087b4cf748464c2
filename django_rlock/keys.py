"""Names of keys and channels. Pure functions; Redisson's own names where it has one.

A lock's state is at ``key`` itself. Its helpers wrap the key in braces, so that they share its cluster slot; a key
that brings braces of its own is taken to bring its hash tag, as Redisson does.
"""

from __future__ import annotations

from functools import lru_cache


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


def wake_channel(client_id: str) -> str:
    """Where a process hears that one of its fair waiters was granted its lock. Payload: ``<owner> <key>``."""
    return f"rlock_wake:{client_id}"


@lru_cache(maxsize=4096)
def fair_keys(key: str) -> tuple[str, str, str, str]:
    """State, queue, alive marks and Redisson's channel of a lock."""
    return key, queue_key(key), alive_key(key), redisson_channel(key)
