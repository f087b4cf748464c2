"""Show who holds which lock, what holders are doing and who waits; and free locks that other owners hold.

Names come from the reports of processes, which are written with a delay. Each name is compared with the lock
itself, so a lock that has been released is never shown, and the holder is always the current one.
"""

from django_rlock.console.inspection import (
    describe_holder,
    find_locks,
    find_named,
    find_queued,
    force_release,
    iter_locks,
    lock_info,
    lock_infos,
    near_names,
    take_survey,
    wait_for_graph,
)
from django_rlock.console.reading import listed_aliases
from django_rlock.console.survey import free_reservations, queued_messages
from django_rlock.locks.infos import (
    Deadlock,
    Edge,
    Holder,
    LockInfo,
    LockState,
    Party,
    QueuedMessage,
    Waiter,
    WaitGraph,
)

__all__ = [
    "Deadlock",
    "Edge",
    "Holder",
    "LockInfo",
    "LockState",
    "Party",
    "QueuedMessage",
    "WaitGraph",
    "Waiter",
    "describe_holder",
    "find_locks",
    "find_named",
    "find_queued",
    "force_release",
    "free_reservations",
    "iter_locks",
    "listed_aliases",
    "lock_info",
    "lock_infos",
    "near_names",
    "queued_messages",
    "take_survey",
    "wait_for_graph",
]
