"""Leaks: what a process and the servers still have when nothing is held or waited for."""

from __future__ import annotations

import gc
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import redis

from tests.faults.storm_process import STAYS
from tests.soak.grips import ONE, PERMITS

PATIENCE = 90.0
"""Seconds within which all must be gone: leases, and what is cleaned up behind them."""
MOST = {"threads": 60, "sockets": 120}
"""The most that an idle process keeps."""
MOST_OBJECTS = 1000
"""Of one class of the package, apart from what caches keep, whose sizes are bounded."""
_CACHE = type(lru_cache(maxsize=1)(int))
_STAYS = re.compile(
    rf"{STAYS.pattern}|rlock_process(es$|:)|rlock_drained:|rlock_(node$|voter:)|rlock:(semaphore:|permits$|latch:)"
)
"""Keys that outlive what they were made for, by their own times to live; and numbers, which have no owner."""


def left_in_this_process() -> dict[str, Any]:
    """What this process has left that it must not have."""
    left = _settled(_unfinished)
    counts = {"threads": _number("/proc/self/task"), "sockets": _sockets()}
    left |= {what: number for what, number in counts.items() if number > MOST[what]}
    return left | too_many_objects()


def too_many_objects() -> dict[str, int]:
    """How many objects there are of the classes that have too many."""
    gc.collect()
    objects = gc.get_objects()
    kinds = Counter(type(each).__qualname__ for each in objects if _is_ours(type(each)))
    # isinstance() would ask a lazy object of Django for its class, which may read the database.
    caches: list[Any] = [each for each in objects if type(each) is _CACHE]
    caches = [each for each in caches if str(each.__module__).startswith("django_rlock.")]
    most = MOST_OBJECTS + sum(each.cache_info().currsize for each in caches)
    return {f"objects of {name}": number for name, number in kinds.items() if number > most}


def _unfinished() -> dict[str, Any]:
    from django_rlock import PermitExpirableSemaphore, Semaphore
    from django_rlock._transport.worker import AGAIN_AFTER, CleanUps, workers
    from django_rlock.locks.holds import HOLDS, WAITS

    jobs = [each.jobs[CleanUps] for each in workers()]
    semaphores = Semaphore("semaphore:last", using=ONE), PermitExpirableSemaphore("permits", using=ONE)
    left = {
        "holds": [hold.key for hold in HOLDS.snapshot()],
        "waits": [wait.key for wait in WAITS.snapshot()],
        "clean-ups": [each.call.name for job in jobs for _, each in job._due if each.gap <= AGAIN_AFTER],
        "permits missing": {each.name: gone for each in semaphores if (gone := PERMITS - each.available_permits())},
    }
    return {what: value for what, value in left.items() if value}


def _settled(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is still there after PATIENCE."""
    give_up_at = time.monotonic() + PATIENCE
    while (left := look()) and time.monotonic() < give_up_at:
        time.sleep(0.1)
    return left


def _is_ours(kind: type) -> bool:
    return str(kind.__module__).startswith("django_rlock.")


def _number(folder: str) -> int:
    return len(list(Path(folder).iterdir()))


def _sockets() -> int:
    number = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            number += str(each.readlink()).startswith("socket:")
        except FileNotFoundError:  # the folder's own
            continue
    return number


def left_on_servers(clients: Mapping[str, Sequence[redis.Redis]]) -> dict[str, Any]:
    """Locks and places in queues that outlive all leases."""

    def look() -> dict[str, Any]:
        found = {}
        for place, each in clients.items():
            keys = sorted({str(key) for client in each for key in client.scan_iter()})
            if kept := [key for key in keys if not _STAYS.match(key)]:
                found[f"keys of {place}"] = kept
        return found

    return _settled(look)


def left_by_ended_processes(clients: Mapping[str, Sequence[redis.Redis]]) -> dict[str, Any]:
    """Connections and subscriptions to servers, when all workers have ended."""

    def look() -> dict[str, Any]:
        found = {}
        for place, each in clients.items():
            channels = [name for client in each for name in client.pubsub_channels() if "sentinel" not in name]
            others = sum(len(client.client_list(_type="normal")) - 1 for client in each)
            if channels or (place == ONE and others):
                found[place] = {"channels": channels, "connections": others}
        return found

    return _settled(look)


def close(clients: Mapping[str, Sequence[redis.Redis]]) -> None:
    with ExitStack() as stack:
        for each in clients.values():
            for client in each:
                stack.callback(client.close)
