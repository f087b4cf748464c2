"""Names of keys and channels. Pure functions; Redisson's own names where it has one.

A lock's state is at ``key`` itself. The names of its helper keys put ``key`` in braces, so that they share its cluster
slot. A key that already contains braces is assumed to have its own hash tag, as in Redisson.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import lru_cache

MAX_NAME = 1024
"""The maximum length of a name or an owner in UTF-8 bytes: processes and servers store them in many places."""
MOST_KEPT = 512
"""How many templates of calls, and channels of locks, a process keeps: the most recently used."""
JAVA_QUEUE_ENTRY = "rlock_waiters"
"""The entry of our waiters in the queue of Redisson's fair lock."""
KEPT_PREFIX = "kept:"
"""Begins the owner's field in the hash of a lock that was released, and stays taken for a while."""
MODE = "mode"
"""The field of a read-write lock that contains its mode, ``read`` or ``write``; no owner may have this name."""
_MARK = "rlock_wake::"
WRITER = ":write"
"""The end of a writer's field in a read-write lock's hash; a reader's field is its owner alone."""


def by_sort(keys_of_locks: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """First the first key of each lock, then the second of each, and so on, as scripts for many locks read them."""
    return tuple(itertools.chain.from_iterable(zip(*keys_of_locks, strict=True)))


def hash_tag(key: str) -> str:
    """``{key}``, or the key itself if it already has a hash tag: all keys of a lock must be in one slot, because a
    script runs on one node (rule 13 of docs/design/architecture.md)."""
    return key if "{" in key else f"{{{key}}}"


def tagged(prefix: str, key: str) -> str:
    """``prefix:{key}``, or ``prefix:key`` if the key has a hash tag already (Redisson's ``prefixName``)."""
    return f"{prefix}:{hash_tag(key)}"


def redisson_channel(key: str) -> str:
    """The channel on which Redisson's plain lock publishes ``0`` when it is released."""
    return tagged("redisson_lock__channel", key)


def is_redissons(channel: str) -> bool:
    """Whether Redisson's clients use a channel too."""
    return channel.startswith("redisson_")


def plain_mark(channel: str) -> str:
    """The channel, in the same slot, by whose subscribers scripts know how many of a Redisson channel's are ours."""
    return f"{_MARK}{channel}"


def marked(channel: str) -> str:
    """The plain channel, given its mark; any other channel is returned as it is."""
    return channel.removeprefix(_MARK)


def unknown(key: str) -> tuple[str, ...]:
    """Of scripts whose keys depend on more than the key of a lock: their calls name the keys."""
    raise TypeError(f"The key {key!r} alone does not determine the keys of this script.")


def state_key(key: str) -> tuple[str]:
    """The state of a lock."""
    return (key,)


def java_queue_keys(key: str) -> tuple[str, str, str]:
    """The state of a lock, and the queue of Redisson's fair lock: its waiters, and their deadlines."""
    tag = hash_tag(key)
    return key, f"redisson_lock_queue:{tag}", f"redisson_lock_timeout:{tag}"


def fair_heartbeat_keys(key: str) -> tuple[str, ...]:
    """The state, queue and alive marks of a lock, and the queue of Redisson's fair lock."""
    return *fair_keys(key), *java_queue_keys(key)[1:]


def java_queue_channel(key: str) -> str:
    """The channel that notifies our waiters when their entry is the first in the queue of Redisson's fair lock."""
    return f"{redisson_channel(key)}:{JAVA_QUEUE_ENTRY}"


def token_key(key: str) -> str:
    """The key of the last fencing token of Redisson's fenced lock."""
    return tagged("redisson_lock_token", key)


def fenced_keys(key: str) -> tuple[str, str]:
    """The state of a fenced lock, and its last token."""
    return key, token_key(key)


def fenced_wait_keys(key: str) -> tuple[str, ...]:
    """The same, and the queue of Redisson's fair lock."""
    return *fenced_keys(key), *java_queue_keys(key)[1:]


def queue_key(key: str) -> str:
    """Sorted set of a fair lock: waiting owner → ticket."""
    return tagged("rlock_queue", key)


def redisson_queue_key(key: str) -> str:
    """List of the waiters in the queue of Redisson's fair lock."""
    return tagged("redisson_lock_queue", key)


def tombstone_key(key: str, owner: str) -> str:
    """Exists on a RedLock's node as long as the attempts of an owner that has released are refused there."""
    return f"{tagged('rlock_tombstone', key)}:{owner}"


NODE_KEY = "rlock_node"
"""A hash on a RedLock's node. ``mark`` is lost with the node's data. ``replication`` is the replication id to which it
belongs, and ``quarantine`` the longest QUARANTINE of all who use the node, in ms. Once a process has known the mark for
``kept`` ms, ``known`` is the node's run id. ``lists`` are the names of the lists of nodes that are used there, each
with its last use."""


def voter_key(quarantine: float) -> str:
    """The mark of release 0.1, which its processes keep while both releases share the nodes."""
    return f"rlock_voter:{quarantine:g}"


def settled_key(key: str, client_id: str, owner: str) -> str:
    """The nonce up to which a process's extensions of an owner's hold are settled: late ones do nothing."""
    return f"{tagged('rlock_settled', key)}:{owner if owner.startswith(client_id) else f'{client_id}/{owner}'}"


@lru_cache(maxsize=MOST_KEPT)
def wake_channel(client_id: str, key: str | None = None) -> str:
    """The channel that notifies a process of grants to its fair waiters. Payload: ``<ticket> <owner> <key>``.

    One channel for all locks; in a cluster one for each ``key``, in the lock's slot.
    """
    return f"rlock_wake:{client_id}" if key is None else f"{tagged('rlock_wake', key)}:{client_id}"


def semaphore_channel(key: str) -> str:
    """The channel on which Redisson's semaphores publish the number of permits when some are released."""
    return tagged("redisson_sc", key)


def permits_key(key: str) -> str:
    """Sorted set of Redisson's expirable semaphore: raw id → epoch milliseconds at which its lease ends."""
    return f"{hash_tag(key)}:timeout"


def latch_channel(key: str) -> str:
    """The channel on which Redisson's latch publishes ``0`` when it opens. The key is always in braces, even if it has
    its own hash tag."""
    return f"redisson_countdownlatch__channel__{{{key}}}"


def requests_key(key: str) -> str:
    """Sorted set: request → epoch milliseconds until which it is remembered, and not executed again."""
    return tagged("rlock_requests", key)


def drained_key(key: str, request: str) -> str:
    """The key of the number of permits that a request to drain a semaphore took."""
    return f"{tagged('rlock_drained', key)}:{request}"


def readwrite_channel(key: str) -> str:
    """Where Redisson's read-write lock publishes ``0`` when the last reader leaves, ``1`` for a writer."""
    return tagged("redisson_rwlock", key)


def read_holds_key(key: str) -> str:
    """The beginning of the keys of a read-write lock's read holds: ``{key}:<owner>:rwlock_timeout:<1..holds>``."""
    return hash_tag(key)


def writers_key(key: str) -> str:
    """Sorted set of a read-write lock: waiting writer → epoch milliseconds until which it keeps new readers out."""
    return tagged("rlock_writers", key)


def readwrite_keys(key: str) -> tuple[str, str, str, str]:
    """State, read holds, waiting writers and channel of a read-write lock."""
    return key, read_holds_key(key), writers_key(key), readwrite_channel(key)


def side_keys(key: str) -> tuple[str, ...]:
    """State and read holds."""
    return readwrite_keys(key)[:2]


def read_acquire_keys(key: str) -> tuple[str, ...]:
    """State, read holds and waiting writers."""
    return readwrite_keys(key)[:3]


def waiting_side_keys(key: str) -> tuple[str, str]:
    """State and waiting writers."""
    return key, writers_key(key)


def read_release_keys(key: str) -> tuple[str, str, str]:
    """State, read holds and channel."""
    return key, read_holds_key(key), readwrite_channel(key)


def forced_channel(key: str | None = None) -> str:
    """The channel that notifies processes of forced releases, by any process. For the payload see ``Forced``.

    One channel for all locks; in a cluster one for each ``key``, in the lock's slot. It begins as the wake-up channels
    do, so that it needs no further right to subscribe.
    """
    return "rlock_wake:forced" if key is None else f"{tagged('rlock_wake', key)}:forced"


def force_release_keys(key: str) -> tuple[str, ...]:
    """The keys for freeing a lock of unknown kind."""
    return *fair_release_keys(key), read_holds_key(key), readwrite_channel(key), requests_key(key)


def release_keys(key: str) -> tuple[str, str, str, str]:
    """The state of a lock, and where Redisson's clients wait for it: channel, queue of its fair lock, deadlines."""
    tag = hash_tag(key)
    return key, f"redisson_lock__channel:{tag}", f"redisson_lock_queue:{tag}", f"redisson_lock_timeout:{tag}"


def shorter_lease_keys(key: str) -> tuple[str, ...]:
    """The state of a lock, and where its waiters wait: Redisson's channel, the queue, and the queue of Redisson's fair
    lock."""
    state, channel, waiting, deadlines = release_keys(key)
    return state, channel, queue_key(key), waiting, deadlines


def is_kept(owner: str) -> bool:
    """Whether this owner has released the lock, which stays taken for a while."""
    return owner.startswith(KEPT_PREFIX)


@lru_cache(maxsize=8 * MOST_KEPT)  # MultiLocks have many
def fair_release_keys(key: str) -> tuple[str, ...]:
    """The state, queue and alive marks of a lock, and where Redisson's clients wait for it."""
    return *fair_keys(key), *release_keys(key)[1:]


def fair_keys(key: str) -> tuple[str, str, str]:
    """The state, queue and alive marks of a lock."""
    tag = hash_tag(key)
    return key, f"rlock_queue:{tag}", f"rlock_alive:{tag}"


def task_keys(key: str) -> tuple[str, str]:
    """The keys for a Celery task's success, and for the pending copy of its message; ``key`` is the task's id with the
    alias's prefix."""
    return tagged("rlock_done", key), tagged("rlock_copy", key)


def success_keys(key: str) -> tuple[str]:
    """The key for a Celery task's success alone."""
    return (tagged("rlock_done", key),)


def reservations_key(key: str) -> str:
    """The sorted set of the keys of all reservations of a lock."""
    return tagged("rlock_places", key)


def reservation_key(key: str, mark: str) -> str:
    """The reservation of a lock's key for one message of a Celery task, which is identified by ``mark``."""
    return f"{tagged('rlock_place', key)}:{mark}"


FORMER = ":former"
"""The end of the key of a former reservation: of the message that another one is about to replace."""


def reservation_change_keys(key: str, reservation: str) -> tuple[str, str, str, str]:
    """For a change of a reservation, by its key or that of its former one: both, the lock's reservations between them,
    and its replaced messages at the end."""
    reservation = reservation.removesuffix(FORMER)
    return reservation, reservations_key(key), reservation + FORMER, tagged("rlock_replaced", key)


# --- reports of processes, for the admin and the commands -------------------------------------------------------------

PROCESSES = "rlock_processes"
"""Sorted set of the processes that have a report: client id → server time of the last heartbeat, in seconds."""
HISTORIES = "rlock_histories"
"""Sorted set of the processes that have a history: client id → server time when it was written, in seconds."""


def report_key(client: str) -> str:
    """The key of a process's report, a hash."""
    return f"rlock_process:{client}"


def history_key(client: str) -> str:
    """The key of a process's history, a hash."""
    return f"rlock_history:{client}"


def lock_field(key: str) -> str:
    """The field of a history for a lock's last holds and waits."""
    return f"lock {key}"


def stack_channel(client: str) -> str:
    """The channel for requests to a process for the stack of a holder. It has the prefix of the wake-up channels, so
    the process needs no additional right to subscribe."""
    return f"rlock_wake:stack:{client}"


def stack_key(request: str) -> str:
    """The key of the reply, a string: a JSON list of lines."""
    return f"rlock_stack:{request}"
