"""A course of events on five nodes that a seed decides, through one of the bindings; prints what happened.

python -m tests.redlock.same <seed> <url>...      # under gevent, all patched
"""

from __future__ import annotations

import random
import sys
from typing import Any

import redis

NODES, STEPS = 5, 25
CALLS: dict[str, dict[str, Any]] = {
    "acquire": {"wait_time": 0},
    "release": {},
    "hold_count": {},
    "locked": {},
    "extend": {"lease_time": 20.0},
    "force_release": {},
}


async def course(seed: int, urls: list[str], call: Any) -> list[Any]:
    """The result of each step; ``call(lock, method, ...)`` is the binding's."""
    from django_rlock import RLockError
    from django_rlock.locks.redlock import RedLock

    pick = random.Random(seed)
    clients = [redis.Redis.from_url(url, decode_responses=True) for url in urls]
    lock = RedLock("same", using="quorum")
    told: list[Any] = []
    for _ in range(STEPS):
        step = pick.choice([*sorted(CALLS), "acquire", "take", "free"])
        some = pick.sample(clients, pick.randrange(1, NODES + 1))
        if step not in CALLS:
            told.append(by_hand(step, some))
            continue
        try:
            told.append(await call(lock, step, **CALLS[step]))
        except RLockError as error:
            told.append(type(error).__name__)
    by_hand("free", clients)
    for client in clients:
        client.close()
    return told


def by_hand(step: str, clients: list[redis.Redis]) -> str:
    """Free the lock on some nodes, or give it to another owner there."""
    for client in clients:
        client.delete("rlock:same")
        if step == "take":
            client.hset("rlock:same", "another", "1")
            client.pexpire("rlock:same", 60_000)
    return step


async def blocking(lock: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(lock, method)(*args, **kwargs)


def main() -> None:
    from gevent import monkey

    monkey.patch_all()
    import django
    from django.conf import settings

    seed, *urls = sys.argv[1:]
    backend = "django.core.cache.backends.locmem.LocMemCache"
    settings.configure(
        RLOCK={"quorum": {"NODES": urls, "QUARANTINE": 0, "NODE_TIMEOUT": 1.0}},
        CACHES={"default": {"BACKEND": backend}},
        USE_TZ=True,
    )
    django.setup()
    import gevent

    from django_rlock._transport.calls import run_sync

    print(gevent.spawn(lambda: run_sync(course(int(seed), urls, blocking))).get())  # noqa: T201


if __name__ == "__main__":
    main()
